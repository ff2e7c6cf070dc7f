"""Loops of buckets: written with the edges, and found by reading them where no writer has told."""

from pathlib import Path

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill.ask.edges import loopless
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets import loops as edge_loops
from graphmill.formats.edge_buckets.loops import LOOPS, read_loops
from graphmill.vocab import Bucket

BUCKET = Bucket(0, 0)
EDGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)), max_size=30)


def forget_loops(path: str | Path, bucket: Bucket) -> None:
    """Make the bucket one of another program."""
    with h5py.File(edge_buckets.bucket_uri(str(path), bucket), "r+") as hdf5:
        del hdf5[LOOPS]


@given(EDGES, st.integers(1, 31))
def test_loops_are_written_in_any_pieces_and_found_without(tmp_path_factory, edges, size) -> None:
    folder = tmp_path_factory.getbasetemp() / "loops"
    columns = np.array(edges, np.int32).reshape(-1, 3)
    with edge_buckets.new_bucket(str(folder), BUCKET, len(edges)) as writer:
        for start in range(0, len(edges), size):
            writer.append(Edges(*columns[start : start + size].T))
    expected = {rel for lhs, rel, rhs in edges if lhs == rhs}
    assert read_loops(str(folder), BUCKET) == expected
    forget_loops(folder, BUCKET)
    assert read_loops(str(folder), BUCKET) == expected


def test_edges_are_read_some_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(edge_loops, "READ_EDGES", 3)
    rel = np.arange(10)
    edge_buckets.write_bucket(str(tmp_path), BUCKET, Edges(rel // 2, rel, np.where(rel < 9, rel // 3, 4)))
    forget_loops(tmp_path, BUCKET)
    assert read_loops(str(tmp_path), BUCKET) == {0, 1, 3, 9}


def test_lists_of_features_are_no_loops() -> None:
    assert edge_loops.find_loops(*np.array([[-1, 2], [0, 1], [-1, 2]])).tolist() == [1]


def test_equal_rows_of_other_types_and_partitions_are_no_loops(tmp_path, caplog) -> None:
    """Edges of `one`, with one partition, are in all buckets; of `many` only the diagonal has loops."""
    names = {"one": 1, "many": 3}
    relations = [{"name": f"{a}-{b}", "lhs": a, "rhs": b} for a in names for b in names]
    entities = {name: {"num_partitions": num} for name, num in names.items()}
    raw = {"output": str(tmp_path), "entities": entities, "relations": relations, "dimension": 2}
    config = configuration.from_mapping(raw)
    assert loopless(config, range(4)) == (0, 3)  # nobody has written edges
    assert "there are no training edges" in caplog.text
    (path,) = config.edge_paths
    for lhs in range(3):
        for rhs in range(3):
            rel = [1, 2, *([3] if lhs != rhs else [])]
            edges = [np.array(each) for each in ([5] * len(rel), rel, [5] * len(rel))]
            edge_buckets.write_bucket(path, Bucket(lhs, rhs), Edges(*edges))
    assert loopless(config, range(4)) == (0, 3)
    edge_buckets.write_bucket(path, Bucket(2, 1), Edges(*np.array([[5], [0], [5]])))
    assert loopless(config, range(4)) == (3,)
    edge_buckets.write_bucket(path, Bucket(1, 1), Edges(*np.array([[5], [3], [5]])))
    assert loopless(config, range(4)) == ()
    assert loopless(config, [1, 2]) == ()
