"""Bucket files: reader(writer(x)) = x, raw h5py, files of PBG, and damaged files."""

import itertools
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket
from tests import DATA
from tests.graphmill.formats.foreign_buckets import BUCKET, URI, foreign, replaced


@st.composite
def edges_of_a_bucket(draw: st.DrawFn) -> Edges:
    num = draw(st.integers(0, 40))
    limit = draw(st.sampled_from([2**31 - 1, 2**62]))
    columns = [draw(hnp.arrays(np.int64, num, elements=st.integers(0, limit))) for _ in edge_buckets.COLUMNS]
    weights = hnp.arrays(np.float32, num, elements=st.floats(-8, 8, width=32))
    return Edges(*columns, weight=draw(st.none() | weights))


def some_edges(num: int = 10, weighted: bool = False) -> Edges:
    lhs, rel, rhs = (np.arange(num) * factor for factor in (1, 2, 3))
    return Edges(lhs, rel, rhs, np.linspace(0, 1, num, dtype=np.float32) if weighted else None)


def assert_equal(found: Edges, expected: Edges) -> None:
    for column in edge_buckets.COLUMNS:
        assert getattr(found, column).dtype == np.int64
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))
    if expected.weight is None:
        assert found.weight is None
    else:
        assert found.weight.dtype == np.float32
        np.testing.assert_array_equal(found.weight, expected.weight)


def piece(edges: Edges, start: int, stop: int | None) -> Edges:
    columns = (edges.lhs, edges.rel, edges.rhs, edges.weight)
    return Edges(*(None if each is None else each[start:stop] for each in columns))


