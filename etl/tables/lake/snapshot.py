"""Interface of a snapshot: one state of a table, whose log says which files and rows belong to it."""

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from etl.tables import nested
from etl.tables.data_file import DataFile
from etl.tables.lake.places import Places
from graphmill.config.sections.etl import Filters


class Snapshot(Protocol):
    """One state of a table."""

    @property
    def places(self) -> Places:
        """Folders that the table's files may lie in."""

    @property
    def name(self) -> str:
        """Words for the snapshot, other ones for another state: `version 12, ...`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table; metadata of the fields says which column of a file each is."""

    def files(self, filters: Filters) -> list[DataFile]:
        """List the files that may have rows that pass the filters.

        Raises:
            RawTableError: the log cannot be read, or has deletes that are not applied.
            FormatError: the log names a file outside the table's folder.
        """


def described(snapshot: Snapshot) -> dict[str, Any]:
    """Describe a snapshot for a fingerprint, as JSON types; no data file is listed or read."""
    return {"uri": snapshot.places.root, "snapshot": snapshot.name}


def marked(schema: pa.Schema, mark: Callable[[pa.Field], dict[bytes, bytes]]) -> pa.Schema:
    """Return the schema with other metadata of its fields, and of those in structs, lists and maps."""

    def with_mark(field: pa.Field) -> pa.Field:
        below = list(map(with_mark, nested.fields_in(field.type)))
        return pa.field(field.name, nested.with_fields(field.type, below), metadata=mark(field))

    return pa.schema(list(map(with_mark, schema)))
