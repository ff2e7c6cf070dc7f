"""Looks at raw tables: their columns, and a sample of their rows."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from etl.config import EntityTableConfig, FilesConfig
from etl.tables.files import files_at
from etl.tables.formats import FileRange, Head, format_of, reading, text
from etl.tables.formats.lines import read_sample, suffixes_of
from graphmill import storage
from graphmill.config import validated
from graphmill.errors import NotFoundError, RawTableError

SAMPLE_ROWS = 100_000

Kind = Literal["id", "number", "other"]

_SPLITS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
_DELIMITERS = ("\t", ",", ";", "|", " ")
_TIME = re.compile(r"\d{4}-\d\d-\d\d")
_SNIFFED_LINES = 10_000


@dataclass(frozen=True)
class Column:
    """A column of a table, by a sample of its values."""

    name: str | int
    """Name; without a header, number from 0."""
    values: pa.ChunkedArray
    """Values as strings; null where the cell is empty."""
    type: pa.DataType

    @cached_property
    def distinct(self) -> pa.Array:
        """The distinct values that are not null."""
        return pc.drop_null(pc.unique(self.values))

    @property
    def num_values(self) -> int:
        """Number of values that are not null."""
        return int(len(self.values) - self.values.null_count)

    @cached_property
    def kind(self) -> Kind:
        """Whether the column may hold ids."""
        if pa.types.is_floating(self.type) or pa.types.is_decimal(self.type):
            return "number"
        if not self.num_values or not _may_be_id(self.type):
            return "other"
        if not pa.types.is_integer(self.type):
            if _all_match(r"^\s*[-+]?(\d+\.\d*|\.\d+|\d+[eE][-+]?\d+|\d+)\s*$", self.distinct):
                return "id" if _all_match(r"^\d+$", self.distinct) else "number"
            if _TIME.match(self.distinct[0].as_py()):
                return "other"
        return "id"

    @property
    def is_integer(self) -> bool:
        """Whether all values are integers."""
        return self.kind == "id" and (pa.types.is_integer(self.type) or _all_match(r"^\d+$", self.distinct))


@dataclass(frozen=True)
class Look:
    """Columns, size and form of a table."""

    path: str
    """Path as the user has typed it."""
    options: FilesConfig
    """Options to read the files with, found by their beginning."""
    split: str | None
    """Split that the file's name says: train, valid or test."""
    columns: tuple[Column, ...]
    num_rows: int
    """Rows of the sample."""
    is_whole: bool
    """Whether the sample is the whole table."""


def look_at(paths: Sequence[str]) -> list[Look]:
    """Look at the tables at `paths`: files, folders or patterns; a folder of train, valid and test is three.

    Raises:
        NotFoundError: there is no file.
        RawTableError: a table cannot be read.
    """
    found = []
    for path in paths:
        files = list(files_at(storage.absolute(path)))
        if not files:
            raise NotFoundError(f"{path}: no file there to read rows from")
        splits = [_SPLITS.get(_stem(uri).lower()) for uri in files]
        if len(files) > 1 and None not in splits:
            folder = path.rstrip("/")
            found += [
                _look(f"{folder}/{storage.name(uri)}", [uri], split)
                for uri, split in zip(files, splits, strict=True)
            ]
        else:
            found.append(_look(path, files, splits[0] if len(files) == 1 else None))
    return found


def _stem(uri: str) -> str:
    return storage.name(uri).partition(".")[0]


def _look(path: str, files: Sequence[str], split: str | None) -> Look:
    options = _options(path, files[0])
    head = format_of(files[0], options).read_head(files[0], options, SAMPLE_ROWS)
    sample = _sample(files[0], options, head)
    names: list[str | int] = list(head.names) if options.header else list(range(len(head.names)))
    columns = [
        Column(name, values, head.types.get(reader, pa.string()))
        for name, reader, values in zip(names, head.reader_names or head.names, sample.columns, strict=True)
    ]
    is_whole = len(files) == 1 and len(head.cuts) <= 1 and sample.num_rows < SAMPLE_ROWS
    return Look(path, options, split, tuple(columns), sample.num_rows, is_whole)


