"""Positions of the rows of a data file that its table's log has deleted.

    Iceberg  parquet with file_path, pos: for many data files; or Puffin: bitmaps, one per data file
    Delta    bitmaps in deletion_vector_{uuid}.bin, or in the log itself

A bitmap is a Roaring bitmap of 64 bits in its portable form.
Sources: https://iceberg.apache.org/spec/#position-delete-files, https://iceberg.apache.org/puffin-spec/,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format
"""

import struct
import zlib
from collections.abc import Iterable

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.tables.blocks import BLOCK_ROWS
from etl.tables.data_file import Deletes
from etl.tables.lake.delta_deletes import decoded
from etl.tables.lake.packages import imported
from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds
from graphmill.storage.as_json import Int64

_MAGIC = 1681511377
_MAX_BYTES = 1 << 30


def deleted_rows(deletes: Iterable[Deletes]) -> Int64:
    """Return the positions of all deleted rows of a data file, ascending, each once.

    Raises:
        FormatError: a file of positions is damaged.
        NotFoundError: such a file is missing.
    """
    found = [np.zeros(0, np.int64), *map(_read, deletes)]
    return np.unique(np.concatenate(found))


def _read(deletes: Deletes) -> Int64:
    if deletes.kind == "positions":
        return _positions(deletes)
    if deletes.kind == "puffin":
        return _puffin(deletes)
    if deletes.kind == "delta inline":
        return _bitmap(decoded(deletes.place)[: deletes.num_bytes], "a deletion vector in the log")
    return _bitmap(_vector(deletes), deletes.place)


def _positions(deletes: Deletes) -> Int64:
    found = [np.zeros(0, np.int64)]
    names = ["file_path", "pos"]
    with storage.open_input(deletes.place) as stream:
        parquet = pq.ParquetFile(stream)
        rows = bounds.batch_rows(parquet, deletes.place, names, BLOCK_ROWS)
        for batch in parquet.iter_batches(rows, columns=names, use_threads=False):
            found.append(batch["pos"].filter(pc.equal(batch["file_path"], deletes.of_file)).to_numpy())
    return np.concatenate(found)


def _puffin(deletes: Deletes) -> Int64:
    imported("pyiceberg.table.deletion_vector", "iceberg", f"{deletes.place}: a file of deletes of Iceberg")
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    try:
        vectors = deletion_vectors_from_puffin_file(PuffinFile(storage.read_bytes(deletes.place)))
    except (ValueError, KeyError, IndexError) as error:
        raise FormatError(f"{deletes.place}: expected deletion vectors in Puffin: {error}") from error
    own = [each.to_vector().to_numpy() for each in vectors if each.referenced_data_file == deletes.of_file]
    return np.concatenate([np.zeros(0, np.int64), *own]).astype(np.int64)


def _vector(deletes: Deletes) -> bytes:
    """Read a vector: its size, its bytes, and their checksum."""
    if not 0 < deletes.num_bytes <= _MAX_BYTES or deletes.offset < 0:
        raise FormatError(f"{deletes.place}: expected at most {_MAX_BYTES} bytes, found {deletes.num_bytes}")
    with storage.open_input(deletes.place) as stream:
        content: bytes = stream.read_at(deletes.num_bytes + 8, deletes.offset)
    body = content[4:-4]
    is_whole = len(content) == deletes.num_bytes + 8
    if not is_whole or struct.unpack(">I", content[-4:])[0] != zlib.crc32(body):
        raise FormatError(f"{deletes.place}: the deletion vector at byte {deletes.offset} is damaged")
    return body


def _bitmap(body: bytes, where: str) -> Int64:
    pyroaring = imported("pyroaring", "delta", f"{where}: a deletion vector of Delta Lake")
    if len(body) < 4 or struct.unpack("<I", body[:4])[0] != _MAGIC:
        raise FormatError(f"{where}: expected a deletion vector, found other bytes")
    try:
        bitmap = pyroaring.BitMap64.deserialize(body[4:])
    except (ValueError, TypeError) as error:
        raise FormatError(f"{where}: expected a Roaring bitmap: {error}") from error
    return np.fromiter(bitmap, np.int64, len(bitmap))
