"""A file of a table, with all that its place or the table's log says about its rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa

from etl.tables import nested
from graphmill import storage
from graphmill.config.sections.etl import Filters
from graphmill.errors import NotFoundError, RawTableError
from graphmill.storage import FileStatus

FIELD_ID = b"PARQUET:field_id"
NAMES = b"names"  # ours: names, one per line, that a column has in files without numbers of columns

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Deletes:
    """Rows of a data file that a table's log has deleted: their positions are in another file."""

    kind: Literal["positions", "puffin", "delta", "delta inline"]
    place: str
    """URI of the file with the positions; inline: the positions themselves, as text."""
    of_file: str = ""
    """Name of the data file in the file of positions."""
    offset: int = 0
    num_bytes: int = 0


@dataclass(frozen=True)
class DataFile:
    """A file of rows."""

    uri: str
    values: Mapping[str, str | None] = field(default_factory=dict)
    """Columns that all rows share, which the file may lack."""
    schema: pa.Schema | None = None
    """Columns of the table: a field's metadata says which column of the file it is. None: the file's own."""
    deletes: tuple[Deletes, ...] = ()
    filters: Filters = ()
    """Conditions that remain for the rows."""
    snapshot: str = ""
    """Snapshot that names the file, for messages."""
    size_bytes: int | None = None
    """Size, if a log or a listing says it."""
    mtime_ns: int | None = None
    """When a plain file was last written, in nanoseconds since 1970."""
    checksum: str = ""
    """Checksum of the content of a plain file, if `etl.compare_files` asks for it."""

    def state(self) -> tuple[int, int | str | None]:
        """Return what tells a plain file from another one of that name: its size, its checksum or time."""
        return self.num_bytes(), self.checksum or self.mtime_ns

    def num_bytes(self) -> int:
        """Return the size of the file; 0, if it is not there."""
        if self.size_bytes is not None:
            return self.size_bytes
        status = storage.status(self.uri)
        return status.size_bytes if status else 0


def plain_file(uri: str, listed: FileStatus | None = None) -> DataFile:
    """Return a file that no log describes, with the columns that Hive folders (`key=value`) give it.

    `listed` is its entry in a listing, if there was one.
    """
    folders = [part.partition("=") for part in uri.split("/")[:-1] if "=" in part]
    values = {
        _unquoted(key, uri): None if value == _HIVE_NULL else _unquoted(value, uri)
        for key, _, value in folders
        if key
    }
    if listed is None:
        return DataFile(uri, values)
    return DataFile(uri, values, size_bytes=listed.size_bytes, mtime_ns=listed.mtime_ns)


def _unquoted(text: str, uri: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise RawTableError(
            f"{storage.parent(uri)}: expected a folder's name in UTF-8, found {text!r}, whose byte "
            f"{error.object[error.start]:#x} is none; rename the folder"
        ) from error


def missing_file(file: DataFile) -> NotFoundError:
    """Return the error about a file that a snapshot names and that is not there."""
    return NotFoundError(
        f"{file.uri}: {file.snapshot} of the table names this file, which is not there: old snapshots "
        "lose their files to vacuum or expiry; choose a newer snapshot, or restore the file"
    )


def path_in_file(
    path: Iterable[str], schema: pa.Schema, of_file: pa.Schema | None, uri: str
) -> tuple[str, ...] | None:
    """Return the path in a file of a column of its table, or of a field in a struct; None: it lacks it."""
    logical, physical = list(schema), list(of_file or ())
    is_numbered = has_ids(of_file)
    if not is_numbered and any(
        _metadata(field, FIELD_ID) and _metadata(field, NAMES) is None for field in logical
    ):
        raise RawTableError(
            f"{uri}: expected numbers of columns (field ids) in the file, or names for them in the table's "
            "schema.name-mapping.default, found neither; write the file anew with the table's own writer"
        )
    names: list[str] = []
    for name in path:
        wanted = next(field for field in logical if field.name == name)
        match = next((field for field in physical if _is_same(wanted, field, is_numbered)), None)
        if match is None:
            return None
        names.append(match.name)
        logical, physical = _below(wanted.type), _below(match.type)
    return tuple(names)


def with_names_of(wanted: pa.DataType, given: pa.DataType, *, has_ids: bool) -> pa.DataType:
    """Return the type `given` with the names that the fields in it have in `wanted`, however deep they lie.

    A field that `wanted` does not have keeps its name, unless another field has it there.
    """
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        taken = {other.name for other in wanted}
        fields = []
        for field in given:
            match = next((other for other in wanted if _is_same(other, field, has_ids)), None)
            if match is not None:
                kind = with_names_of(match.type, field.type, has_ids=has_ids)
                fields.append(pa.field(match.name, kind))
            else:
                name = field.name
                while name in taken:
                    name += "_"
                fields.append(field.with_name(name))
            taken.add(fields[-1].name)
        return pa.struct(fields)
    below, own = nested.fields_in(wanted), nested.fields_in(given)
    if len(below) != len(own):
        return given
    kinds = [with_names_of(a.type, b.type, has_ids=has_ids) for a, b in zip(below, own, strict=True)]
    return nested.with_fields(given, [inner.with_type(kind) for inner, kind in zip(own, kinds, strict=True)])


def has_ids(schema: pa.Schema | None) -> bool:
    """Tell whether the columns of a file have numbers."""
    return any(_metadata(field, FIELD_ID) for field in schema or ())


def _is_same(wanted: pa.Field, given: pa.Field, has_ids: bool) -> bool:
    number = _metadata(wanted, FIELD_ID)
    if number and has_ids:
        return _metadata(given, FIELD_ID) == number
    names = _metadata(wanted, NAMES)
    return given.name in names.decode().split("\n") if names is not None else given.name == wanted.name


def _metadata(of: pa.Field, key: bytes) -> bytes | None:
    return (of.metadata or {}).get(key)


def _below(kind: pa.DataType) -> list[pa.Field]:
    return list(kind) if pa.types.is_struct(kind) else []
