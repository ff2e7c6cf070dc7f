"""The stage from tables of Delta Lake and Iceberg: on local disks and HDFS, again, and after an error."""

import datetime
import json
import logging
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from distributed import Client
from pydantic import TypeAdapter

from etl import job
from etl.run.work import EtlStep
from etl.tables.files import find_all
from etl.tables.formats import FileRange
from etl.tables.ranges import ranges_of_files
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.run import fingerprints, record
from tests.etl.graphs import all_edges, config_of, files_under
from tests.etl.run.test_go_on import stopped_before
from tests.etl.tables.lakes import (
    catalog_at,
    deletion_vector,
    found_in,
    iceberg_table,
    opened_files,
    root_of,
    write_mapped_delta,
)
from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.files import upload

DAYS = [datetime.date(2026, 11, day) for day in (1, 2, 3)]
FILTERS = [["day", ">=", "2026-11-02"], ["n", "<", 300]]


def some_rows(seed: int, num_rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 80, (2, num_rows))
    columns = {"u": [f"u{n}" for n in users], "i": [f"i{n}" for n in items]}
    columns |= {"n": rng.integers(0, 400, num_rows), "day": [DAYS[n] for n in rng.integers(0, 3, num_rows)]}
    return pa.table(columns)


def write_delta(folder: Path) -> str:
    write_deltalake(folder, some_rows(1), partition_by=["day"])
    write_deltalake(folder, some_rows(2), mode="append")
    DeltaTable(folder).delete("u = 'u7'")
    return str(folder)


def write_iceberg(folder: Path) -> str:
    made = iceberg_table(folder.parent, some_rows(1), ("day", "identity"))
    made.append(some_rows(2))
    made.delete("u == 'u7'")
    return str(root_of(made))


def append_to_iceberg(folder: Path, rows: pa.Table) -> None:
    catalog_at(folder.parent).load_table("sales.orders").append(rows)


# What writes a table of two snapshots, and what appends rows to it.
WRITERS: dict[str, Any] = {
    "delta": (write_delta, partial(write_deltalake, mode="append")),
    "iceberg": (write_iceberg, append_to_iceberg),
}


def graph(output: Path | str, path: str, **entry: Any) -> Config:
    table = {"path": path, "lhs": "u", "rhs": "i", "weight": "n", "relation": "bought"} | entry
    shape: Any = {"entities": {"user": 2, "item": 1}, "relations": [("bought", "user", "item")]}
    return config_of(output, [table], **shape, chunk_rows=50)


