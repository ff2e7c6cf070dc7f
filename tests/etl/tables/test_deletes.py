"""Files of deleted rows that a table of Iceberg may name: damaged, senseless, and larger than they look."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from etl.tables.data_file import Deletes
from etl.tables.lake.deletes import DeletedRows
from graphmill.errors import FormatError


def puffin(folder: Path, bitmap: bytes, **described: Any) -> Deletes:
    """Write a file of Puffin with one deletion vector, whose description has these changes."""
    vector = b"\xd1\xd3\x39\x64" + bitmap
    blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    whole = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
    whole |= {"offset": 4, "length": len(blob), "properties": {"referenced-data-file": "mine"}}
    footer = json.dumps({"blobs": [whole | described]}).encode()
    path = folder / "deletes.puffin"
    path.write_bytes(b"PFA1" + blob + b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1")
    return Deletes("puffin", str(path), "mine")


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"offset": -4}, "from byte 0 on, found .* from byte -4"),
        ({"length": -1}, "expected a deletion vector of 1 to"),
        ({"length": 1 << 40}, "expected a deletion vector of 1 to"),
        ({"length": 100}, "is damaged"),
        ({"compression-codec": "zstd"}, "without compression"),
        ({"type": "apache-datasketches-theta-v1"}, "expected deletion vectors"),
        ({"offset": "x"}, "expected deletion vectors in Puffin"),
    ],
)
def test_a_vector_in_puffin_that_makes_no_sense(
    tmp_path: Path, described: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        DeletedRows([puffin(tmp_path, BitMap64([1]).serialize(), **described)])


def test_a_vector_of_a_few_bytes_stays_small(tmp_path: Path) -> None:
    """The key 2^31 - 1 stands for positions near 2^63: readers that fill the gap take all memory."""
    last = struct.pack("<QI", 1, 2**31 - 1) + BitMap64([7]).serialize()[12:]
    mask = DeletedRows([puffin(tmp_path, last)]).mask(((2**31 - 1) << 32) + 5, 4)
    assert mask.tolist() == [True, True, False, True]


def test_positions(tmp_path: Path) -> None:
    path = str(tmp_path / "deletes.parquet")
    rows = {"file_path": ["mine", "other", "mine", None], "pos": [5, 6, 1 << 40, 7]}
    pq.write_table(pa.table(rows), path)
    deleted = DeletedRows([Deletes("positions", path, "mine")])
    assert np.flatnonzero(~deleted.mask(0, 10)).tolist() == [5]
    assert np.flatnonzero(~deleted.mask((1 << 40) - 1, 3)).tolist() == [1]
    assert DeletedRows([]).mask(3, 2).all()
    pq.write_table(pa.table(rows | {"pos": [-5, 6, 1, 7]}), path)
    with pytest.raises(FormatError, match="expected positions from 0 on, found -5"):
        DeletedRows([Deletes("positions", path, "mine")])
