"""The order of rows and files moves edges within their buckets, and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import distributed
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from tests.etl.graphs import config_of, files_under, read_raw_edges, write_parquet

NAMES = st.text("abé", min_size=1, max_size=3)
ROWS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=40)


@pytest.mark.slow
@given(rows=ROWS, order=st.randoms(use_true_random=False), cut=st.integers(0, 40))
@settings(max_examples=8)
def test_rows_in_another_order(
    near_client: distributed.Client, tmp_path: Path, rows: list[tuple[str, str]], order: Any, cut: int
) -> None:
    def made(name: str, rows: list[tuple[str, str]], cut: int) -> tuple[dict[str, bytes], Any]:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        for number, part in enumerate((rows[:cut], rows[cut:])):
            ends = {"l": [lhs for lhs, _ in part], "t": [rhs for _, rhs in part]}
            if part:
                write_parquet(tmp_path / name / "raw" / f"{1 - number}.parquet", 9, **ends)
        config = config_of(
            tmp_path / name / "out",
            str(tmp_path / name / "raw"),
            entities={"node": 3},
            holdout={"test": 0.3},
            chunk_rows=10,
        )
        job.run(config, near_client)
        edges = {
            (split, bucket): sorted(found)
            for split in ("train", "test")
            for bucket, found in read_raw_edges(config, split).items()
        }
        return files_under(tmp_path / name / "out" / "entities"), edges

    shuffled = order.sample(rows, len(rows))
    assert made("one", rows, len(rows)) == made("two", shuffled, min(cut, len(rows)))
