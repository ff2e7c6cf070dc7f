"""Partitions that etl chooses, tasks by the number of ids, and output that is as if they were set."""

import json
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

from etl import job
from etl.steps.chunks import NUM_SMALLEST, IdCounts, estimate
from etl.steps.index import plan_shards
from etl.steps.task_settings import ID_OVERHEAD_BYTES, Folders, TaskSettings
from graphmill import config, storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.formats import entity_counts
from graphmill.storage.as_json import UInt64
from tests.etl.graphs import config_of, files_under

TABLE = {"lhs": "l", "relation_column": "r", "rhs": "t"}


def test_few_ids_are_counted_and_many_estimated_whatever_the_chunks(rng: np.random.Generator) -> None:
    ids = rng.integers(2**64, size=100_000, dtype=np.uint64)
    assert estimate(smallest_of(ids[:300], ids[200:500], ids[:0])) == 500
    assert estimate(smallest_of(ids[:0])) == 0
    chunks = [np.sort(ids[start : start + 40_000])[:NUM_SMALLEST] for start in range(0, 100_000, 20_000)]
    assert estimate(smallest_of(*chunks)) == pytest.approx(100_000, rel=0.15)
    assert estimate(smallest_of(*chunks)) == estimate(np.sort(ids)[:NUM_SMALLEST])


def smallest_of(*chunks: UInt64) -> UInt64:
    none = np.zeros(0, np.int64)
    counts = [IdCounts(none, none, none, {"user": hashes}) for hashes in chunks]
    return sum(counts, IdCounts(none, none, none, {})).smallest["user"]


def settings_of(folder: Path, name: str, entities: object, **changes: object) -> Config:
    """Two types on the right-hand side, one of them small."""
    rows = (f"u{n % 999},{'knows' if n % 2 else 'in'},u{n % 77}\n" for n in range(5000))
    (folder / "t.csv").write_text("l,r,t\n" + "".join(rows))
    content: dict[str, object] = {
        "output": str(folder / name),
        "entities": entities,
        "relations": [
            {"name": "knows", "lhs": "user", "rhs": "user"},
            {"name": "in", "lhs": "user", "rhs": "place"},
        ],
        "etl": {"tables": [TABLE | {"path": str(folder / "t.csv")}]},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(content | changes))
    return config.load(str(folder / f"{name}.yaml"))


def files_of(folder: Path) -> dict[str, bytes]:
    return files_under(folder / "entities") | files_under(folder / "edges")


@pytest.mark.slow
def test_a_large_type_is_cut_as_if_the_configuration_said_so(near_client: Client, tmp_path: Path) -> None:
    """Four workers that train at once need eight partitions, which stand for a large table."""
    small = settings_of(tmp_path, "small", {"user": {"num_partitions": "auto"}, "place": {}})
    job.run(small, near_client)
    counts = entity_counts.list_counts(small.entity_path)
    assert {name: len(each) for name, each in counts.items()} == {"user": 1, "place": 1}
    storage.write_marker(small.entity_path, made_from := job.fingerprint(small))
    assert made_from["entities"] == {"user": "auto", "place": "auto"}
    for num, users in {1: "auto", 2: 2}.items():  # as run.json names the number, or another one
        named = {"user": {"num_partitions": num}, "place": {"num_partitions": 1}}
        asked = job.fingerprint(settings_of(tmp_path, "small", named))["entities"]
        assert asked == {"user": users, "place": "auto"}
    auto = settings_of(tmp_path, "auto", {"user": {}, "place": {}}, train={"num_workers": 4})
    job.run(auto, near_client)
    counts = entity_counts.list_counts(auto.entity_path)
    assert {name: len(each) for name, each in counts.items()} == {"user": 8, "place": 1}
    entities = {"user": {"num_partitions": 8}, "place": {"num_partitions": 1}}
    job.run(settings_of(tmp_path, "set", entities), near_client)
    assert files_of(tmp_path / "auto") == files_of(tmp_path / "set")


def test_the_partitions_of_an_earlier_index_stay(near_client: Client, tmp_path: Path) -> None:
    entities = {"user": {"num_partitions": 3}, "place": {"num_partitions": 1}}
    before = settings_of(tmp_path, "before", entities)
    job.run(before, near_client)
    etl = {"tables": [TABLE | {"path": f"{tmp_path}/t.csv"}], "previous_entity_path": before.entity_path}
    after = settings_of(tmp_path, "after", {"user": {}, "place": {}}, etl=etl)
    job.run(after, near_client)
    assert len(entity_counts.list_counts(after.entity_path)["user"]) == 3


@pytest.mark.slow
def test_memory_decides(tmp_path: Path) -> None:
    """Vectors and sums of 999 users of dimension 20,000 take 160 MB: 3 of 8 parts fit in half of 256 MB."""
    settings = settings_of(tmp_path, "auto", {"user": {}, "place": {}}, dimension=20_000)
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),  # the tests' own process takes more
        Client(processes=False, n_workers=1, memory_limit="256MB", dashboard_address=":0") as client,
    ):
        job.run(settings, client)
    assert len(entity_counts.list_counts(settings.entity_path)["user"]) == 8


ID_BYTES = 20


@pytest.mark.parametrize(("num_partitions", "num_ids"), [(1, 1_000), (1, 10**8), (8, 10**10), (64, 10**10)])
def test_every_task_fits_the_memory(num_partitions: int, num_ids: int) -> None:
    config = config_of("out", "t.parquet", entities={"n": num_partitions}, index_bytes=2 << 30)
    etl = config.section(EtlConfig)
    settings = TaskSettings.of(config, Folders("w", "e", {"train": "t"}), num_ids)
    num_slots = num_partitions * settings.num_slots["n"]
    of_slots = np.full(num_slots, num_ids // num_slots)
    shards = plan_shards(settings, of_slots, of_slots * ID_BYTES)
    cost_bytes = ID_OVERHEAD_BYTES + 3 * ID_BYTES
    ids = [sum(of_slots[: len(shard.slots)]) for shard in shards]
    assert max(ids) * cost_bytes <= etl.index_bytes
    assert len(shards) <= max(num_partitions, 2 * (num_ids * cost_bytes // etl.index_bytes + num_partitions))
    for number in range(num_partitions):
        slots = [slot for shard in shards if shard.partition_number == number for slot in shard.slots]
        assert slots == list(range(settings.num_slots["n"]))
