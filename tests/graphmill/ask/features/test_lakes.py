"""`graphmill features` of tables of Delta Lake and Iceberg: the rows of the snapshot, no deleted ones."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from numpy.random import Generator
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import StringType

from tests.commands import Command
from tests.etl.tables.lakes import catalog_at
from tests.etl.tables.test_iceberg import delete_rows, write_parquet
from tests.graphmill.ask.features.test_features import expected, figures, orders, read
from tests.graphmill.ask.predict.world import World

LEFT_OUT = [3, 60, 61, 150]


def delta(folder: Path, rows: pa.Table) -> Path:
    """A table that delta-rs has written and overwritten; its delete rewrites files."""
    write_deltalake(folder, rows.slice(5, 50), partition_by=["day"])
    write_deltalake(folder, rows.slice(0, 90), mode="overwrite", partition_by=["day"])
    write_deltalake(folder, rows.slice(90), mode="append", partition_by=["day"])
    DeltaTable(folder).delete(f"n in ({', '.join(map(str, LEFT_OUT))})")
    return folder


def iceberg(folder: Path, rows: pa.Table) -> Path:
    """A table of pyiceberg, whose delete rewrites files, before a file of deleted positions."""
    made = catalog_at(folder.parent).create_table("sales.orders", schema=rows.schema)
    made.append(rows)
    made.delete(f"n == {LEFT_OUT[0]}")
    (file,) = (task.file.file_path for task in made.scan().plan_files())
    at = [number - 1 for number in LEFT_OUT[1:]]  # the first is not there any more
    positions = pa.table({"file_path": [file] * len(at), "pos": at})
    return delete_rows(made, DataFileContent.POSITION_DELETES, write_parquet(made, positions), [])


GEO = pa.struct([("lat", pa.float64()), ("name", pa.string())])


@pytest.fixture
def rows(world: World, rng: Generator) -> pa.Table:
    return orders(world, rng).select(["customer", "day"]).append_column("n", pa.array(np.arange(200)))


@pytest.fixture
def nested(rows: pa.Table) -> pa.Table:
    """The rows with columns of structs, of lists of structs, and of maps of structs."""
    geo = [None if n % 7 == 0 else {"lat": n / 2, "name": f"place {n}"} for n in range(len(rows))]
    parts = [[{"k": n, "v": {"deep": str(n)}}] * (n % 3) for n in range(len(rows))]
    named = [[(f"key {n}", {"k": n})] for n in range(len(rows))]
    kind = pa.struct([("k", pa.int64()), ("v", pa.struct([("deep", pa.string())]))])
    return (
        rows.append_column("geo", pa.array(geo, GEO))
        .append_column("parts", pa.array(parts, pa.list_(kind)))
        .append_column("named", pa.array(named, pa.map_(pa.string(), pa.struct([("k", pa.int64())]))))
    )


def test_columns_of_structs_of_delta_lake(tmp_path: Path, features: Command, nested: pa.Table) -> None:
    write_deltalake(tmp_path / "lake", nested)
    assert features(tmp_path / "lake", "--column", "customer", "--type", "user") == 0
    found = read(tmp_path / "out").sort_by("n")
    assert found.select(nested.column_names).to_pylist() == nested.to_pylist()


def test_fields_of_structs_that_were_renamed(tmp_path: Path, features: Command, nested: pa.Table) -> None:
    """Files from before the change have other names in them; a field may have the name of a dropped one."""
    made = catalog_at(tmp_path).create_table("sales.orders", schema=nested.schema)
    made.append(nested)
    with made.update_schema() as change:
        change.rename_column("geo.name", "label")
        change.rename_column("parts.element.k", "key")
        change.rename_column("parts.element.v.deep", "deeper")
        change.rename_column("named.value.k", "key")
        change.delete_column("geo.lat")
    with made.update_schema() as change:
        change.add_column(("geo", "lat"), StringType())
    assert features(made.location(), "--column", "customer", "--type", "user") == 0
    found = read(tmp_path / "out").sort_by("n")
    expected_rows = made.scan().to_arrow().sort_by("n").to_pylist()
    assert expected_rows[5]["geo"] == {"label": "place 5", "lat": None}
    assert expected_rows[5]["parts"] == [{"key": 5, "v": {"deeper": "5"}}] * 2
    assert found.select(nested.column_names).to_pylist() == expected_rows


@pytest.mark.slow
@pytest.mark.parametrize("write", [delta, iceberg])
def test_rows_of_the_snapshot(tmp_path, world, features, rows, write):
    given = write(tmp_path / "lake", rows)
    assert features(given, "--column", "customer", "--type", "user") == 0
    found = read(tmp_path / "out").sort_by("n")
    kept = [number for number in range(200) if number not in LEFT_OUT]
    assert found["vector"].to_pylist() == expected(world, found["customer"].to_pylist())
    assert found.select(rows.column_names).to_pylist() == rows.take(pa.array(kept)).to_pylist()
    assert figures(tmp_path / "out")["num_rows"] == len(kept)
