"""Columns inside structs, named by dotted paths: `event.user`.

A path is the name of a column, and the names of the fields that lead from there to a value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

Path = tuple[str, ...]


def find(types: Mapping[str, pa.DataType], dotted: str) -> Path | None:
    """Find the value that a dotted name leads to; names may have dots, and the longest that fits counts."""
    parts = dotted.split(".")
    for number in range(len(parts), 0, -1):
        name, rest = ".".join(parts[:number]), ".".join(parts[number:])
        if name in types:
            kind = types[name]
            if number == len(parts):
                return None if pa.types.is_struct(kind) else (name,)
            if below := find(_fields(kind), rest):
                return (name, *below)
    return None


def type_at(kind: pa.DataType, fields: Path) -> pa.DataType:
    """Return the type at the end of a path through structs."""
    for name in fields:
        kind = _fields(kind)[name]
    return kind


def known(names: Iterable[str], types: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Yield the dotted names of all values of these columns, for messages."""
    for name in names:
        fields = _fields(types.get(name))
        if not fields:
            yield name
        for below in known(fields, fields):
            yield f"{name}.{below}"


def joined(values: Iterable[tuple[Path, pa.DataType]]) -> dict[str, pa.DataType]:
    """Return the types of columns that hold just these values."""
    below: dict[str, list[tuple[Path, pa.DataType]]] = {}
    types: dict[str, pa.DataType] = {}
    for path, kind in values:
        types[path[0]] = kind
        if len(path) > 1:
            below.setdefault(path[0], []).append((path[1:], kind))
    return types | {name: pa.struct(list(joined(values).items())) for name, values in below.items()}


def fields_in(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the element of a list, or key and value of a map; else none."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []


def with_fields(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return the type with other `fields_in` it."""
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(fields[0].with_nullable(False), fields[1])
    if fields:
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(*fields)
    return kind


def _fields(kind: pa.DataType | None) -> dict[str, pa.DataType]:
    if kind is None or not pa.types.is_struct(kind):
        return {}
    return {field.name: field.type for field in kind}
