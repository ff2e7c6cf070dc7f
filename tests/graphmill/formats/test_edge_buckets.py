"""Bucket files: reader(writer(x)) = x, raw h5py, files of others, damage; counts, loops, features."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
from tests import DATA

BUCKET = Bucket(1, 2)
URI = "edges_1_2.h5"


def foreign(tmp_path: Path, change: Callable[[h5py.File], None]) -> str:
    """The folder of a bucket of four edges, changed; h5py alone wrote it."""
    with h5py.File(tmp_path / URI, "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        for column in edge_buckets.COLUMNS:
            hdf5[column] = np.arange(4)
        change(hdf5)
    return str(tmp_path)


def replaced(column: str, values: object = None, **created: Any) -> Callable[[h5py.File], None]:
    """The change that puts `values` in the place of a dataset, or what h5py creates."""

    def change(hdf5: h5py.File) -> None:
        hdf5.pop(column, None)
        if created:
            hdf5.create_dataset(column, **created)
        else:
            hdf5[column] = values

    return change


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
    ten, lists = np.arange(10), featurized_edges()
    for edges, num_features, message in (
        (some_edges(9), {}, "expected 10 edges, found 9"),
        (some_edges(11), {}, "expected 10 edges, found at least 11"),
        (some_edges(weighted=True), {}, "edges with weights"),
        (Edges(ten, ten, np.arange(9)), {}, "lhs has 10, rhs 9"),
        (Edges(ten, ten, ten + 2**31), {}, "does not fit int32"),
        (Edges(ten - 1, ten, ten), {}, r"lhs\[0\] is -1"),
        (lists, {Side.LHS: 2}, "expected 2 lhs features, found at least 3"),
        (lists, {Side.LHS: 4}, "expected 4 lhs features, found 3"),
        (lists, {}, r"lhs\[0\] is -1"),
        (lists, {Side.RHS: 3, Side.LHS: 3}, "rhs features were announced"),
    ):
        refused, num = pytest.raises(FormatError, match=message), 3 if edges is lists else 10
        bucket = edge_buckets.new_bucket(str(tmp_path), BUCKET, num, num_features=num_features)
        with refused, bucket as writer:
            writer.append(edges)
        assert list(tmp_path.iterdir()) == []


def _virtual(hdf5: h5py.File) -> None:
    del hdf5["lhs"]
    layout = h5py.VirtualLayout((4,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "lhs", (4,))
    hdf5.create_virtual_dataset("lhs", layout)


def _half_written(hdf5: h5py.File) -> None:
    replaced("lhs", shape=(4,), dtype="i4", chunks=(2,), compression="gzip")(hdf5)
    hdf5["lhs"][:2] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hdf5: hdf5.attrs.update(format_version=2), "'format_version' is 2; this reader knows 1"),
        (lambda hdf5: hdf5.attrs.update(format_version="a"), "'format_version' is a; this reader knows 1"),
        (lambda hdf5: hdf5.attrs.clear(), "'format_version' is None; this reader knows 1"),
        (lambda hdf5: hdf5.pop("rel"), "expected a dataset 'rel'"),
        (lambda hdf5: (hdf5.pop("lhs"), hdf5.create_group("lhs")), "expected a dataset 'lhs'"),
        (replaced("lhs", h5py.ExternalLink("other.h5", "lhs")), "expected a dataset 'lhs'"),
        (replaced("lhs", shape=(4,), dtype="i1", external=[("/etc/hostname", 0, 4)]), "a dataset 'lhs'"),
        (_virtual, "expected a dataset 'lhs'"),
        (_half_written, "'/lhs': expected 16 bytes .* parts of it were never written"),
        (replaced("rhs", np.arange(3)), "of one length, found: lhs has 4, rel has 4, rhs has 3"),
        (replaced("weight", np.ones(5)), "weight has 5"),
        (replaced("rel", np.arange(4.0)), "'rel': expected integers in one dimension, found float64"),
        (replaced("rel", np.zeros((4, 1), int)), r"'rel': expected .* one dimension, found int64 \(4, 1\)"),
        (replaced("weight", ["a", "b", "c", "d"]), "'weight': expected numbers"),
        (replaced("weight", [1, np.nan, 1, 1]), r"weight\[1\] is nan"),
        (replaced("weight", [1, 1, np.inf, 1]), r"weight\[2\] is inf"),
        (replaced("weight", [1, 1e15, 1, 2e15]), r"weight\[3\] is .*; expected a number up to 10\^15"),
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
            replaced(column, data=np.arange(7, dtype=dtype), chunks=chunks)(hdf5)
        hdf5["weight"] = np.arange(7)  # of PBG

    found = edge_buckets.read_bucket(foreign(tmp_path, change), BUCKET, 2, 6)
    expected = np.arange(2, 6)
    assert_equal(found, Edges(expected, expected, expected, expected.astype(np.float32)))


def test_missing_truncated_and_damaged_files(tmp_path: Path) -> None:
    folder = foreign(tmp_path, replaced("lhs", data=np.arange(4), chunks=(4,), fletcher32=True))
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


BUCKETS = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0)]


@pytest.fixture
def edge_path(tmp_path: Path) -> str:
    """Buckets of 3, 4 and 5 edges, with their counts and checksums."""
    checksums: Checksums = {}
    for bucket, count in zip(BUCKETS, (3, 4, 5), strict=True):
        with edge_buckets.new_bucket(str(tmp_path), bucket, count, checksums=checksums) as writer:
            writer.append(some_edges(count))
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
    edge_buckets.write_bucket(edge_path, BUCKETS[1], some_edges(40))
    with pytest.raises(FormatError, match=r"edges_0_1\.h5: expected the checksum .* delete its line"):
        edge_buckets.read_bucket(edge_path, BUCKETS[1])
    manifest = Path(storage.manifest_of(edge_path).uri)
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if "edges_0_1.h5" not in line))
    assert counts(edge_path) == [3, 40, 5]
    assert len(edge_buckets.read_bucket(edge_path, BUCKETS[1])) == 40


def test_a_new_manifest_of_another_tool(edge_path: str) -> None:
    """`xxhsum` has written the checksums of all files again, after a bucket was replaced."""
    edge_buckets.write_bucket(edge_path, BUCKETS[1], some_edges(40))
    found = {str(path): of_file(str(path)) for path in Path(edge_path).glob("*.*")}
    storage.write_checksums(storage.manifest_of(edge_path).uri, found)
    assert counts(edge_path) == [3, 40, 5]


@pytest.mark.parametrize("missing", [COUNTS, storage.CHECKSUMS])
def test_without_counts_the_files_are_opened(edge_path: str, missing: str) -> None:
    (Path(edge_path) / missing).unlink()
    edge_buckets.write_bucket(edge_path, BUCKETS[2], some_edges(50))
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


@given(EDGES, st.integers(1, 31))
def test_loops_are_written_in_any_pieces_and_found_without(tmp_path, edges, size) -> None:
    columns = np.array(edges, np.int32).reshape(-1, 3)
    with edge_buckets.new_bucket(str(tmp_path), BUCKET, len(edges)) as writer:
        for start in range(0, len(edges), size):
            writer.append(Edges(*columns[start : start + size].T))
    expected = {rel for lhs, rel, rhs in edges if lhs == rhs}
    assert read_loops(str(tmp_path), BUCKET) == expected
    with h5py.File(tmp_path / URI, "r+") as hdf5:
        del hdf5[LOOPS]  # as in a bucket of another program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_files, "READ_EDGES", 3)  # some at a time
        assert read_loops(str(tmp_path), BUCKET) == expected
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


@given(
    lists=st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 7), max_size=3),
)
@example(lists=[[], [1], [2, 3]], cuts=[1])
@example(lists=[[1]], cuts=[0])
def test_bytes_of_features_do_not_depend_on_the_appends(tmp_path, lists, cuts):
    """Nor does the place of a dataset, which HDF5 gives it at its first write."""

    def edges(start: int, stop: int) -> Edges:
        features = [
            Features(np.cumsum([0, *map(len, part)]), np.array([*itertools.chain(*part)], int))
            for part in (lists[start:stop], lists[::-1][start:stop])
        ]
        none = np.full(stop - start, -1)
        return Edges(none, none * 0, none, None, *features)

    num, num_features = len(lists), dict.fromkeys(Side, sum(map(len, lists)))
    edge_buckets.write_bucket(str(tmp_path / "once"), BUCKET, edges(0, num))
    bucket = edge_buckets.new_bucket(str(tmp_path / "parts"), BUCKET, num, num_features=num_features)
    with bucket as writer:
        for start, stop in itertools.pairwise([0, *sorted(min(cut, num) for cut in cuts), num]):
            writer.append(edges(start, stop))
    assert (tmp_path / "parts" / URI).read_bytes() == (tmp_path / "once" / URI).read_bytes()


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
