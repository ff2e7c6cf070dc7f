"""Parquet files of many row groups are read in the memory of a few."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.formats.parquet import iter_columns, open_parquet
from train.tables.vector_files import VectorFiles

NUM_GROUPS, ROWS, LENGTH = 30, 1000, 256
GROUP_BYTES = 4 * ROWS * LENGTH


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """30 MB of vectors, in row groups of 1 MB."""
    path = str(tmp_path_factory.mktemp("vectors") / "v.parquet")
    schema = pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.float32(), LENGTH))])
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for group in range(NUM_GROUPS):
            ids = pa.array([f"{group}-{row}" for row in range(ROWS)])
            flat = pa.array(rng.random(ROWS * LENGTH, dtype=np.float32))
            vectors = pa.FixedSizeListArray.from_arrays(flat, LENGTH)
            writer.write_table(pa.table([ids, vectors], schema=schema))
    return path


def _columns(uri: str) -> Iterator[int]:
    with open_parquet(uri) as parquet:
        for _, (ids, _) in iter_columns(parquet, uri, ["id", "embedding"], ROWS):
            yield len(ids)


def _vectors(uri: str) -> Iterator[int]:
    for batch in VectorFiles(uri).batches():
        yield len(batch.ids)


@pytest.mark.parametrize("read", [_columns, _vectors])
def test_row_groups_that_were_read_are_freed(uri: str, read: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(read)
    monkeypatch.setattr("train.tables.vector_files.BATCH_BYTES", GROUP_BYTES)
    before, most, num_rows = pa.total_allocated_bytes(), 0, 0
    for num in read(uri):
        most, num_rows = max(most, pa.total_allocated_bytes() - before), num_rows + num
    assert num_rows == NUM_GROUPS * ROWS
    assert most < 8 * GROUP_BYTES
