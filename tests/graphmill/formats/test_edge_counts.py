"""Counts, loops and lists of features in bucket files: round trips, raw h5py, files of others, damage."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill import storage
from graphmill.ask.edges import loopless
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges, bucket_uri
from graphmill.formats.edge_buckets import files as edge_files
from graphmill.formats.edge_buckets.features import Features
from graphmill.formats.edge_buckets.files import COUNTS, LOOPS, read_loops, write_counts
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_file
from graphmill.vocab import Bucket, Side
from tests.graphmill.formats.foreign_buckets import BUCKET, URI, foreign, replaced

BUCKETS = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0)]


def edges_of(count: int) -> Edges:
    return Edges(*(np.arange(count),) * 3)


@pytest.fixture
def edge_path(tmp_path: Path) -> str:
    """Buckets of 3, 4 and 5 edges, with their counts and checksums."""
    checksums: Checksums = {}
    for bucket, count in zip(BUCKETS, (3, 4, 5), strict=True):
        with edge_buckets.new_bucket(str(tmp_path), bucket, count, checksums=checksums) as writer:
            writer.append(edges_of(count))
    write_counts(str(tmp_path), dict(zip(checksums, (3, 4, 5), strict=True)), checksums)
    storage.write_checksums(storage.manifest_of(str(tmp_path)).uri, checksums)
    return str(tmp_path)


def counts(edge_path: str) -> list[int]:
    return list(edge_buckets.count_all(edge_path, BUCKETS).values())


def test_no_bucket_is_opened(edge_path: str) -> None:
    for bucket in BUCKETS:
        Path(bucket_uri(edge_path, bucket)).write_bytes(b"no HDF5")
    assert counts(edge_path) == [3, 4, 5]


def test_a_replaced_bucket_is_never_read_with_an_old_count(edge_path: str) -> None:
    edge_buckets.write_bucket(edge_path, BUCKETS[1], edges_of(40))
    with pytest.raises(FormatError, match=r"edges_0_1\.h5: expected the checksum .* delete its line"):
        edge_buckets.read_bucket(edge_path, BUCKETS[1])
    manifest = Path(storage.manifest_of(edge_path).uri)
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if "edges_0_1.h5" not in line))
    assert counts(edge_path) == [3, 40, 5]
    assert len(edge_buckets.read_bucket(edge_path, BUCKETS[1])) == 40


def test_a_new_manifest_of_another_tool(edge_path: str) -> None:
    """`xxhsum` has written the checksums of all files again, after a bucket was replaced."""
    edge_buckets.write_bucket(edge_path, BUCKETS[1], edges_of(40))
    found = {str(path): of_file(str(path)) for path in Path(edge_path).glob("*.*")}
    storage.write_checksums(storage.manifest_of(edge_path).uri, found)
    assert counts(edge_path) == [3, 40, 5]


@pytest.mark.parametrize("missing", [COUNTS, storage.CHECKSUMS])
def test_without_counts_the_files_are_opened(edge_path: str, missing: str) -> None:
    (Path(edge_path) / missing).unlink()
    edge_buckets.write_bucket(edge_path, BUCKETS[2], edges_of(50))
    assert counts(edge_path) == [3, 4, 50]


def test_a_missing_bucket_is_an_error(edge_path: str) -> None:
    Path(bucket_uri(edge_path, BUCKETS[0])).unlink()
    with pytest.raises(FormatError, match=r"edges_0_0\.h5: there is no such bucket"):
        counts(edge_path)


@pytest.mark.parametrize("content", ["[]", '{"edges_0_0.h5": [-1, ""]}', '{"edges_0_0.h5": 3}', "no JSON"])
def test_counts_of_another_form(edge_path: str, content: str) -> None:
    uri = storage.join(edge_path, COUNTS)
    checksums = storage.read_checksums(storage.manifest_of(edge_path).uri)
    storage.write_text(uri, content, found := {})
    storage.write_checksums(storage.manifest_of(edge_path).uri, checksums | {COUNTS: found[uri]})
    with pytest.raises(FormatError, match=r"num_edges\.json: expected the edges and the checksum"):
        counts(edge_path)


EDGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)), max_size=30)


def forget_loops(path: str | Path, bucket: Bucket) -> None:
    """Make the bucket one of another program."""
    with h5py.File(edge_buckets.bucket_uri(str(path), bucket), "r+") as hdf5:
        del hdf5[LOOPS]


@given(EDGES, st.integers(1, 31))
def test_loops_are_written_in_any_pieces_and_found_without(tmp_path, edges, size) -> None:
    columns = np.array(edges, np.int32).reshape(-1, 3)
    with edge_buckets.new_bucket(str(tmp_path), BUCKET, len(edges)) as writer:
        for start in range(0, len(edges), size):
            writer.append(Edges(*columns[start : start + size].T))
    expected = {rel for lhs, rel, rhs in edges if lhs == rhs}
    assert read_loops(str(tmp_path), BUCKET) == expected
    forget_loops(tmp_path, BUCKET)
    assert read_loops(str(tmp_path), BUCKET) == expected


def test_edges_are_read_some_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(edge_files, "READ_EDGES", 3)
    rel = np.arange(10)
    edge_buckets.write_bucket(str(tmp_path), BUCKET, Edges(rel // 2, rel, np.where(rel < 9, rel // 3, 4)))
    forget_loops(tmp_path, BUCKET)
    assert read_loops(str(tmp_path), BUCKET) == {0, 1, 3, 9}
    assert edge_files.find_loops(*np.array([[-1, 2], [0, 1], [-1, 2]])).tolist() == [1]  # lists of features


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


EMPTY = Features(np.zeros(4, np.int64), np.zeros(0, np.int64))


def featurized_edges() -> Edges:
    """Three edges: features (7, 7), a plain entity, feature 2."""
    features = Features(np.array([0, 2, 2, 3]), np.array([7, 7, 2]))
    return Edges(np.array([-1, 5, -1]), np.zeros(3, int), np.arange(3), None, features)


def test_features_come_back_where_the_caller_takes_them(tmp_path: Path) -> None:
    edge_buckets.write_bucket(str(tmp_path), BUCKET, featurized_edges())
    with h5py.File(tmp_path / URI) as hdf5:
        assert set(hdf5) == {"lhs", "rel", "rhs", "loops", "lhsd_offsets", "lhsd_data"}
        assert hdf5["lhs"][:].tolist() == [-1, 5, -1]
        assert hdf5["lhsd_offsets"][:].tolist() == [0, 2, 2, 3]
        assert hdf5["lhsd_data"][:].tolist() == [7, 7, 2]
    for start, stop in ((0, 3), (1, 3), (2, 3), (1, 1), (3, 3)):
        found = edge_buckets.read_bucket(str(tmp_path), BUCKET, start, stop, takes_features=True)
        assert found.rhs_features is None
        lists = [[7, 7], [], [2]][start:stop]
        assert found.lhs_features.counts.tolist() == [len(each) for each in lists]
        assert found.lhs_features.indices.tolist() == [feature for each in lists for feature in each]
        assert found.lhs.tolist() == [-1, 5, -1][start:stop]
    with pytest.raises(FormatError, match=r"edges_1_2\.h5: its lhs side has lists of features"):
        edge_buckets.read_bucket(str(tmp_path), BUCKET)
    with pytest.raises(FormatError, match="lhsd_data holds 7; expected less than 7"):
        edge_buckets.check_indices(featurized_edges(), URI, 7, 3, 1)


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
        whole = {"lhs": [-1, 1, 1, 1], "lhsd_offsets": [0, 3, 3, 3, 3], "lhsd_data": [0, 1, 2]}
        for name, values in whole.items():
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
        np.testing.assert_array_equal(features.offsets, expected.offsets)
        np.testing.assert_array_equal(features.indices, expected.indices)
    assert (found.lhs.tolist(), found.rhs.tolist()) == ([-1, 5, -1], [-1] * 3)


def test_pbg_writes_no_lists_where_all_are_empty(tmp_path: Path) -> None:
    folder = foreign(tmp_path, replaced("lhs", [-1, 1, -1, 1]))
    found = edge_buckets.read_bucket(folder, BUCKET, 1, 4, takes_features=True)
    assert found.lhs_features.offsets.tolist() == [0, 0, 0, 0]
    assert found.rhs_features is None
    with pytest.raises(FormatError, match=r"lhs\[0\] is -1"):
        edge_buckets.read_bucket(folder, BUCKET)


def test_a_featurized_writer_refuses(tmp_path: Path) -> None:
    edges = featurized_edges()
    for num_features, appended, message in (
        ({Side.LHS: 2}, edges, "expected 2 lhs features, found at least 3"),
        ({Side.LHS: 4}, edges, "expected 4 lhs features, found 3"),
        ({}, edges, r"lhs\[0\] is -1"),
        ({Side.RHS: 3, Side.LHS: 3}, edges, "rhs features were announced"),
    ):
        refused = pytest.raises(FormatError, match=message)
        with refused, edge_buckets.new_bucket(str(tmp_path), BUCKET, 3, num_features=num_features) as writer:
            writer.append(appended)
