"""Deletion vectors of Delta Lake: which files have one, by the log.

The newest `add` of a file says it. Which files the table has at all, the package deltalake says.
Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
"""

import base64
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.parquet as pq

from etl.tables.data_file import Deletes
from etl.tables.lake.places import Places
from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.raw_tables import reading

_VECTOR = pa.struct(
    [
        *(("storageType", pa.string()), ("pathOrInlineDv", pa.string())),
        *(("offset", pa.int64()), ("sizeInBytes", pa.int64())),
    ]
)
_ADD = pa.field("add", pa.struct([("path", pa.string()), ("deletionVector", _VECTOR)]))
_SIDECAR = pa.field("sidecar", pa.struct([("path", pa.string())]))
_BLOCK_BYTES = 64 << 20  # a line must fit
_UUID_CHARACTERS = 20
# Z85 and Python's base 85 differ in their characters only.
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85 = str.maketrans(_Z85, _B85)


def deletion_vectors(
    log: Iterable[str], paths: Iterable[str], places: Places
) -> dict[str, tuple[Deletes, ...]]:
    """Return the deletion vector of each file that has one, by its path; `log` is in order.

    `paths` are those of all files of the table.
    """
    newest: dict[str, Any] = {}
    for uri in log:
        newest.update(_adds(uri))
    vectors: dict[str, tuple[Deletes, ...]] = {}
    for path in paths:
        if path not in newest:  # else its deleted rows would come back
            raise FormatError(f"{places.root}: expected the file {path} in the log, found none of that name")
        if vector := newest[path]:
            vectors[path] = (_deletes(vector, places),)
    return vectors


def decoded(text: str) -> bytes:
    """Return the bytes that a text in Z85 means."""
    try:
        return base64.b85decode(text.translate(_AS_B85))
    except ValueError as error:
        raise FormatError(f"expected Z85 in a deletion vector, found {text[:40]!r}: {error}") from error


def sidecars_of(checkpoint: str) -> list[str]:
    """List the names of the files in `_sidecars` that a checkpoint consists of, beside itself."""
    return [row["path"] for row in _actions(checkpoint, _SIDECAR)]


def _adds(uri: str) -> Iterator[tuple[str, Any]]:
    return ((row["path"], row.get("deletionVector")) for row in _actions(uri, _ADD))


def _actions(uri: str, field: pa.Field) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind in a file of the log; `field` has the kind and its fields."""
    with reading(uri), storage.open_input(uri) as stream:
        if uri.endswith(".json"):
            options = pajson.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
            parsing = pajson.ParseOptions(
                explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
            )
            batches = iter(pajson.open_json(stream, options, parsing))
        else:
            parquet = pq.ParquetFile(stream)
            schema = parquet.schema_arrow
            kind = schema.field(field.name).type if field.name in schema.names else pa.struct([])
            there = {inner.name for inner in kind} & {inner.name for inner in field.type}
            if not there:
                return
            names = [f"{field.name}.{name}" for name in there]
            batches = parquet.iter_batches(columns=names, use_threads=False)
        for batch in batches:
            yield from batch.column(field.name).drop_null().to_pylist()


def _deletes(vector: dict[str, Any], places: Places) -> Deletes:
    kind, text = vector["storageType"], vector["pathOrInlineDv"] or ""
    offset, num_bytes = vector["offset"] or 0, vector["sizeInBytes"] or 0
    if num_bytes <= 0 or offset < 0 or not text:
        raise FormatError(
            f"{places.root}: expected a deletion vector with a text, a size and an offset from 0 on, found "
            f"{text[:40]!r}, {num_bytes} and {offset}"
        )
    if kind == "i":
        return Deletes("delta inline", text, num_bytes=num_bytes)
    if kind == "u":
        prefix, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        if len(encoded) < _UUID_CHARACTERS:
            raise FormatError(
                f"{places.root}: expected the {_UUID_CHARACTERS} characters of a deletion vector's UUID, "
                f"found {encoded!r}"
            )
        name = f"deletion_vector_{uuid.UUID(bytes=decoded(encoded))}.bin"
        path = f"{prefix}/{name}" if re.fullmatch(r"\w+", prefix) else name
    elif kind == "p":
        path = unquote(text)
    else:
        raise FormatError(f"{places.root}: expected a deletion vector of kind u, i or p, found {kind!r}")
    return Deletes("delta", places.uri_of(path), offset=offset, num_bytes=num_bytes)
