"""Intermediate files: compressed as configured, read back batch by batch."""

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from etl.config import Compression, EtlConfig
from etl.steps import spill

SCHEMA = pa.schema([("id", pa.string())])


def write(path: Path, compression: Compression) -> int:
    """Bytes of a file of three batches, the second one empty."""
    ids = pa.array([f"https://example.org/page/{n % 100}" for n in range(10_000)])
    batch = pa.record_batch([ids], schema=SCHEMA)
    spill.write_batches(
        str(path),
        SCHEMA,
        (batch.slice(*at) for at in ((0, 4000), (4000, 0), (4000,))),
        EtlConfig.model_construct(spill_compression=compression),
    )
    return path.stat().st_size


@pytest.mark.parametrize("compression", get_args(Compression))
def test_batches_come_back(tmp_path: Path, compression: Compression) -> None:
    write(tmp_path / "a", compression)
    ids = spill.read_batches(str(tmp_path / "a"))["id"].to_pylist()
    assert ids == [f"https://example.org/page/{n % 100}" for n in range(10_000)]
    assert spill.read_batches(str(tmp_path / "a"), [2, 1])["id"].to_pylist() == ids[4000:]
    assert [len(batch) for batch in spill.iter_batches(str(tmp_path / "a"))] == [4000, 0, 6000]


def test_compressed_files_are_smaller(tmp_path: Path) -> None:
    sizes = {compression: write(tmp_path / compression, compression) for compression in get_args(Compression)}
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"] / 3