@pytest.mark.slow
@given(
    edges=edges_of_a_bucket(),
    start=st.integers(0, 50),
    stop=st.none() | st.integers(0, 50),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_edges_come_back_and_bytes_do_not_depend_on_the_appends(tmp_path, edges, start, stop, cuts):
    once, parts = str(tmp_path / "once"), str(tmp_path / "parts")
    edge_buckets.write_bucket(once, BUCKET, edges)
    assert edge_buckets.count_edges(once, BUCKET) == len(edges)
    assert edge_buckets.has_weights(once, BUCKET) == (edges.weight is not None)
    assert_equal(edge_buckets.read_bucket(once, BUCKET), edges)
    assert_equal(edge_buckets.read_bucket(once, BUCKET, start, stop), piece(edges, start, stop))
    largest = max(int(getattr(edges, column).max(initial=0)) for column in edge_buckets.COLUMNS)
    index_dtype, weighted = np.int64 if largest >= 2**31 else np.int32, edges.weight is not None
    options = {"index_dtype": index_dtype, "weighted": weighted}
    with edge_buckets.new_bucket(parts, BUCKET, len(edges), **options) as writer:
        bounds = [0, *sorted(min(cut, len(edges)) for cut in cuts), len(edges)]
        for first, end in itertools.pairwise(bounds):
            writer.append(piece(edges, first, end))
    assert Path(parts, URI).read_bytes() == Path(once, URI).read_bytes()


def test_h5py_reads_the_datasets(tmp_path: Path) -> None:
    edge_buckets.write_bucket(str(tmp_path), BUCKET, some_edges(weighted=True))
    with h5py.File(tmp_path / URI) as hdf5:
        assert set(hdf5) == {"lhs", "rel", "rhs", "weight", "loops"}
        assert hdf5.attrs["format_version"] == 1
        assert hdf5.attrs["format_version"].dtype.kind == "i"
        for column, factor in (("lhs", 1), ("rel", 2), ("rhs", 3)):
            assert hdf5[column].dtype == np.int32
            assert hdf5[column].chunks is None
            np.testing.assert_array_equal(hdf5[column][:], np.arange(10) * factor)
        assert hdf5["weight"].dtype == np.float32
    with edge_buckets.new_bucket(str(tmp_path), BUCKET, 10, index_dtype=np.int64) as writer:
        writer.append(some_edges())
    with h5py.File(tmp_path / URI) as hdf5:
        assert hdf5["lhs"].dtype == np.int64
    edge_buckets.write_bucket(str(tmp_path), BUCKET, some_edges(0))
    assert len(edge_buckets.read_bucket(str(tmp_path), BUCKET)) == 0
    with h5py.File(tmp_path / URI) as hdf5:
        assert hdf5["rel"].shape == (0,)


def test_writer_refuses(tmp_path: Path) -> None:
    for edges, message in (
        (some_edges(9), "expected 10 edges, found 9"),
        (some_edges(11), "expected 10 edges, found at least 11"),
        (some_edges(weighted=True), "edges with weights"),
        (Edges(np.arange(10), np.arange(10), np.arange(9)), "lhs has 10, rhs 9"),
        (Edges(np.arange(10), np.arange(10), np.arange(10) + 2**31), "does not fit int32"),
        (Edges(np.arange(10) - 1, np.arange(10), np.arange(10)), r"lhs\[0\] is -1"),
    ):
        refused = pytest.raises(FormatError, match=message)
        with refused, edge_buckets.new_bucket(str(tmp_path), BUCKET, 10) as writer:
            writer.append(edges)
        assert list(tmp_path.iterdir()) == []


def _external_storage(hdf5: h5py.File) -> None:
    del hdf5["lhs"]
    hdf5.create_dataset("lhs", (4,), "i1", external=[("/etc/hostname", 0, 4)])


def _group(hdf5: h5py.File) -> None:
    del hdf5["lhs"]
    hdf5.create_group("lhs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hdf5: hdf5.attrs.update(format_version=2), "'format_version' is 2; this reader knows 1"),
        (lambda hdf5: hdf5.attrs.update(format_version="a"), "'format_version' is a; this reader knows 1"),
        (lambda hdf5: hdf5.attrs.clear(), "'format_version' is None; this reader knows 1"),
        (lambda hdf5: hdf5.pop("rel"), "expected a dataset 'rel'"),
        (_group, "expected a dataset 'lhs'"),
        (replaced("lhs", h5py.ExternalLink("other.h5", "lhs")), "expected a dataset 'lhs'"),
        (_external_storage, "expected a dataset 'lhs'"),
        (replaced("rhs", np.arange(3)), "of one length, found: lhs has 4, rel has 4, rhs has 3"),
        (replaced("weight", np.ones(5)), "weight has 5"),
        (replaced("rel", np.arange(4.0)), "'rel': expected integers in one dimension, found float64"),
        (replaced("rel", np.zeros((4, 1), int)), r"'rel': expected .* one dimension, found int64 \(4, 1\)"),
        (replaced("weight", ["a", "b", "c", "d"]), "'weight': expected numbers"),
        (replaced("weight", [1, np.nan, 1, 1]), r"weight\[1\] is nan"),
        (replaced("lhs", np.array([0, 1, -1, 2])), r"lhs\[2\] is -1"),
    ],
)  # fmt: skip
def test_reader_refuses(tmp_path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    folder = foreign(tmp_path, change)
    with pytest.raises(FormatError, match=rf"edges_1_2\.h5: .*{message}"):
        edge_buckets.read_bucket(folder, BUCKET)


@pytest.mark.parametrize(("dtype", "chunks"), [("i1", None), ("u2", (3,)), (">i4", (3,)), ("u8", None)])
def test_any_integer_dtype_and_layout(tmp_path: Path, dtype: str, chunks: tuple[int] | None) -> None:
    def change(hdf5: h5py.File) -> None:
        for column in edge_buckets.COLUMNS:
            del hdf5[column]
            hdf5.create_dataset(column, data=np.arange(7, dtype=dtype), chunks=chunks)
        hdf5["weight"] = np.arange(7)  # of PBG

    found = edge_buckets.read_bucket(foreign(tmp_path, change), BUCKET, 2, 6)
    expected = np.arange(2, 6)
    assert_equal(found, Edges(expected, expected, expected, expected.astype(np.float32)))


def test_missing_truncated_and_damaged_files(tmp_path: Path) -> None:
    def change(hdf5: h5py.File) -> None:
        del hdf5["lhs"]
        hdf5.create_dataset("lhs", data=np.arange(4), chunks=(4,), fletcher32=True)

    folder = foreign(tmp_path, change)
    with h5py.File(tmp_path / URI) as hdf5:
        offset = hdf5["lhs"].id.get_chunk_info(0).byte_offset
    whole = (tmp_path / URI).read_bytes()
    damaged = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
    cuts = [(whole[:cut], "expected an HDF5 file") for cut in (0, 100, 2000)]
    for content, message in ((damaged, "the file is damaged"), *cuts):
        (tmp_path / URI).write_bytes(content)
        with pytest.raises(FormatError, match=rf"edges_1_2\.h5: {message}"):
            edge_buckets.read_bucket(folder, BUCKET)
    (tmp_path / URI).unlink()
    with pytest.raises(FormatError, match=r"edges_1_2\.h5: there is no such bucket; run the stage etl again"):
        edge_buckets.read_bucket(folder, BUCKET)


@pytest.mark.parametrize(
    ("limits", "column"), [((9, 28, 19), "lhs"), ((10, 27, 19), "rhs"), ((10, 28, 18), "rel")]
)
def test_indices_out_of_range(limits: tuple[int, int, int], column: str) -> None:
    edge_buckets.check_indices(some_edges(), URI, 10, 28, 19)
    limit = dict(zip(("lhs", "rhs", "rel"), limits, strict=True))[column]
    message = rf"edges_1_2\.h5: {column}\[109\] is {limit}; expected less than {limit}"
    with pytest.raises(FormatError, match=message):
        edge_buckets.check_indices(some_edges(), URI, *limits, first_row=100)


@pytest.mark.parametrize(
    ("graph", "num_partitions", "num_edges"), [("pbg_v1_dyn", 1, 5216), ("pbg_v1_static", 2, 5216)]
)
def test_files_that_pbg_wrote(graph: str, num_partitions: int, num_edges: int) -> None:
    folder = str(DATA / graph / "edges")
    buckets = [Bucket(lhs, rhs) for lhs in range(num_partitions) for rhs in range(num_partitions)]
    assert sum(edge_buckets.count_edges(folder, bucket) for bucket in buckets) == num_edges
    for bucket in buckets:
        edges = edge_buckets.read_bucket(folder, bucket)
        edge_buckets.check_indices(edges, edge_buckets.bucket_uri(folder, bucket), 135, 135, 46)
        with h5py.File(edge_buckets.bucket_uri(folder, bucket)) as hdf5:
            np.testing.assert_array_equal(edges.rhs, hdf5["rhs"][:])


def test_folders_of_other_graphs_are_no_splits(tmp_path: Path) -> None:
    """Folders with another marker than that of the entities; folders without one belong to the graph."""
    for name in ("train", "test", "byhand", "other", "foreign", "empty"):
        (tmp_path / "edges" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "edges" / name / "edges_0_0.h5").touch()
    (tmp_path / "entities").mkdir()
    for place in ("entities", "edges/train", "edges/test"):
        storage.write_marker(str(tmp_path / place), {"seed": 0})
    storage.write_marker(str(tmp_path / "edges/other"), {"seed": 1})
    (tmp_path / "edges/foreign/_SUCCESS").write_text("spark")
    edge_root, entities = str(tmp_path / "edges"), str(tmp_path / "entities")
    names = [storage.name(each) for each in edge_buckets.folders(edge_root, entities)]
    assert names == ["byhand", "test", "train"]
    storage.delete_marker(entities)  # of entities that others made
    assert len(edge_buckets.folders(edge_root, entities)) == 5
