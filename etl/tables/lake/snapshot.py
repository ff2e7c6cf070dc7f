"""Interface of a snapshot: one state of a table, whose log says which files and rows belong to it.

Files that a log names are inside the table's folder, or in folders that the user allows: a log may come from
anybody. It may also name files where the table once was: such a path below the recorded folder leads to the
same path below the table's folder.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from etl.tables import nested
from etl.tables.data_file import DataFile
from graphmill import storage
from graphmill.config.sections.etl import Filters
from graphmill.errors import FormatError, optional
from graphmill.storage.uri import ONE_SLASH

_S3 = re.compile(r"s3[an]://")


@dataclass(frozen=True)
class Places:
    """Folders that files of a table may lie in."""

    root: str
    """Folder of the table."""
    recorded: str
    """Folder of the table, as its log says."""
    allowed: tuple[str, ...]
    """Further folders that the user allows."""

    def uri_of(self, path: str) -> str:
        """Return the URI of a file that the log names."""
        uri, recorded = plain_uri(path), plain_uri(self.recorded).rstrip("/") + "/"
        if self.recorded and uri.startswith(recorded):
            uri = storage.join(self.root, uri.removeprefix(recorded).lstrip("/"))
        uri = storage.join(self.root, uri)
        if not self.hold(uri):
            raise FormatError(
                f"{self.root}: its log names the file {path}, outside the table's folder; if that is meant, "
                "name the file's folder in the table's data_path"
            )
        return uri

    def hold(self, uri: str) -> bool:
        """Tell whether a file lies in one of the folders."""
        return any(storage.within(folder, uri) for folder in (self.root, *self.allowed))


class Snapshot(Protocol):
    """One state of a table."""

    @property
    def places(self) -> Places:
        """Folders that the table's files may lie in."""

    @property
    def name(self) -> str:
        """Words for the snapshot, other ones for another state: `version 12, ...`."""

    def files(self, filters: Filters) -> list[DataFile]:
        """List the files that may have rows that pass the filters."""


def marked(schema: pa.Schema, mark: Callable[[pa.Field], dict[bytes, bytes]]) -> pa.Schema:
    """Return the schema with other metadata of its fields, and of those in structs, lists and maps."""

    def with_mark(field: pa.Field) -> pa.Field:
        below = list(map(with_mark, nested.fields_in(field.type)))
        return pa.field(field.name, nested.with_fields(field.type, below), metadata=mark(field))

    return pa.schema(list(map(with_mark, schema)))


def plain_uri(path: str) -> str:
    """Return a path as Java writes it (`file:/x`, `s3a://b/x`) as a URI of ours."""
    if match := ONE_SLASH.match(path):
        rest = path[match.end() - 1 :]
        return rest if match[1] == "file" else f"{match[1]}://{rest}"
    return _S3.sub("s3://", path, count=1)


def imported(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package."""
    package = module.partition(".")[0]
    missing = f"{what} is read with the package {package}; install it: pip install 'graphmill[{extra}]'"
    return optional(module, missing)
