"""Positions of the rows of a data file that its table's log has deleted.

    Iceberg  parquet with file_path, pos: for many data files; or Puffin: bitmaps, one per data file
    Delta    bitmaps in deletion_vector_{uuid}.bin, or in the log itself

A bitmap is a Roaring bitmap of 64 bits in its portable form.
Sources: https://iceberg.apache.org/spec/#position-delete-files, https://iceberg.apache.org/puffin-spec/,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.tables.blocks import BLOCK_ROWS
from etl.tables.data_file import Deletes
from etl.tables.lake.delta import decoded
from etl.tables.lake.snapshot import imported
from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds
from graphmill.formats.raw_tables import reading

_MAGIC = 1681511377
_MAX_BYTES = 1 << 30


class DeletedRows:
    """Positions of the deleted rows of a data file, as a bitmap: a few bytes of a log may mean billions."""

    def __init__(self, deletes: Iterable[Deletes]) -> None:
        self._bitmaps = [bitmap for delete in deletes for bitmap in _read(delete)]

    def mask(self, first_row: int, num_rows: int) -> npt.NDArray[np.bool_]:
        """Which of `num_rows` rows from `first_row` on are kept, bool [num_rows]."""
        mask_N = np.ones(num_rows, bool)
        for bitmap in self._bitmaps:
            here = bitmap & type(bitmap)(range(first_row, first_row + num_rows))
            mask_N[np.fromiter(here, np.int64, len(here)) - first_row] = False
        return mask_N


def _read(deletes: Deletes) -> Iterator[Any]:
    """Yield bitmaps of positions, which are pyroaring's."""
    if deletes.kind == "positions":
        yield from _positions(deletes)
    elif deletes.kind == "puffin":
        yield from (_bitmap(_vector(vector), deletes.place) for vector in _puffin(deletes))
    elif deletes.kind == "delta inline":
        yield _bitmap(decoded(deletes.place)[: deletes.num_bytes], "a deletion vector in the log")
    else:
        yield _bitmap(_vector(deletes), deletes.place)


def _positions(deletes: Deletes) -> Iterator[Any]:
    pyroaring = imported("pyroaring", "iceberg", f"{deletes.place}: a file of deletes of Iceberg")
    bitmap = pyroaring.BitMap64()
    names = ["file_path", "pos"]
    with storage.open_input(deletes.place) as stream, reading(deletes.place):
        parquet = pq.ParquetFile(stream)
        rows = bounds.batch_rows(parquet, deletes.place, names, BLOCK_ROWS)
        for batch in parquet.iter_batches(rows, columns=names, use_threads=False):
            own = batch["pos"].filter(pc.equal(batch["file_path"], deletes.of_file)).drop_null().to_numpy()
            if len(own) and own.min() < 0:
                raise FormatError(f"{deletes.place}: expected positions from 0 on, found {own.min()}")
            bitmap |= pyroaring.BitMap64(own.astype(np.uint64))
    yield bitmap


def _puffin(deletes: Deletes) -> list[Deletes]:
    """Find the vectors of a data file in a file of Puffin, which have the form of Delta's."""
    imported("pyiceberg.table.puffin", "iceberg", f"{deletes.place}: a file of deletes of Iceberg")
    from pyiceberg.table.puffin import PuffinFile

    try:
        blobs = PuffinFile(storage.read_bytes(deletes.place, _MAX_BYTES)).footer.blobs
    except (ValueError, IndexError) as error:
        raise FormatError(f"{deletes.place}: expected deletion vectors in Puffin: {error}") from error
    own = [blob for blob in blobs if blob.properties.get("referenced-data-file") == deletes.of_file]
    if any(blob.type != "deletion-vector-v1" or blob.compression_codec for blob in own):
        raise FormatError(f"{deletes.place}: expected deletion vectors without compression in Puffin")
    return [replace(deletes, offset=blob.offset, num_bytes=blob.length - 8) for blob in own]


def _vector(deletes: Deletes) -> bytes:
    if not 0 < deletes.num_bytes <= _MAX_BYTES or deletes.offset < 0:
        raise FormatError(
            f"{deletes.place}: expected a deletion vector of 1 to {_MAX_BYTES:,} bytes from byte 0 on, found "
            f"{deletes.num_bytes:,} bytes from byte {deletes.offset}"
        )
    with storage.open_input(deletes.place) as stream:
        content: bytes = stream.read_at(deletes.num_bytes + 8, deletes.offset)
    body = content[4:-4]
    is_whole = len(content) == deletes.num_bytes + 8
    if not is_whole or struct.unpack(">I", content[-4:])[0] != zlib.crc32(body):
        raise FormatError(f"{deletes.place}: the deletion vector at byte {deletes.offset} is damaged")
    return body


def _bitmap(body: bytes, where: str) -> Any:
    pyroaring = imported("pyroaring", "delta", f"{where}: a deletion vector of Delta Lake")
    if len(body) < 4 or struct.unpack("<I", body[:4])[0] != _MAGIC:
        raise FormatError(f"{where}: expected a deletion vector, found other bytes")
    try:
        return pyroaring.BitMap64.deserialize(body[4:])
    except (ValueError, TypeError) as error:
        raise FormatError(f"{where}: expected a Roaring bitmap: {error}") from error
