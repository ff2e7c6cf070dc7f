"""Embeddings by raw id: reader(writer(x)) = x, raw pyarrow, and damaged files."""

from pathlib import Path

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
from graphmill.formats.remapped import Floats

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
