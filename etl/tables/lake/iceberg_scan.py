"""Parts that pyiceberg scans a table with: our storage, read only, inside the table's folders; and filters.

It prunes manifests and files by a filter, which is an expression of its own.
"""

from functools import reduce
from typing import Any

from pyiceberg import expressions as ice
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT, Properties

from etl.tables.lake.snapshot import Places, plain_uri
from graphmill import storage
from graphmill.config.sections.etl import Filters
from graphmill.errors import StorageError

_OPERATORS: dict[str, Any] = {
    "==": ice.EqualTo,
    "=": ice.EqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
}
_LISTED: Any = ice.In
_IS_NULL: dict[str, Any] = {"==": ice.IsNull, "=": ice.IsNull, "!=": ice.NotNull}


class StorageIO(FileIO):
    """Reads files by `graphmill.storage`; with `places`, only files there."""

    def __init__(self, properties: Properties = EMPTY_DICT, places: Places | None = None) -> None:
        super().__init__(properties)
        self._places = places

    def new_input(self, location: str) -> InputFile:
        """Return a file to read; a FormatError refuses one outside the table's folders."""
        return _Input(
            location, plain_uri(location) if self._places is None else self._places.uri_of(location)
        )

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        raise StorageError(f"{location}: tables are only read")

    def delete(self, location: Any) -> None:
        """Refuse to delete."""
        raise StorageError(f"{location}: tables are only read")


class _Input(InputFile):
    def __init__(self, location: str, uri: str) -> None:
        super().__init__(location)
        self._uri = uri

    def __len__(self) -> int:
        status = storage.status(self._uri)
        return status.size_bytes if status else 0

    def exists(self) -> bool:
        return storage.exists(self._uri)

    def open(self, seekable: bool = True) -> Any:
        return storage.open_input(self._uri)


def expression(filters: Filters, schema: Schema) -> ice.BooleanExpression:
    """Return an expression that all rows that pass fulfil."""
    every = [reduce(ice.And, [_condition(schema, *one) for one in conditions]) for conditions in filters]
    return reduce(ice.Or, every)


def _condition(schema: Schema, column: str, operator: str, value: Any) -> ice.BooleanExpression:
    condition: Any
    if value is None:
        condition = _IS_NULL[operator](ice.Reference(column))
    elif operator == "in" and None not in value:
        condition = _LISTED(ice.Reference(column), literals=set(value))
    elif operator in _OPERATORS:
        condition = _OPERATORS[operator](ice.Reference(column), value)
    else:  # != and not in say little about a file
        return ice.AlwaysTrue()
    try:
        condition.bind(schema, case_sensitive=True)
    except (ValueError, TypeError):  # a value of another type than the column: compared row by row
        return ice.AlwaysTrue()
    bound: ice.BooleanExpression = condition
    return bound