def skipped(config: Config, client: Client) -> bool:
    """Run the stage as the pipeline does; tell whether it was skipped."""
    run_record = record.RunRecord(config.record_uri(""), config)
    return "skipped" in record.run_stage("etl", job, config, client, run_record, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_a_new_snapshot_runs_again(near_client, tmp_path, kind, caplog):
    write, append = WRITERS[kind]
    path = write(tmp_path / "lake")
    config = graph(tmp_path / "out", path, filters=FILTERS)
    with caplog.at_level(logging.INFO, "graphmill"):
        assert not skipped(config, near_client)
        rows = pa.concat_tables([some_rows(1), some_rows(2)]).to_pylist()
        assert sorted((each.lhs, each.rhs, each.weight) for each in all_edges(config).elements()) == sorted(
            (row["u"], row["i"], float(row["n"]))
            for row in rows
            if row["u"] != "u7" and row["day"] >= DAYS[1] and row["n"] < 300
        )
        before = fingerprints.describe_inputs([])  # nothing else is an input
        assert [*before, *find_all(config)[0].describe()] == job.fingerprint(config)["inputs"]
        assert skipped(config, near_client)
        append(tmp_path / "lake", some_rows(3))
        assert not skipped(config, near_client)
    words = {
        "delta": r"version 2, written .* -> version 3, ",
        "iceberg": r"snapshot \d+, .* -> snapshot \d+, ",
    }
    assert any(f"since this changed: {path}: " in line for line in caplog.messages)
    assert re.search(words[kind], caplog.text)
    assert skipped(config, near_client)


@pytest.mark.slow
def test_files_that_filters_leave_out_are_no_inputs(near_client: Client, tmp_path: Path) -> None:
    for day in DAYS:
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(some_rows(day.day).drop_columns("day"), tmp_path / f"day={day}/a.parquet")
    config = graph(tmp_path / "out", str(tmp_path), filters=FILTERS)
    assert not skipped(config, near_client)
    pq.write_table(some_rows(9).drop_columns("day"), tmp_path / "day=2026-11-01/b.parquet")
    assert skipped(config, near_client)
    pq.write_table(some_rows(9).drop_columns("day"), tmp_path / "day=2026-11-02/b.parquet")
    assert not skipped(config, near_client)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_snapshot_is_known_by_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    write, append = WRITERS[kind]
    path = write(tmp_path / "lake")
    with opened_files(monkeypatch) as opened:
        (described,) = found_in(path).describe()
    assert [Path(name).suffixes for name in opened] == ([[".metadata", ".json"]] if kind == "iceberg" else [])
    assert described["uri"] == path
    words = {"delta": r"version (2), written 20", "iceberg": r"snapshot (\d+), schema 0 of table"}
    number = re.match(words[kind], described["snapshot"])
    assert number
    append(tmp_path / "lake", some_rows(3))
    assert found_in(path).describe() != [described]
    assert found_in(path, snapshot=int(number[1])).describe() == [described]


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    path = WRITERS[kind][0](tmp_path / "lake")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'graphmill\[{kind}\]'"):
        found_in(path).files()


@pytest.fixture
def with_deletes(tmp_path: Path) -> str:
    """A table of Delta Lake with mapped columns, one of whose rows is deleted."""
    path = tmp_path / "lake"
    path.mkdir()
    rows = pa.table({"c1": list("abcde"), "c2": [{"c3": "x"}] * 5, "c4": range(5)})
    write_mapped_delta(path, {"one.parquet": rows}, {"one.parquet": deletion_vector(path, [1], "u")})
    return str(path)


def test_a_plan_survives_as_json(with_deletes: str) -> None:
    entry = {"rhs": "ev.item", "filters": [["n", ">", 1]]}
    config = graph("/nowhere", with_deletes, **entry)
    (found,) = find_all(config)
    ranges = ranges_of_files([(0, found.label, found.table, file) for file in found.files()], 2)
    adapter = TypeAdapter(list[FileRange])
    assert ranges[0].deletes
    assert ranges[0].filters
    assert adapter.validate_json(adapter.dump_json(ranges)) == ranges


@pytest.mark.parametrize("field", ["uri", "place"])
def test_a_journal_of_other_files(near_client: Client, tmp_path: Path, with_deletes: str, field: str) -> None:
    config = graph(tmp_path / "out", with_deletes, rhs="ev.item")
    stopped_before("index", near_client, config)
    secret = str(tmp_path / "secret.parquet")
    (journal,) = tmp_path.glob("out/.etl-work-*/files-*/plan.json")
    step = json.loads(journal.read_text())
    plan = json.loads(step["result"])
    ranges = plan["ranges"]
    (ranges[0] if field == "uri" else ranges[0]["deletes"][0])[field] = secret
    changed = EtlStep.model_validate(step | {"result": json.dumps(plan)}).sealed()
    journal.write_text(changed.model_dump_json())
    with pytest.raises(FormatError, match=rf"names {secret}, which is none of this run's files"):
        job.run(config, near_client)


@pytest.mark.hdfs
@pytest.mark.parametrize("kind", WRITERS)
def test_on_hdfs(near_client: Client, hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path, kind: str) -> None:
    path, remote = WRITERS[kind][0](tmp_path / "lake"), f"{hdfs_uri}/lake"
    upload(Path(path), remote)
    for root, place in ((str(tmp_path), path), (f"{hdfs_uri}/graph", remote)):
        config = graph(f"{root}/out", place, filters=FILTERS)
        job.run(config, near_client)
        (described,) = job.fingerprint(config)["inputs"]
        assert described["uri"] == place
        assert config.section(EtlConfig).tables[0].filters
    for name, content in files_under(tmp_path / "out").items():
        if name.endswith((".parquet", ".txt")):
            assert storage.read_bytes(f"{hdfs_uri}/graph/out/{name}") == content
    here, there = (all_edges(graph(f"{root}/out", path)) for root in (tmp_path, f"{hdfs_uri}/graph"))
    assert here == there
