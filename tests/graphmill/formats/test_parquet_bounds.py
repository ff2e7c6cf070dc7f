"""Parquet files whose rows take far more than the file: read in bounded memory, or refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.checkpoints.graphstorm import id_maps
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds, open_parquet, thrift
from tests.graphmill.formats.bounded import LIMIT_BYTES, run

pytestmark = pytest.mark.slow

_LONG = "x" * (1 << 20)
_ONE_PAGE: dict[str, Any] = {"data_page_size": 1 << 30, "max_rows_per_page": 1 << 30}

_READ_ALL = """
import sys
from pathlib import Path
from etl.tables.data_file import plain_file
from etl.tables.check_rows import Rules
from graphmill.config.sections.etl import TableConfig
from graphmill.errors import BadInputError
from graphmill.formats import entity_index
from etl.tables.read import read_blocks
from etl.tables.ranges import find_ranges
from remap.job import read_ids
def raw(path):
    table = TableConfig(path=path, lhs=0, rhs=1, relation="r")
    (source,) = find_ranges(table, plain_file(path), 1 << 20)
    return sum(block.num_rows for block, _ in read_blocks(source, 1 << 20, Rules()))
shared, huge = sys.argv[1:]
index = lambda path: entity_index.read_part(str(Path(path).parents[2]), "user", 0)
for read, path in ((raw, shared), (index, shared), (read_ids, shared), (raw, huge)):
    try:
        print(read(path))
    except BadInputError as error:
        print(error)
"""


def _shared(num_rows: int) -> bytes:
    """A table of a few hundred bytes whose rows share an id of a megabyte."""
    ids = pa.DictionaryArray.from_arrays(np.zeros(num_rows, np.int32), pa.array([_LONG]))
    columns = {"id": ids, "index": pa.array(np.arange(num_rows))}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", write_statistics=False, store_schema=False)
    return sink.getvalue().to_pybytes()


def _with_huge_page(num_rows: int) -> bytes:
    """A page of zeros whose header says that it unpacks to 2 GiB, which Arrow takes for granted."""
    sink = pa.BufferOutputStream()
    zeros = pa.table({"lhs": np.zeros(num_rows, np.int64), "rhs": np.zeros(num_rows, np.int64)})
    options = _ONE_PAGE | {"use_dictionary": False, "write_statistics": False, "row_group_size": num_rows}
    pq.write_table(zeros, sink, compression="zstd", **options)
    content = sink.getvalue().to_pybytes()
    at = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0).data_page_offset
    stream = io.BytesIO(content)
    stream.seek(at)
    header, end = thrift.read(stream), stream.tell()
    kind, unpacked_bytes = header[2]
    assert unpacked_bytes > 128 << 20
    changed = thrift.encode(header | {2: (kind, (1 << 31) - 1)})
    assert len(changed) == end - at
    return content[:at] + changed + content[end:]


def test_a_page_header_of_endlessly_nested_structs(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    table = pa.table({"id": [f"{number:08d}" for number in range(5000)]})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    content[at : at + 20_000] = b"\x1c" * 20_000  # field 1, a struct
    path.write_bytes(content)
    with pytest.raises(FormatError, match="expected a parquet file"), open_parquet(str(path)) as parquet:
        assert bounds.batch_rows(parquet, str(path), ["id"], 10) == 10
        parquet.read()


def test_small_files_are_read_in_bounded_memory_or_refused(tmp_path: Path) -> None:
    """Raw tables in small batches; an index of one id, and ids that are read whole, and a huge page never."""
    shared, huge = tmp_path / "entity_index/user/part-00000.parquet", tmp_path / "table.parquet"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(_shared(1500))
    huge.write_bytes(_with_huge_page(17 << 20))
    assert max(shared.stat().st_size, huge.stat().st_size) < 64 << 10
    done = run(_READ_ALL, shared, huge)
    assert done.code == 0, done.told[-2000:]
    raw, index, whole, page = done.told.splitlines()
    assert raw == "1500"
    assert "part-00000.parquet: expected an id once only" in index
    assert "1500 rows share strings that are too long" in whole
    assert "table.parquet: row group 0, column 'lhs': expected pages of 134217728 bytes" in page
    assert done.peak_bytes < LIMIT_BYTES


def test_a_list_of_billions(tmp_path: Path) -> None:
    path = tmp_path / "user" / "part-00000.parquet"
    path.parent.mkdir()
    values = pa.DictionaryArray.from_arrays(np.zeros(17 << 20, np.int8), pa.array([0.0], pa.float32()))
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    with pq.ParquetWriter(path, pa.schema([("embedding", lists.type)]), **_ONE_PAGE) as writer:
        writer.write_table(pa.table({"embedding": lists}))
    assert path.stat().st_size < 64 << 10
    with pq.ParquetFile(path) as parquet, pytest.raises(FormatError, match="expected lists of what is there"):
        bounds.batch_rows(parquet, str(path), ["embedding"], 1)


def test_a_map_of_more_rows_than_its_size_holds(tmp_path: Path) -> None:
    """Its table on the disk is reserved by the footer."""
    path = tmp_path / "user" / "part-00000.parquet"
    path.parent.mkdir()
    rows = pa.table({"orig": np.zeros(8 << 20, np.int64), "new": np.zeros(8 << 20, np.int64)})
    with pq.ParquetWriter(path, rows.schema, compression="zstd", **_ONE_PAGE) as writer:
        for _ in range(12):
            writer.write_table(rows, row_group_size=8 << 20)
    assert path.stat().st_size < 16 << 10
    with pytest.raises(FormatError, match="its footer says 100663296 rows"):
        id_maps.list_raw_id_map(str(tmp_path), "user")


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}])
def test_usual_tables_are_read_in_full_batches(tmp_path: Path, options: dict[str, object]) -> None:
    """However well they pack: sorted ids, and a relation that all rows share."""
    path = str(tmp_path / "table.parquet")
    num_rows = 1 << 20
    ids = pa.array(np.arange(num_rows).astype(str))
    likes = pa.repeat(pa.scalar("likes"), num_rows)
    table = pa.table({"id": ids, "number": np.arange(num_rows), "rel": likes})
    pq.write_table(table, path, compression="zstd", **options)
    with pq.ParquetFile(path) as parquet:
        assert bounds.batch_rows(parquet, path, table.column_names, 1 << 16) == 1 << 16
        bounds.check_whole(parquet, path)


@pytest.mark.parametrize("num_rows", [1 << 12, 1 << 18])
def test_values_that_begin_as_those_before(tmp_path: Path, num_rows: int) -> None:
    """DELTA_BYTE_ARRAY, as other writers have it, in small and in large column chunks."""
    path, rng = str(tmp_path / "table.parquet"), np.random.default_rng(0)
    ids, long = [rng.bytes(16).hex() for _ in range(num_rows)], rng.bytes(1 << 20).hex()
    for shared, low, high in (([], 1 << 10, 1 << 12), ([long] * 10, 1, 4 * bounds.BATCH_BYTES // len(long))):
        options: Any = {"use_dictionary": False, "column_encoding": {"id": "DELTA_BYTE_ARRAY"}}
        pq.write_table(pa.table({"id": ids + shared}), path, compression="none", **options)
        with pq.ParquetFile(path) as parquet:
            is_small = parquet.metadata.row_group(0).column(0).total_compressed_size < 4 << 20
            assert is_small == (num_rows == 1 << 12)
            assert low <= bounds.batch_rows(parquet, path, ["id"], 1 << 16) <= high
