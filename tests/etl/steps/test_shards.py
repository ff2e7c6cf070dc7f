"""Shards: the number of ids decides the tasks, whatever the number of partitions."""

import numpy as np
import pytest

from etl.steps.index import plan_shards
from etl.steps.task_settings import ID_OVERHEAD_BYTES, Folders, TaskSettings
from graphmill.config.sections.etl import EtlConfig
from tests.etl.graphs import config_of

ID_BYTES = 20


@pytest.mark.parametrize("num_partitions", [1, 8, 64])
@pytest.mark.parametrize("num_ids", [1_000, 10**8, 10**10])
def test_every_task_fits_the_memory(num_partitions: int, num_ids: int) -> None:
    table = {"path": "t.parquet", "lhs": 0, "rhs": 1, "relation": "to"}
    config = config_of("out", [table], entities={"n": num_partitions}, index_bytes=2 << 30)
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
