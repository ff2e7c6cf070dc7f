"""Ids that no row names for some days are left out, and the others move up; if they return, they are new."""

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from etl import job
from etl.steps.index_previous import Renumbering
from etl.steps.task_settings import Folders, TaskSettings
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import entity_index
from graphmill.vocab import Bucket
from tests.etl.graphs import all_edges, config_of, index_of, write_parquet
from tests.etl.run.test_delta import check_day, config_for, rows_of, write_files

FIRST = date(2026, 3, 1)


def histories(config: Config, name: str) -> dict[str, date | None]:
    """Since when each id of a type is gone."""
    found = {}
    for part in range(config.entities[name].num_partitions):
        table = pq.read_table(entity_index.part_uri(config.entity_path, name, part))
        found |= dict(zip(table["id"].to_pylist(), table["gone_since"].to_pylist(), strict=True))
    return found


def expected(days: Sequence[set[str]], forget_after: int) -> dict[str, date | None]:
    """What an index should have after these days, each with the ids that its rows name."""
    index: dict[str, date | None] = {}
    for number, named in enumerate(days):
        today = FIRST + timedelta(number)
        index = {
            name: gone for name, gone in index.items() if gone is None or (today - gone).days < forget_after
        }
        index = {name: None if name in named else gone or today for name, gone in index.items()}
        index |= dict.fromkeys(named - index.keys())
    return index


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "forget_after"),
    [({"users": 1, "items": 1, "drops": True}, 2), ({"dynamic": True, "listed": True}, 1)],
)
def test_days(near_client: Client, tmp_path: Path, shape: dict[str, Any], forget_after: int) -> None:
    """A window of two days moves by a day, and one id comes back."""
    shape = {"weights": True, "splits": True, "forget": forget_after, "chunk_rows": 20} | shape
    users: list[set[str]] = []
    items: list[set[str]] = []
    write_parquet(tmp_path / "raw/listed/a.parquet", l=["u0", "lonely"])
    for day in range(5):
        files = {
            f"day{n}": rows_of(np.random.default_rng(n), 30, 10 * n)
            + ([(7, "saw", 7, 1.0)] if n in (1, 4) else [])
            for n in range(max(day - 1, 0), day + 1)
        }
        write_files(tmp_path / "raw/first", files)
        write_files(tmp_path / "raw/second", {"z": [(0, "saw", 0, 0.5)]})
        rows = [*(row for each in files.values() for row in each), (0, "saw", 0, 0.5)]
        users.append({f"u{a}" for a, *_ in rows} | ({"lonely", "u0"} if shape.get("listed") else set()))
        items.append({f"i{b}" for _, r, b, _ in rows if r == "saw" or shape.get("dynamic")})
        figures = check_day(tmp_path, day, shape, near_client)
    config = config_for(tmp_path, 4, "out4", shape, delta=True)
    assert histories(config, "user") == expected(users, forget_after)
    assert histories(config, "item") == expected(items, forget_after)
    assert figures["num_entities_gone"]["user"] == sum(map(bool, histories(config, "user").values())) > 0
    assert figures["num_entities_forgotten"]["user"] > 0
    edges = [edge for split in ("train", "test", "extra") for edge in all_edges(config, split)]
    assert {(each.lhs, each.relation, each.rhs) for each in edges} == {
        (f"u{a}", r, f"i{b}") for a, r, b, _ in rows
    }
    check_previous_index(config, config_for(tmp_path, 3, "out3", shape, delta=True))


def check_previous_index(config: Config, earlier: Config) -> None:
    """Each part says which row of the earlier index an id had."""
    before, now = index_of(earlier), index_of(config)
    known = entity_index.read_manifest(config.entity_path).num_previous
    assert {(name, part): num for name, each in known.items() for part, num in enumerate(each)} == {
        key: len(ids) for key, ids in before.items()
    }
    for (name, part), ids in now.items():
        place = (config.entity_path, name, part, len(ids), len(before[name, part]))
        rows = entity_index.read_previous_index(*place).tolist()
        assert [before[name, part][row] for row in rows] == ids[: len(rows)]
        assert set(ids[len(rows) :]).isdisjoint(
            each for each, gone in histories(earlier, name).items() if gone is None
        )


