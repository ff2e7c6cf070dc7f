"""A worker's partitions: what is written behind."""

import numpy as np
import pytest
import torch

from graphmill import storage
from graphmill.storage import fs
from tests.train.graphs import make_config, random_triples, write_graph
from train.distributed.messages import RowSource
from train.distributed.partition_exchange import PartitionExchange
from train.distributed.partition_holder import PartitionHolder
from train.edges import schedule
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_commit_may_delete_the_folder_of_a_file_that_is_being_written(tmp_path, monkeypatch, is_deleted):
    """The coordinator commits newer copies; the worker goes on."""
    config = make_config(tmp_path, entities={"node": {"num_partitions": 2}})
    write_graph(config, {"node": 20}, random_triples(np.random.default_rng(3), 20, 1, 20, 50))
    saved, folder = [], storage.join(config.checkpoint_path, ".spread.tmp-0/v1/1")
    really_move = fs.move

    def move(source, target):
        if is_deleted:
            storage.delete(storage.parent(folder))
        really_move(source, target)

    exchange = PartitionExchange(
        PartitionFiles(RunContext(config)),
        PartitionHolder(schedule.plan(config)),
        None,
        lambda *found: saved.append(found),
        1 << 30,
    )
    key = ("node", 0)
    tables = exchange.take({key: RowSource(0, "", "", config.checkpoint_path, 0)})
    exchange.put(tables, 1, folder, 1)
    monkeypatch.setattr(fs, "move", move)
    exchange.write_behind(0, schedule.plan(config).iteration(0))
    exchange.close()
    assert len(saved) == (0 if is_deleted else 1)
    assert torch.equal(exchange.holder.take((key, 1)).table.embeddings_ND, tables[key].embeddings_ND)
