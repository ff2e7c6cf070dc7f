"""Looks at raw tables: their columns, and a sample of their rows."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from etl.config import EntityTableConfig, FilesConfig
from etl.tables.data_file import DataFile, missing_file, path_in_file
from etl.tables.files import files_at
from etl.tables.formats import FileRange, Head, format_of, reading, text
from etl.tables.formats.lines import read_sample, suffixes_of
from etl.tables.lake.opened import snapshot_at
from etl.tables.lake.snapshot import Snapshot
from etl.tables.read import fields_of
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
    is_of_path: bool = False
    """Whether all rows of a file have one value, which the file's path or the table's log gives."""

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
        uri, patterns = storage.split_pattern(path)
        options = validated(FilesConfig, {"path": path})
        if snapshot := snapshot_at(uri, options, is_pattern=bool(patterns)):
            found.append(_look_at_snapshot(path, options, snapshot))
            continue
        files, _ = files_at(uri, patterns)
        if not files:
            raise NotFoundError(f"{path}: no file there to read rows from")
        splits = [_SPLITS.get(_stem(file.uri).lower()) for file in files]
        if len(files) > 1 and None not in splits:
            folder = path.rstrip("/")
            found += [
                _look(f"{folder}/{storage.name(file.uri)}", [file], split)
                for file, split in zip(files, splits, strict=True)
            ]
        else:
            found.append(_look(path, files, splits[0] if len(files) == 1 else None))
    return found


def _stem(uri: str) -> str:
    return storage.name(uri).partition(".")[0]


def _look(path: str, files: Sequence[DataFile], split: str | None) -> Look:
    uri = files[0].uri
    options = _options(path, uri)
    head = format_of(uri, options).read_head(uri, options, SAMPLE_ROWS)
    readers = head.reader_names or head.names
    sample = _sample(uri, options, head, {str(at): (name,) for at, name in enumerate(readers)})
    names: list[str | int] = list(head.names) if options.header else list(range(len(head.names)))
    columns = [
        Column(name, sample[str(at)], head.types.get(reader, pa.string()))
        for at, (name, reader) in enumerate(zip(names, readers, strict=True))
    ]
    columns += [_of_path(name, files) for name in files[0].values if name not in names]
    is_whole = len(files) == 1 and len(head.cuts) <= 1 and sample.num_rows < SAMPLE_ROWS
    return Look(path, options, split, tuple(columns), sample.num_rows, is_whole)


def _look_at_snapshot(path: str, options: FilesConfig, snapshot: Snapshot) -> Look:
    """Look at the columns of a table with a log, and at the first rows of its first file."""
    files = sorted(snapshot.files(()), key=lambda each: each.uri)
    if not files:
        raise RawTableError(f"{path}: expected rows, found none in {snapshot.name}")
    first, schema = files[0], snapshot.schema
    try:
        head = format_of(first.uri, options, first.snapshot).read_head(first.uri, options, SAMPLE_ROWS)
    except NotFoundError as error:
        raise missing_file(first) from error
    places = {
        str(at): place
        for at, name in enumerate(schema.names)
        if (place := path_in_file((name,), schema, head.schema, first.uri)) is not None
    }
    sample = _sample(first.uri, options, head, places, first.snapshot)
    columns = [
        Column(field.name, sample[str(at)], field.type) if str(at) in places else _of_path(field.name, files)
        for at, field in enumerate(schema)
    ]
    is_whole = len(files) == 1 and len(head.cuts) <= 1 and sample.num_rows < SAMPLE_ROWS
    return Look(path, options, None, tuple(columns), sample.num_rows, is_whole)


def _of_path(name: str, files: Sequence[DataFile]) -> Column:
    """Return a column with one value per file."""
    values = pa.array([each.values.get(name) for each in files], pa.string())
    return Column(name, pa.chunked_array([values]), pa.string(), is_of_path=True)


def _sample(
    uri: str, options: FilesConfig, head: Head, places: Mapping[str, tuple[str, ...]], snapshot: str = ""
) -> pa.Table:
    """Read the first rows of columns, named by keys, as strings."""
    if not head.cuts or not places:
        return pa.table({key: pa.array([], pa.string()) for key in places})
    table = EntityTableConfig(**dict(options) | {"type": "any", "id": 0})
    cut = head.cuts[0][2]
    names = {key: place[0] for key, place in places.items()}
    first = FileRange(
        table,
        uri,
        names,
        cut=cut,
        head_bytes=head.head_bytes if cut is None else 0,
        num_columns=len(head.names),
        types={name: head.types[name] for name in names.values() if name in head.types},
        snapshot=snapshot,
    )
    return _first_rows(first)


def read_sample_of(file_range: FileRange) -> dict[str, list[str]]:
    """Read the first rows of a range: values of each field of an edge or entity, without the empty rows."""
    rows = _first_rows(file_range).select([*file_range.table.columns()])
    whole = rows.filter(reduce(pc.and_, [pc.is_valid(column) for column in rows.columns]))
    return {name: whole[name].to_pylist() for name in whole.column_names}


def _first_rows(file_range: FileRange) -> pa.Table:
    """Read the first rows of a range as strings, by field; columns that all rows share are fields too."""
    batches: list[pa.RecordBatch] = []
    with reading(file_range.uri):
        file_format = format_of(file_range.uri, file_range.table, file_range.snapshot)
        for batch in file_format.read(file_range, lambda row: "skip"):
            batches.append(batch)
            if sum(each.num_rows for each in batches) >= SAMPLE_ROWS:
                break
    if not batches:
        fields = [*file_range.columns, *file_range.values]
        return pa.table({key: pa.array([], pa.string()) for key in fields})
    found = fields_of(file_range, pa.Table.from_batches(batches).slice(0, SAMPLE_ROWS))
    return pa.table({key: _as_strings(found[key]) for key in found.column_names})


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
    lines = read_sample(uri, options).decode(errors="replace").splitlines()[:_SNIFFED_LINES]
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