def small(tmp_path: Path, day: int | None, **etl: Any) -> Config:
    """The run of a day, after one without a history."""
    top = {} if day is None else {"schedule": {"date": str(FIRST + timedelta(day))}}
    etl = ({"previous_entity_path": str(tmp_path / "out0/entities")} if day else {}) | etl
    path = str(tmp_path / f"edges{day or 0}.parquet")
    return config_of(tmp_path / f"out{day}", path, entities={"user": 1}, top=top, **etl)


def test_needs_a_date_which_is_in_the_fingerprint(near_client: Client, tmp_path: Path) -> None:
    write_parquet(tmp_path / "edges0.parquet", l=["a"], t=["b"])
    with pytest.raises(ConfigError, match=r"etl.forget_after: expected a date.*--date"):
        job.run(small(tmp_path, None, forget_after=3), near_client)
    config = small(tmp_path, 0, forget_after=3)
    later = config.with_section(config.schedule.model_copy(update={"date": "2026-04-01"}))
    assert job.fingerprint(config) != job.fingerprint(later)
    assert "day" not in job.fingerprint(small(tmp_path, 0))


def test_an_index_without_history_begins_one(near_client: Client, tmp_path: Path) -> None:
    write_parquet(tmp_path / "edges0.parquet", l=["a", "c"], t=["b", "d"])
    write_parquet(tmp_path / "edges9.parquet", l=["a"], t=["b"])
    job.run(small(tmp_path, 0), near_client)
    config = small(tmp_path, 9, forget_after=1)
    job.run(config, near_client)
    day = FIRST + timedelta(9)
    assert histories(config, "user") == {"a": None, "b": None, "c": day, "d": day}


def test_rows_of_forgotten_ids_are_refused(near_client: Client, tmp_path: Path) -> None:
    """The earlier index may not call ids gone that its edges name."""
    write_parquet(tmp_path / "edges0.parquet", l=["a"], t=["b"])
    job.run(small(tmp_path, 0, forget_after=1), near_client)
    part = entity_index.part_uri(str(tmp_path / "out0/entities"), "user", 0)
    table = pq.read_table(part)
    gone = table.schema.get_field_index("gone_since")
    column = pa.array([None, FIRST], pa.date32())
    pq.write_table(table.set_column(gone, table.schema.field(gone), column), part)
    (tmp_path / "out0/entities" / storage.CHECKSUMS).unlink()  # as if etl had written the wrong column
    later = small(tmp_path, 1, forget_after=1)
    renumbering = Renumbering(TaskSettings.of(later, Folders("", "", {}), 10))
    kept, forgotten = np.zeros((1, 3), np.int32), np.array([[0, 0, 1]], np.int32)
    assert renumbering.apply(kept, Bucket(0, 0), "here").tolist() == [[0, 0, 0]]
    with pytest.raises(FormatError, match="here: rhs names row 1 of 'user', which is gone"):
        renumbering.apply(forgotten, Bucket(0, 0), "here")


@pytest.mark.parametrize("rows", [[1, 0], [1, 1], [0, 5], [None, 1]])
def test_a_damaged_history_is_refused(tmp_path: Path, rows: list[int | None]) -> None:
    part = Path(entity_index.part_uri(str(tmp_path), "user", 0))
    part.parent.mkdir(parents=True)
    index = pa.array(rows, pa.int64())
    pq.write_table(pa.table({"id": ["a", "b"], "index": [0, 1], "previous_index": index}), part)
    with pytest.raises(FormatError, match="expected ascending rows below 5, and then nulls"):
        entity_index.read_previous_index(str(tmp_path), "user", 0, 2, 5)
