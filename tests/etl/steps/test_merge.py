"""Duplicates and removed edges are found exactly; the order of rows moves edges within buckets alone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from etl.steps.left_out import find_edges
from tests.etl.graphs import config_of, files_under, read_raw_edges, write_parquet

Edge = tuple[int, int, int]
ROWS = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=20),
    ),
    max_size=6,
)


@given(pieces=ROWS, budget=st.integers(0, 60), drops=st.booleans())
def test_the_first_of_equal_edges_stays_unless_it_is_removed(
    pieces: list[tuple[bool, list[Edge]]], budget: int, drops: bool
) -> None:
    def read() -> Iterator[tuple[np.ndarray, bool]]:
        for removes, edges in pieces:
            yield np.array(edges, np.int32).reshape(-1, 3), removes

    expected: list[bool] = []
    live: list[tuple[int, Edge]] = []
    for removes, edges in pieces:
        for edge in edges:
            if removes:
                for place, other in live:
                    expected[place] &= other != edge
                live = [each for each in live if each[1] != edge]
            else:
                live.append((len(expected), edge))
                expected.append(True)
    if drops:
        for number, (place, edge) in enumerate(live):
            expected[place] = edge not in [other for _, other in live[:number]]
    num_rows = sum(len(edges) for _, edges in pieces)
    assert find_edges(read, num_rows, budget, drops=drops).tolist() == expected


NAMES = st.text("abé", min_size=1, max_size=3)
NAMED_ROWS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=40)


@pytest.mark.slow
@given(rows=NAMED_ROWS, order=st.randoms(use_true_random=False), cut=st.integers(0, 40))
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
