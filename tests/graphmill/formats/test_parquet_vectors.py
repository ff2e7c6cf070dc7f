"""Tables with vectors: written directly from memory, read in that of a few row groups; by raw id; damaged."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphmill.config.sections.remap import Compression
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import remapped
from graphmill.formats.parquet import iter_columns, open_parquet, thrift, vectors
from graphmill.formats.parquet.vectors import new_table
from graphmill.formats.remapped import Floats
from tests.processes import full_disk
from train.tables.vector_files import VectorFiles

DTYPES = {"int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64()}


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    width=st.sampled_from([1, 2, 7, 8, 64, 65, 300]),
    is_fixed=st.booleans(),
    is_nullable=st.booleans(),
    place=st.integers(0, 2),
    sizes=st.lists(st.sampled_from([0, 1, 2, 40]), max_size=4),
    page_bytes=st.sampled_from([1, 1000, 1 << 20]),
)
def test_tables_equal_those_of_pyarrow(
    tmp_path, dtype, width, is_fixed, is_nullable, place, sizes, page_bytes
):
    path = tmp_path / "t.parquet"
    kind = pa.list_(DTYPES[dtype], width) if is_fixed else pa.list_(pa.field("element", DTYPES[dtype]))
    fields = [pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64())]
    fields.insert(place, pa.field("vector", kind, nullable=is_nullable))
    schema = pa.schema(fields)
    rng = np.random.default_rng(width)
    rows: list[list[pa.Array | np.ndarray]] = []
    for size in sizes:
        ids = pa.array([f"{number}é" for number in range(size)], pa.string())
        columns = [ids, pa.array(np.arange(size))]
        columns.insert(place, (rng.standard_normal((size, width)) * 1e6).astype(dtype))
        rows.append(columns)
    with pytest.MonkeyPatch.context() as patch, pa.OSFile(str(path), "wb") as stream:
        patch.setattr(vectors, "PAGE_BYTES", page_bytes)
        with new_table(stream, schema, is_plain=True, compression="snappy") as table:
            for columns in rows:
                table.append(columns)
    sink = io.BytesIO()
    with new_table(sink, schema, is_plain=False, compression={"vector.list.element": "none"}) as table:
        for columns in rows:
            table.append(columns)
    expected, found = pq.read_table(sink), pq.read_table(path, page_checksum_verification=True)
    found.validate(full=True)
    assert found.equals(expected, check_metadata=True)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert groups == [size for size in sizes if size]
    for group, read in enumerate(thrift.read(io.BytesIO(_thrift_bytes(metadata)))[4][1][1]):
        chunks = [metadata.row_group(group).column(column) for column in range(3)]
        first = min(
            place
            for each in chunks
            for place in (each.dictionary_page_offset, each.data_page_offset)
            if place
        )
        assert (read[5][1], read[6][1]) == (first, sum(each.total_compressed_size for each in chunks))
    assert thrift.encode(thrift.read(io.BytesIO(_thrift_bytes(metadata)))) == _thrift_bytes(metadata)


def _thrift_bytes(metadata: pq.FileMetaData) -> bytes:
    sink = io.BytesIO()
    metadata.write_metadata_file(sink)
    return sink.getvalue()[4:-8]


def test_duckdb_reads_vectors(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows_ND = np.random.default_rng(0).standard_normal((3000, 100), np.float32)
    ids = pa.array([f"id {number}" for number in range(3000)])
    schema = pa.schema([("vector", pa.list_(pa.float32())), ("id", pa.string())])
    path = str(tmp_path / "t.parquet")
    with pa.OSFile(path, "wb") as stream, new_table(stream, schema, is_plain=True) as table:
        for start in (0, 1000, 2000):
            table.append([rows_ND[start : start + 1000], ids[start : start + 1000]])
    found = duckdb.sql(f"select vector, id from '{path}'").fetchall()
    assert [text for _, text in found] == ids.to_pylist()
    np.testing.assert_array_equal(np.array([vector for vector, _ in found], np.float32), rows_ND)


def test_vectors_of_another_length_are_refused() -> None:
    schema = pa.schema([("vector", pa.list_(pa.float32())), ("id", pa.int64())])
    with new_table(io.BytesIO(), schema, is_plain=True) as table:
        table.append([np.zeros((1, 3), np.float32), pa.array([1])])
        for width in (2, 0):
            with pytest.raises(FormatError, match=f"expected vectors of length 3, found {width}"):
                table.append([np.zeros((1, width), np.float32), pa.array([1])])


@pytest.mark.parametrize("place", [0, 1])
def test_a_full_disk_is_reported_at_every_write(tmp_path: Path, place: int) -> None:
    fields = [pa.field("id", pa.int64())]
    fields.insert(place, pa.field("vector", pa.list_(pa.float32(), 4)))
    path = str(tmp_path / "t.parquet")

    def write() -> None:
        with pa.OSFile(path, "wb") as stream, new_table(stream, pa.schema(fields), is_plain=True) as table:
            for _ in range(3):
                columns: list[Any] = [pa.array(range(500))]
                columns.insert(place, np.ones((500, 4), np.float32))
                table.append(columns)

    write()
    num_bytes = Path(path).stat().st_size
    for share in (0.001, 0.05, 0.3, 0.9, 0.999):
        with pytest.raises(OSError, match="File too large"), full_disk(int(num_bytes * share)):
            write()


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
        yield from (len(ids) for _, (ids, _) in iter_columns(parquet, uri, ["id", "embedding"], ROWS))


def _vectors(uri: str) -> Iterator[int]:
    yield from (len(batch.ids) for batch in VectorFiles(uri).batches())


@pytest.mark.parametrize("read", [_columns, _vectors])
def test_row_groups_that_were_read_are_freed(uri: str, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.tables.vector_files.BATCH_BYTES", GROUP_BYTES)
    before, most, num_rows = pa.total_allocated_bytes(), 0, 0
    for num in read(uri):
        most, num_rows = max(most, pa.total_allocated_bytes() - before), num_rows + num
    assert num_rows == NUM_GROUPS * ROWS
    assert most < 8 * GROUP_BYTES


PART = "user/part-00003.parquet"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def rows_of_a_part(draw: st.DrawFn) -> tuple[list[str], Floats]:
    ids = draw(st.lists(TEXT, max_size=30))
    shape = (len(ids), draw(st.integers(1, 5)))
    finite = st.floats(width=32, allow_nan=False)
    return ids, draw(hnp.arrays(np.float32, shape, elements=finite))


def _write(folder: str, ids: list[str], embeddings_ND: Floats, step: int, compression: Compression) -> None:
    dimension = embeddings_ND.shape[1]
    with remapped.new_part(folder, "user", 3, dimension, compression) as writer:
        for start in range(0, len(ids), step):
            stop = start + step
            writer.append(pa.array(ids[start:stop], pa.string()), embeddings_ND[start:stop])


@pytest.mark.slow
@given(
    rows=rows_of_a_part(),
    step=st.integers(1, 31),
    batch_rows=st.integers(1, 31),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_rows_come_back(tmp_path, rows, step, batch_rows, compression):
    folder = str(tmp_path)
    ids, embeddings_ND = rows
    _write(folder, ids, embeddings_ND, step, compression)
    assert remapped.shape_of(folder, "user", 3) == embeddings_ND.shape
    batches = list(remapped.iter_part(folder, "user", 3, batch_rows))
    assert [each for batch, _ in batches for each in batch.to_pylist()] == ids
    none = np.empty((0, embeddings_ND.shape[1]), np.float32)
    found = np.concatenate([none, *(each for _, each in batches)])
    np.testing.assert_array_equal(found, embeddings_ND)


@pytest.mark.parametrize(("compression", "encoding"), [("none", "PLAIN"), ("zstd", "BYTE_STREAM_SPLIT")])
def test_pyarrow_reads_the_file(tmp_path, rng, compression, encoding):
    embeddings_ND = rng.standard_normal((5, 4), np.float32)
    _write(str(tmp_path), ["a", "b", "ß", "", "e"], embeddings_ND, 2, compression)
    table = pq.read_table(tmp_path / PART)
    assert table.column_names == ["id", "type", "embedding"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert table.schema.field("type").type == pa.dictionary(pa.int32(), pa.string())
    assert table["id"].to_pylist() == ["a", "b", "ß", "", "e"]
    assert table["type"].to_pylist() == ["user"] * 5
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), embeddings_ND)
    metadata = pq.ParquetFile(tmp_path / PART).metadata
    assert metadata.num_row_groups == 3
    column = metadata.row_group(0).column(2)
    assert encoding in column.encodings
    assert (column.compression == "ZSTD") == (compression == "zstd")


def test_writer_refuses_other_shapes(tmp_path: Path) -> None:
    message = r"part-00003\.parquet: expected embeddings of shape \(2, 4\)"
    for shape in ((3, 4), (2, 3), (2,)):
        refused = pytest.raises(FormatError, match=message)
        with refused, remapped.new_part(str(tmp_path), "user", 3, 4) as writer:
            writer.append(pa.array(["a", "b"]), np.zeros(shape, np.float32))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


VECTORS = pa.array([[1.0, 2.0], [3.0, None]], pa.list_(pa.float32(), 2))
TYPES = pa.array(["user", "user"]).dictionary_encode()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "b"], "type": TYPES}, "column 'embedding': expected fixed_size_list"),
        ({"id": ["a", "b"], "type": TYPES, "embedding": [[1.0], [2.0]]}, "found list<"),
        ({"id": [1, 2], "type": TYPES, "embedding": VECTORS}, "column 'id': expected string, found int64"),
        ({"id": ["a", "b"], "type": TYPES, "embedding": VECTORS}, "expected no nulls"),
        ({"id": ["a", None], "type": TYPES, "embedding": VECTORS}, "expected no nulls"),
    ],
)
def test_reader_refuses(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    (tmp_path / "user").mkdir()
    pq.write_table(pa.table(columns), tmp_path / PART)
    with pytest.raises(FormatError, match=rf"part-00003\.parquet: .*{message}"):
        list(remapped.iter_part(str(tmp_path), "user", 3))


def test_missing_and_truncated(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"part-00003\.parquet"):
        remapped.shape_of(str(tmp_path), "user", 3)
    _write(str(tmp_path), ["a"], np.ones((1, 2), np.float32), 1, "none")
    whole = (tmp_path / PART).read_bytes()
    (tmp_path / PART).write_bytes(whole[:-10])
    with pytest.raises(FormatError, match=r"part-00003\.parquet: expected a parquet file"):
        remapped.shape_of(str(tmp_path), "user", 3)
