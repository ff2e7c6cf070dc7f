"""Runs day after day: an id that has an index keeps it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.formats import entity_counts, entity_index
from tests.etl.graphs import RawEdge, all_edges, config_of, hash_of, index_of, write_parquet

Pairs = list[tuple[str, str]]
IDS = st.text("abc€", min_size=1, max_size=3)


def config_for(root: Path, day: int, pairs: Pairs, top: Any = None, **etl: Any) -> Config:
    lhs, rhs = ([pair[side] for pair in pairs] for side in (0, 1))
    path = write_parquet(root / f"day{day}.parquet", 5, l=lhs, t=rhs)
    if day > 1:
        etl = {"previous_entity_path": str(root / f"out{day - 1}/entities")} | etl
    shape: Any = {"entities": {"user": 3, "shop": 1}, "relations": [("to", "user", "shop")]}
    return config_of(root / f"out{day}", path, **shape, top=top, chunk_rows=4, **etl)


@pytest.mark.slow
@given(
    days=st.lists(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=12), min_size=2, max_size=4),
    tight=st.booleans(),
)
@settings(max_examples=6)
def test_old_ids_stay_each_day(near_client: Client, tmp_path: Path, days: list[Pairs], tight: bool) -> None:
    before: dict[tuple[str, int], list[str]] = {}
    for day, pairs in enumerate(days, start=1):
        config = config_for(tmp_path, day, pairs, index_bytes=500 if tight else 1 << 29, min_entity_count=0)
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
    job.run(config_for(tmp_path, 1, [("a", "x")]), client)
    monkeypatch.chdir(tmp_path)  # where the workers are not
    config = config_for(tmp_path, 2, [("b", "y")], previous_entity_path="out1/entities")
    assert job.run(config, client)["num_entities_from_previous"] == {"user": 1, "shop": 1}


def test_rare_ids_of_the_earlier_index_stay(near_client: Client, tmp_path: Path) -> None:
    job.run(config_for(tmp_path, 1, [("old", "s"), ("old", "s")]), near_client)
    pairs = [("old", "s"), ("new", "s"), ("newer", "s"), ("newer", "s")]
    config = config_for(tmp_path, 2, pairs, min_entity_count={"user": 2})
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
    job.run(config_for(tmp_path, 1, pairs), near_client)
    with pytest.raises(ConfigError, match=r"previous_entity_path: .* has 0 for seed, this configuration 1"):
        job.run(config_for(tmp_path, 2, pairs, top={"seed": 1}), near_client)
    other = {"entities": {"user": {"num_partitions": 2}, "shop": {"num_partitions": 4}}}
    told = r"has 3 for entities\.user\.num_partitions, this configuration 2; \d for entities\.shop\.num_part"
    with pytest.raises(ConfigError, match=told):
        job.run(config_for(tmp_path, 2, pairs, top=other), near_client)
    for same in (f"{tmp_path}/out1/entities", f"{tmp_path}/out1/entities/"):
        with pytest.raises(ConfigError, match="where this run's entities go"):
            job.run(config_for(tmp_path, 1, pairs, previous_entity_path=same), near_client)


def test_an_index_with_ids_in_the_wrong_partition(near_client: Client, tmp_path: Path) -> None:
    config = config_for(tmp_path, 1, [(f"u{n}", "s") for n in range(9)])
    job.run(config, near_client)
    found = entity_index.read_part(config.entity_path, "user", 0)
    with entity_index.new_part(config.entity_path, "user", 1) as writer:
        writer.append(found.cast(pa.string()))
    entity_counts.write_count(config.entity_path, "user", 1, len(found))
    (tmp_path / "out1/entities" / storage.CHECKSUMS).unlink()  # as where somebody else has written it
    with pytest.raises(FormatError, match=r"user/part-00001.* \(index 0\) belongs to another partition"):
        job.run(config_for(tmp_path, 2, [("a", "s")]), near_client)


def test_a_count_of_another_index(near_client: Client, tmp_path: Path) -> None:
    job.run(config_for(tmp_path, 1, [("a", "x"), ("b", "y"), ("c", "z")]), near_client)
    config = config_for(tmp_path, 2, [("a", "w")])
    before = job.fingerprint(config)
    (tmp_path / "out1/entities" / storage.CHECKSUMS).unlink()
    for count in ("0", "2", "4"):
        (tmp_path / "out1/entities/entity_count_shop_0.txt").write_text(count)
        with pytest.raises(FormatError, match=rf"shop/part-00000.parquet: expected {count} ids.*found 3"):
            job.run(config, near_client)
    assert job.fingerprint(config) != before
