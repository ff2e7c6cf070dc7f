"""Runs day after day: an id keeps its index until no row has named it for days; if it returns, it is new."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from etl.steps.index_previous import Renumbering
from etl.steps.task_settings import Folders, TaskSettings
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import entity_counts, entity_index
from graphmill.vocab import Bucket
from tests.etl.graphs import RawEdge, all_edges, config_of, hash_of, index_of, write_parquet
from tests.etl.run.test_delta import check_day, config_for, rows_of, write_files

Pairs = list[tuple[str, str]]
IDS = st.text("abc€", min_size=1, max_size=3)


def config_at(root: Path, day: int, pairs: Pairs, top: Any = None, **etl: Any) -> Config:
    lhs, rhs = ([pair[side] for pair in pairs] for side in (0, 1))
    path = write_parquet(root / f"day{day}.parquet", 5, l=lhs, t=rhs)
    if day > 1:
        etl = {"previous_entity_path": str(root / f"out{day - 1}/entities")} | etl
    shape: Any = {"entities": {"user": 3, "shop": 1}, "relations": [("to", "user", "shop")]}
    return config_of(root / f"out{day}", path, **shape, top=top, chunk_rows=4, **etl)


@pytest.mark.slow
@given(
    days=st.lists(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=12), min_size=2, max_size=3),
    tight=st.booleans(),
)
@settings(max_examples=6)
def test_old_ids_stay_each_day(near_client: Client, tmp_path: Path, days: list[Pairs], tight: bool) -> None:
    before: dict[tuple[str, int], list[str]] = {}
    for day, pairs in enumerate(days, start=1):
        config = config_at(tmp_path, day, pairs, index_bytes=500 if tight else 1 << 29, min_entity_count=0)
        figures = job.run(config, near_client)
        assert all_edges(config) == Counter(RawEdge("user", a, "to", "shop", b) for a, b in pairs)
        now = index_of(config)
        seen = {"user": {a for a, _ in pairs}, "shop": {b for _, b in pairs}}
        for (name, part), ids in now.items():
            old = before.get((name, part), [])
            assert ids[: len(old)] == old
            new = [(hash_of(each, 0), each.encode()) for each in ids[len(old) :]]
            assert new == sorted(new)
            counted = entity_counts.read_count(config.entity_path, name, part)
            assert counted == len(ids)
        for name, ids in seen.items():
            known = {each for (kind, _), part in before.items() if kind == name for each in part}
            found = [each for (kind, _), part in now.items() if kind == name for each in part]
            assert sorted(found) == sorted(known | ids)  # those that went away keep their rows
            assert figures["num_entities_from_previous"][name] == len(known)
            assert figures["num_entities_outside_train"][name] == len(known - ids)
        before = now


def test_a_relative_path_starts_at_the_folder_of_the_command(client, tmp_path, monkeypatch):
    job.run(config_at(tmp_path, 1, [("a", "x")]), client)
    monkeypatch.chdir(tmp_path)  # where the workers are not
    config = config_at(tmp_path, 2, [("b", "y")], previous_entity_path="out1/entities")
    assert job.run(config, client)["num_entities_from_previous"] == {"user": 1, "shop": 1}


def test_rare_ids_of_the_earlier_index_stay(near_client: Client, tmp_path: Path) -> None:
    job.run(config_at(tmp_path, 1, [("old", "s"), ("old", "s")]), near_client)
    pairs = [("old", "s"), ("new", "s"), ("newer", "s"), ("newer", "s")]
    config = config_at(tmp_path, 2, pairs, min_entity_count={"user": 2})
    job.run(config, near_client)
    assert {edge.lhs for edge in all_edges(config)} == {"old", "newer"}


def test_dynamic_relations_are_numbered_by_name_and_keep_their_numbers(near_client, tmp_path):
    constant = {"path": write_parquet(tmp_path / "0.parquet", l=["x"], t=["q"]), "relation": "middle"}
    known: list[str] = []
    for day, names, new in (
        (1, ["zeta", "éa", "alpha"], ["alpha", "middle", "zeta", "éa"]),
        (2, ["b", "zeta", "a"], ["a", "b"]),
    ):
        ends = [f"e{name}" for name in names]
        named = write_parquet(tmp_path / f"{day}.parquet", 2, l=["x"] * 3, r=names, t=ends)
        config = config_of(
            tmp_path / f"out{day}",
            [{"path": named, "relation_column": "r"}, constant],
            entities={"n": 2},
            dynamic=True,
            chunk_rows=1,
            previous_entity_path=str(tmp_path / "out1/entities") if day == 2 else None,
        )
        figures = job.run(config, near_client)
        known += new
        assert entity_counts.read_relation_names(config.entity_path) == known
        assert entity_counts.read_relation_count(config.entity_path) == figures["num_relations"] == len(known)
        edges = [*zip(names, ends, strict=True), ("middle", "q")]
        assert all_edges(config) == Counter(RawEdge("n", "x", name, "n", rhs) for name, rhs in edges)


def test_changes_that_move_ids_are_refused(near_client: Client, tmp_path: Path) -> None:
    pairs = [("a", "s"), ("b", "s")]
    job.run(config_at(tmp_path, 1, pairs), near_client)
    with pytest.raises(ConfigError, match=r"previous_entity_path: .* has 0 for seed, this configuration 1"):
        job.run(config_at(tmp_path, 2, pairs, top={"seed": 1}), near_client)
    other = {"entities": {"user": {"num_partitions": 2}, "shop": {"num_partitions": 4}}}
    told = r"has 3 for entities\.user\.num_partitions, this configuration 2; \d for entities\.shop\.num_part"
    with pytest.raises(ConfigError, match=told):
        job.run(config_at(tmp_path, 2, pairs, top=other), near_client)
    for same in (f"{tmp_path}/out1/entities", f"{tmp_path}/out1/entities/"):
        with pytest.raises(ConfigError, match="where this run's entities go"):
            job.run(config_at(tmp_path, 1, pairs, previous_entity_path=same), near_client)


def test_an_index_with_ids_in_the_wrong_partition(near_client: Client, tmp_path: Path) -> None:
    config = config_at(tmp_path, 1, [(f"u{n}", "s") for n in range(9)])
    job.run(config, near_client)
    found = entity_index.read_part(config.entity_path, "user", 0)
    with entity_index.new_part(config.entity_path, "user", 1) as writer:
        writer.append(found.cast(pa.string()))
    entity_counts.write_count(config.entity_path, "user", 1, len(found))
    (tmp_path / "out1/entities" / storage.CHECKSUMS).unlink()  # as where somebody else has written it
    with pytest.raises(FormatError, match=r"user/part-00001.* \(index 0\) belongs to another partition"):
        job.run(config_at(tmp_path, 2, [("a", "s")]), near_client)


def test_a_count_of_another_index(near_client: Client, tmp_path: Path) -> None:
    job.run(config_at(tmp_path, 1, [("a", "x"), ("b", "y"), ("c", "z")]), near_client)
    config = config_at(tmp_path, 2, [("a", "w")])
    before = job.fingerprint(config)
    (tmp_path / "out1/entities" / storage.CHECKSUMS).unlink()
    for count in ("0", "2", "4"):
        (tmp_path / "out1/entities/entity_count_shop_0.txt").write_text(count)
        with pytest.raises(FormatError, match=rf"shop/part-00000.parquet: expected {count} ids.*found 3"):
            job.run(config, near_client)
    assert job.fingerprint(config) != before


FIRST = date(2026, 3, 1)


def histories(config: Config, name: str) -> dict[str, date | None]:
    """Since when each id of a type is gone."""
    found = {}
    for part in range(config.entities[name].num_partitions):
        table = pq.read_table(entity_index.part_uri(config.entity_path, name, part))
        found |= dict(zip(table["id"].to_pylist(), table["gone_since"].to_pylist(), strict=True))
    return found


def expected(days: Sequence[set[str]], forget_after: int) -> dict[str, date | None]:
    """The ids of a right index after these days, each with the ids that its rows name."""
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
    shape = {"weights": True, "splits": True, "forget": forget_after, "chunk_rows": 40} | shape
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