def _sample(uri: str, options: FilesConfig, head: Head) -> pa.Table:
    """Read the first rows as strings, column by column."""
    names = head.reader_names or head.names
    columns = {str(number): name for number, name in enumerate(names)}
    if not head.cuts:
        return pa.table({key: pa.array([], pa.string()) for key in columns})
    table = EntityTableConfig(**dict(options) | {"type": "any", "id": 0})
    cut = head.cuts[0][2]
    first = FileRange(
        table,
        uri,
        columns,
        cut=cut,
        num_head_rows=head.num_head_rows if cut is None else 0,
        num_columns=len(names),
        types={name: head.types[name] for name in names if name in head.types},
    )
    return _first_rows(first)


def read_sample_of(file_range: FileRange) -> dict[str, list[str]]:
    """Read the first rows of a range: values of each field of an edge or entity, without the empty rows."""
    rows = _first_rows(file_range)
    whole = rows.filter(reduce(pc.and_, [pc.is_valid(column) for column in rows.columns]))
    return {name: whole[name].to_pylist() for name in whole.column_names}


def _first_rows(file_range: FileRange) -> pa.Table:
    """Read the first rows of a range as strings; columns are named as in `file_range.columns`."""
    batches: list[pa.RecordBatch] = []
    with reading(file_range.uri):
        for batch in format_of(file_range.uri, file_range.table).read(file_range, lambda row: "skip"):
            batches.append(batch)
            if sum(each.num_rows for each in batches) >= SAMPLE_ROWS:
                break
    if not batches:
        return pa.table({key: pa.array([], pa.string()) for key in file_range.columns})
    found = pa.Table.from_batches(batches).slice(0, SAMPLE_ROWS)
    return pa.table({key: _as_strings(found.column(name)) for key, name in file_range.columns.items()})


def _as_strings(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as strings, empty ones as null; nested values are all null."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
        values = pa.chunked_array([pa.array(texts, pa.string())])
    elif not _may_be_id(kind) and not pa.types.is_floating(kind):
        return pa.chunked_array([pa.nulls(len(values), pa.string())])
    strings = values.cast(pa.string())
    return pc.if_else(pc.equal(strings, ""), pa.scalar(None, pa.string()), strings)


def _may_be_id(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _may_be_id(kind.value_type)
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return bool(pa.types.is_integer(kind)) or kind in texts


def _all_match(pattern: str, values: pa.Array) -> bool:
    return bool(len(values)) and pc.all(pc.match_substring_regex(values, pattern)).as_py()


def _options(path: str, uri: str) -> FilesConfig:
    """Find out how to read a file; text may lack column names, and has one of several delimiters."""
    suffix, _ = suffixes_of(uri)
    options = validated(FilesConfig, {"path": path})
    if suffix not in text.FORMAT.suffixes:
        format_of(uri, options)
        return options
    lines = read_sample(uri).decode("utf-8-sig", errors="replace").splitlines()[:_SNIFFED_LINES]
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise RawTableError(f"{uri}: expected rows, found an empty file")
    delimiter = max(_DELIMITERS, key=lambda each: _evenness(lines[:100], each))
    rows = list(csv.reader(lines, delimiter=delimiter))
    found: dict[str, object] = {"path": path, "header": _has_header(rows)}
    if delimiter != ("," if suffix == ".csv" else "\t"):
        found["delimiter"] = delimiter
    return validated(FilesConfig, found)


def _evenness(lines: Sequence[str], delimiter: str) -> float:
    """Share of the lines that have the most frequent number of fields; 0 where that is one."""
    counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
    usual = max(set(counts), key=counts.count, default=1)
    return counts.count(usual) / len(counts) if usual > 1 else 0


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: its words are different, and occur in no other row."""
    first, others = rows[0], rows[1:]
    words = [cell.strip() for cell in first]
    if len(set(words)) < len(words) or any(not word or re.fullmatch(r"[-+.\deE]+", word) for word in words):
        return False
    if any(word in {row[at].strip() for row in others if at < len(row)} for at, word in enumerate(words)):
        return False
    return all(re.fullmatch(r"[\w .:()\[\]#-]{1,64}", word) for word in words)
