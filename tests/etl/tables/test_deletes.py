"""Files of deleted rows that a table of Iceberg may name: damaged, senseless, and larger than they look."""

import struct
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
from tests.etl.tables.lakes import puffin


def deletes_in(folder: Path, bitmap: bytes, **described: Any) -> Deletes:
    (folder / "deletes.puffin").write_bytes(puffin({"mine": bitmap}, **described))
    return Deletes("puffin", str(folder / "deletes.puffin"), "mine")


def test_a_vector_in_puffin_that_makes_no_sense(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"offset": -4}, "from byte 0 on, found .* from byte -4"),
        ({"length": -1}, "expected a deletion vector of 1 to"),
        ({"length": 1 << 40}, "expected a deletion vector of 1 to"),
        ({"length": 100}, "is damaged"),
        ({"compression-codec": "zstd"}, "without compression"),
        ({"type": "apache-datasketches-theta-v1"}, "expected deletion vectors"),
        ({"offset": "x"}, "expected deletion vectors in Puffin"),
    ]
    for described, message in cases:
        with pytest.raises(FormatError, match=message):
            DeletedRows([deletes_in(tmp_path, BitMap64([1]).serialize(), **described)])


def test_a_vector_of_a_few_bytes_stays_small(tmp_path: Path) -> None:
    """The key 2^31 - 1 stands for positions near 2^63: readers that fill the gap take all memory."""
    last = struct.pack("<QI", 1, 2**31 - 1) + BitMap64([7]).serialize()[12:]
    mask = DeletedRows([deletes_in(tmp_path, last)]).mask(((2**31 - 1) << 32) + 5, 4)
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
