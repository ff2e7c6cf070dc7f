"""Looks at raw tables: their columns, and a sample of their rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from etl.survey.dialect import Dialect, dialect_of
from etl.survey.sample import SAMPLE_ROWS, first_rows
from etl.survey.words import words_of
from etl.tables import nested
from etl.tables.data_file import DataFile
from etl.tables.files import files_at
from etl.tables.formats import Head, format_of
from etl.tables.lake.opened import snapshot_at
from etl.tables.ranges import find_ranges
from graphmill import storage
from graphmill.config import validated
from graphmill.config.sections.etl import FilesConfig, WholeTableConfig
from graphmill.errors import NotFoundError, RawTableError
from graphmill.formats.raw_ids import holds_whole_numbers

Kind = Literal["text", "integer", "whole", "number", "time", "other"]
"""`whole`: fractions whose values are whole numbers."""

_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= {"valid": "valid", "validation": "valid", "dev": "valid"}
_PATTERNS: dict[Kind, str] = {
    "integer": r"^\d+$",
    "whole": r"^\d+(\.0*)?$",
    "number": r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$",
    "time": r"^(\d{4}-\d\d-\d\d|\d\d?[/.]\d\d?[/.]\d{4})([T ].*)?$",
}
_MAX_FILES = 20


@dataclass(frozen=True, eq=False)
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

    @property
    def is_key(self) -> bool:
        """Tell whether no value occurs twice."""
        return len(self.distinct) == self.num_values > 1

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of the name; none, if that is a number."""
        return words_of(self.name) if isinstance(self.name, str) else ()

    @cached_property
    def kind(self) -> Kind:
        """Nature of the values."""
        if not self.num_values or pa.types.is_boolean(self.type):
            return "other"
        if pa.types.is_temporal(self.type):
            return "time"
        if holds_whole_numbers(self.type):
            return "integer"
        matched = {kind: pc.match_substring_regex(self.distinct, _PATTERNS[kind]) for kind in _PATTERNS}
        kind = next((kind for kind, are_matched in matched.items() if pc.all(are_matched).as_py()), None)
        if kind == "integer" and pa.types.is_floating(self.type):
            return "whole"
        return kind or ("other" if _is_json(self.distinct[0].as_py()) else "text")


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
    doubts: tuple[str, ...]
    """Sentences about how the files may be read otherwise."""


def look_at(paths: Sequence[str]) -> list[Look]:
    """Look at tables: files, folders or patterns; a folder of train, valid and test is three tables."""
    looks = []
    for path in paths:
        uri, patterns = storage.split_pattern(path)
        options = validated(FilesConfig, {"path": path})
        if snapshot := snapshot_at(uri, options, is_pattern=bool(patterns)):
            looks.append(_look(path, sorted(snapshot.files(()), key=lambda file: file.uri), None))
            continue
        files, _ = files_at(uri, patterns)
        if not files:
            raise NotFoundError(f"{path}: no file there to read rows from")
        splits = [_SPLITS.get(storage.name(file.uri).partition(".")[0].lower()) for file in files]
        if len(files) > 1 and None not in splits:
            for file, split in zip(files, splits, strict=True):
                name = file.uri if patterns else f"{path.rstrip('/')}/{storage.name(file.uri)}"
                looks.append(_look(name, [file], split))
        else:
            looks.append(_look(path, files, splits[0] if len(files) == 1 else None))
    return looks


def _look(path: str, files: Sequence[DataFile], split: str | None) -> Look:
    for file in sorted(files, key=lambda file: -file.num_bytes())[:_MAX_FILES]:  # a small one may be odd
        if files[1:] and not (file.snapshot or file.num_bytes()):
            continue
        options = validated(FilesConfig, {"path": path})
        dialect = Dialect(options) if file.snapshot else dialect_of(path, file)
        head = format_of(file.uri, dialect.options, file.snapshot).read_head(
            file.uri, dialect.options, SAMPLE_ROWS
        )
        if look := _look_at(path, files, file, dialect, head, split):
            return look
    raise RawTableError(f"{path}: expected rows, found none in the largest of {len(files)} files")


def _look_at(
    path: str, files: Sequence[DataFile], file: DataFile, dialect: Dialect, head: Head, split: str | None
) -> Look | None:
    types = _types(file, head)
    names = [*types, *(name for name in file.values if name not in types)]
    table = WholeTableConfig(**dict(dialect.options) | {"names": tuple(names)})
    ranges = find_ranges(table, file, SAMPLE_ROWS)
    if not ranges:
        return None
    rows = first_rows(ranges[0])
    columns = []
    for at, name in enumerate(names):
        field = f"column {at}"
        if field in ranges[0].values:
            values = pa.array([other.values.get(name) for other in files], pa.string())
            columns.append(Column(name, pa.chunked_array([values]), pa.string(), is_of_path=True))
        else:
            own = name if dialect.options.header else at
            columns.append(Column(own, rows[field], types[name]))
    is_whole = len(files) == 1 and len(ranges) == 1 and rows.num_rows < SAMPLE_ROWS
    twice = ", ".join(dict.fromkeys(name for name in head.names if head.names.count(name) > 1))
    told = (f"columns that share a name ({twice}), which are left out: rename them",) if twice else ()
    return Look(path, dialect.options, split, tuple(columns), rows.num_rows, is_whole, dialect.doubts + told)


def _types(file: DataFile, head: Head) -> dict[str, pa.DataType]:
    if file.schema is not None:
        return {field.name: field.type for field in file.schema}
    once = [name for name in head.names if head.names.count(name) == 1]
    types = {}
    for name in nested.known(once, head.types):
        way = nested.find(head.types, name)
        types[name] = nested.type_at(head.types[way[0]], way[1:]) if way else pa.string()
    return types


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False
