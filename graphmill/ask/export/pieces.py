"""Pieces of an export, and the tables of codecs.

{folder}/{type}/_scales.npy, _centroids.npy the tables of a fitted codec
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client

from graphmill import storage
from graphmill.ask.entities import EntityTable
from graphmill.ask.export.codecs import Array, Codec, num_codes_of
from graphmill.ask.export.fitting import Prepare, codec_of, fit
from graphmill.ask.export.formats import Format
from graphmill.ask.export.settings import Precision
from graphmill.ask.export.source import Source
from graphmill.errors import FormatError
from graphmill.run.work import Work

CODEC_FILES = (r"_scales\.npy", r"_centroids\.npy")
_TABLES: Mapping[Precision, tuple[str, ...]] = {"int8": ("scales",), "pq": ("centroids",)}


def write(client: Client, kind: Format, sources: Sequence[Source], work: Work) -> list[dict[str, Any]]:
    """Write all pieces, one task each; return their types, checksums and bytes."""
    tasks = {
        f"{storage.file_name(source.entity_type)}-{partition}": (kind, source, partition, work.folder)
        for source in sources
        for partition in range(1 if kind.is_whole else len(source.table.parts))
    }
    return work.run_tasks(client, write_piece, tasks, description="exporting", unit="pieces")


def write_piece(kind: Format, source: Source, partition: int, folder: str) -> dict[str, Any]:
    """Write a piece; return its type, checksums and bytes. A Dask task."""
    files = kind.write(source, partition, folder)
    return {"entity_type": source.entity_type, "files": files, "bytes": sum(map(size_of, files))}


def codec(
    client: Client,
    folder: str,
    table: EntityTable,
    precision: Precision,
    num_bytes: int | None,
    prepare: Prepare,
    *,
    has_scale: bool,
) -> Codec:
    """Fit the codec of a type, or read the tables of an earlier fit; write the tables."""
    names = _TABLES.get(precision, ())
    uris = {name: storage.join(folder, table.entity_type, f"_{name}.npy") for name in names}
    if not all(storage.exists(uri) for uri in uris.values()):
        fitted = fit(client, table, precision, num_bytes, prepare, has_scale=has_scale)
        for name, array in fitted.tables().items():
            write_array(uris[name], array)
    tables = {name: read_array(uri) for name, uri in uris.items()}
    num_codes = num_codes_of(table.dimension, num_bytes, has_scale=has_scale)
    return codec_of(precision, table.dimension, tables, num_codes, has_scale=has_scale)


def table_uris(folder: str, entity_type: str, codec: Codec) -> dict[str, str]:
    """The files of a codec's tables, by name."""
    return {name: storage.join(folder, entity_type, f"_{name}.npy") for name in codec.tables()}


def write_array(uri: str, array: Array) -> None:
    """Write a file of numpy."""
    with storage.atomic_output(uri) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def read_array(uri: str) -> Array:
    """Read a file of numpy."""
    try:
        return np.lib.format.read_array(io.BytesIO(storage.read_bytes(uri)), allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{uri}: expected an array of numpy, found something else: {error}") from error


def size_of(uri: str) -> int:
    """Bytes of a file."""
    status = storage.status(uri)
    return status.size_bytes if status else 0
