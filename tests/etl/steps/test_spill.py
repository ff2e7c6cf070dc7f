"""Intermediate files: compressed as configured, read back batch by batch."""

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from etl.steps import spill
from graphmill.config.sections.etl import Compression, EtlConfig

SCHEMA = pa.schema([("id", pa.string())])


IDS = [f"https://example.org/page/{n % 100}" for n in range(10_000)]


def write(path: Path, compression: Compression) -> int:
    """Bytes of a file of three slots, the second one empty."""
    etl = EtlConfig.model_construct(spill_compression=compression)
    batch = pa.record_batch([pa.array(IDS)], schema=SCHEMA)
    spill.write_slots(str(path), SCHEMA, [(batch, np.array([4_000, 0, 6_000]))], etl)
    return path.stat().st_size


@pytest.mark.parametrize("compression", get_args(Compression))
def test_slots_come_back(tmp_path: Path, compression: Compression) -> None:
    write(tmp_path / "a", compression)

    def read(*slots: int) -> list[str]:
        return spill.read_slots(str(tmp_path / "a"), SCHEMA, range(*slots), 3)["id"].to_pylist()

    assert read(0, 3) == IDS
    assert read(0, 1) == IDS[:4_000]
    assert read(1, 2) == []
    assert read(1, 3) == IDS[4_000:]


def test_compressed_files_are_smaller(tmp_path: Path) -> None:
    sizes = {compression: write(tmp_path / compression, compression) for compression in get_args(Compression)}
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"] / 3
