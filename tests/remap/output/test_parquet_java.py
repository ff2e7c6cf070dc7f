"""parquet-java, with which Spark, Hive and MapReduce read: every row of every table, however shared out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphmill.formats import remapped
from graphmill.formats.parquet.vectors import Column
from remap.output.tables import TableOptions, open_table, values_type
from tests.hadoop import jars, parquet_java

NUM_GROUPS, GROUP_ROWS, DIMENSION = 3, 400, 16
NUM_ROWS = NUM_GROUPS * GROUP_ROWS


def ids_of(rows: range) -> pa.Array:
    return pa.array([f"id {row} é" for row in rows])


def vectors_of(rows: range) -> np.ndarray:
    return (np.array(rows)[:, None] / 4 + np.arange(DIMENSION)).astype(np.float32)


def groups() -> list[range]:
    return [range(start, start + GROUP_ROWS) for start in range(0, NUM_ROWS, GROUP_ROWS)]


def write_part(folder: Path, compression: remapped.Compression) -> Path:
    root = str(folder / compression)
    with remapped.new_part(root, "user", 0, DIMENSION, compression) as part:
        for rows in groups():
            part.append(ids_of(rows), vectors_of(rows))
    return Path(remapped.part_uri(root, "user", 0))


def write_table(path: Path, names: str, options: TableOptions) -> Path:
    """`names` are columns: i ids, v vectors, n numbers."""
    kinds = {
        "i": pa.string(),
        "v": values_type("float32", (NUM_ROWS, DIMENSION), options),
        "n": values_type("float32", (NUM_ROWS,), options),
    }
    schema = pa.schema([(f"{name}{place}", kinds[name]) for place, name in enumerate(names)])
    with open_table(str(path), schema, options) as table:
        for rows in groups():
            of: dict[str, Column] = {"i": ids_of(rows), "v": vectors_of(rows), "n": vectors_of(rows)[:, 0]}
            table.append([of[name] for name in names])
    return path


def expected(names: str) -> list[list[str]]:
    rows = range(NUM_ROWS)
    vectors = [",".join(map(str, vector)) for vector in vectors_of(rows).tolist()]
    numbers = list(map(str, vectors_of(rows)[:, 0].tolist()))
    of = {"i": ids_of(rows).to_pylist(), "v": vectors, "n": numbers, "t": ["user"] * NUM_ROWS}
    return [list(row) for row in zip(*(of[name] for name in names), strict=True)]


@pytest.mark.slow
def test_parquet_java_reads_every_row_once(tmp_path: Path) -> None:
    if reason := jars.why_not():
        pytest.skip(f"no parquet-java: {reason}")
    wanted = {write_part(tmp_path, "none"): "itv", write_part(tmp_path, "zstd"): "itv"}
    for number, (names, options) in enumerate(
        [
            ("vi", TableOptions()),  # GraphStorm's embeddings
            ("nii", TableOptions()),  # and edge predictions
            ("iiv", TableOptions(compression="zstd", fixed_size_list=True)),
            ("ivi", TableOptions(compression="lz4")),
            ("vi", TableOptions(value_compression="zstd")),
        ]
    ):
        wanted[write_table(tmp_path / f"{number}.parquet", names, options)] = names
    for num_shares in (1, 5):
        found = parquet_java.read(list(wanted), num_shares)
        assert found.keys() == wanted.keys()
        for path, names in wanted.items():
            assert found[path] == expected(names), (path, num_shares)
