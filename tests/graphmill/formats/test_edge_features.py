"""Lists of features in bucket files: round trips, raw h5py, and damaged lists."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.vocab import Side
from tests.graphmill.formats.foreign_buckets import BUCKET, URI, foreign, replaced

EMPTY = Features(np.zeros(4, np.int64), np.zeros(0, np.int64))


def featurized_edges() -> Edges:
    """Three edges: features (7, 7), a plain entity, feature 2."""
    features = Features(np.array([0, 2, 2, 3]), np.array([7, 7, 2]))
    return Edges(np.array([-1, 5, -1]), np.zeros(3, int), np.arange(3), None, features)


def test_h5py_reads_features(tmp_path: Path) -> None:
    edge_buckets.write_bucket(str(tmp_path), BUCKET, featurized_edges())
    with h5py.File(tmp_path / URI) as hdf5:
        assert set(hdf5) == {"lhs", "rel", "rhs", "loops", "lhsd_offsets", "lhsd_data"}
        assert hdf5["lhs"][:].tolist() == [-1, 5, -1]
        assert hdf5["lhsd_offsets"][:].tolist() == [0, 2, 2, 3]
        assert hdf5["lhsd_data"][:].tolist() == [7, 7, 2]


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (2, 3), (1, 1), (3, 3)])
def test_features_come_back(tmp_path: Path, start: int, stop: int) -> None:
    edge_buckets.write_bucket(str(tmp_path), BUCKET, featurized_edges())
    found = edge_buckets.read_bucket(str(tmp_path), BUCKET, start, stop, takes_features=True)
    assert found.rhs_features is None
    assert found.lhs_features is not None
    lists = [[7, 7], [], [2]][start:stop]
    assert found.lhs_features.counts.tolist() == [len(each) for each in lists]
    assert found.lhs_features.indices.tolist() == [feature for each in lists for feature in each]
    assert found.lhs.tolist() == [-1, 5, -1][start:stop]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("lhsd_offsets", [0, 1, 2, 3]), "lhsd_offsets has 3"),
        (replaced("lhsd_offsets", [0, 2, 1, 2, 2]), "never fall"),
        (replaced("lhsd_offsets", [1, 1, 1, 1, 2]), "from 0"),
        (replaced("lhsd_offsets", [0, 0, 0, 0, 4]), "up to 3"),
        (replaced("lhsd_data", [0, -1, 2]), r"lhsd_data\[1\] is -1"),
        (replaced("lhs", [-1, -2, 1, 1]), r"lhs\[1\] is -2"),
        (lambda hdf5: hdf5.pop("lhsd_data"), "expected a dataset 'lhsd_data'"),
    ],
)
def test_features_that_are_wrong(tmp_path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    def featurized(hdf5: h5py.File) -> None:
        for name, values in {
            "lhs": [-1, 1, 1, 1],
            "lhsd_offsets": [0, 3, 3, 3, 3],
            "lhsd_data": [0, 1, 2],
        }.items():
            replaced(name, values)(hdf5)
        change(hdf5)

    with pytest.raises(FormatError, match=rf"edges_1_2\.h5: .*{message}"):
        edge_buckets.read_bucket(foreign(tmp_path, featurized), BUCKET, takes_features=True)


def test_empty_lists_come_back(tmp_path: Path) -> None:
    lists = Features(np.array([0, 0, 0, 1]), np.array([4]))
    edges = Edges(np.array([-1, 5, -1]), np.zeros(3, int), np.array([-1] * 3), None, lists, EMPTY)
    edge_buckets.write_bucket(str(tmp_path), BUCKET, edges)
    found = edge_buckets.read_bucket(str(tmp_path), BUCKET, takes_features=True)
    for side in Side:
        features, expected = found.features(side), edges.features(side)
        assert features is not None
        assert expected is not None
        np.testing.assert_array_equal(features.offsets, expected.offsets)
        np.testing.assert_array_equal(features.indices, expected.indices)
    assert (found.lhs.tolist(), found.rhs.tolist()) == ([-1, 5, -1], [-1] * 3)


def test_pbg_writes_no_lists_where_all_are_empty(tmp_path: Path) -> None:
    folder = foreign(tmp_path, replaced("lhs", [-1, 1, -1, 1]))
    found = edge_buckets.read_bucket(folder, BUCKET, 1, 4, takes_features=True)
    assert found.lhs_features is not None
    assert found.lhs_features.offsets.tolist() == [0, 0, 0, 0]
    assert found.rhs_features is None
    with pytest.raises(FormatError, match=r"lhs\[0\] is -1"):
        edge_buckets.read_bucket(folder, BUCKET)


def test_features_are_refused_unless_the_caller_takes_them(tmp_path: Path) -> None:
    edge_buckets.write_bucket(str(tmp_path), BUCKET, featurized_edges())
    with pytest.raises(FormatError, match=r"edges_1_2\.h5: its lhs side has lists of features"):
        edge_buckets.read_bucket(str(tmp_path), BUCKET)


def test_a_featurized_writer_refuses(tmp_path: Path) -> None:
    edges = featurized_edges()
    for num_features, appended, message in (
        ({Side.LHS: 2}, edges, "expected 2 lhs features, found at least 3"),
        ({Side.LHS: 4}, edges, "expected 4 lhs features, found 3"),
        ({}, edges, r"lhs\[0\] is -1"),
        ({Side.RHS: 3, Side.LHS: 3}, edges, "rhs features were announced"),
    ):
        with (
            pytest.raises(FormatError, match=message),
            edge_buckets.new_bucket(str(tmp_path), BUCKET, 3, num_features=num_features) as writer,
        ):
            writer.append(appended)


def test_features_out_of_range() -> None:
    with pytest.raises(FormatError, match="lhsd_data holds 7; expected less than 7"):
        edge_buckets.check_indices(featurized_edges(), URI, 7, 3, 1)
