"""Versions that are written and committed while the next iteration trains: rows in memory, files behind."""

import threading

import numpy as np
import pytest
import torch

from graphmill.checkpoints import pbg
from graphmill.cluster import runtime
from graphmill.errors import StorageError, TrainingError
from tests.train.graphs import differing, node_graph, relation, saved
from train.run.trainer import Trainer
from train.tables import memory
from train.tables.partition_files import PartitionFiles

TIMEOUT_S = 60
IN_MEMORY = [{"resident": "always"}, {"device_partitions": 2}]


def graph(root, own, **settings):
    return node_graph(
        root, np.random.default_rng(1), 60, 400, num_partitions=4, relations=[relation("complex_diagonal")],
        global_emb=False, checkpoint_preservation_interval=1, train=own, **settings,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    """Several threads would step without locks."""
    with runtime.cpu_threads(1):
        yield


@pytest.fixture
def gate(monkeypatch):
    """Files of a version wait until the second iteration has trained a bucket, or an error has ended it.

    Rows stay as they are until they are in their file.
    """
    opened = threading.Event()
    write = PartitionFiles.write

    def late(self, key, table, *arguments, **named):
        before = table.embeddings_ND.clone()
        assert opened.wait(TIMEOUT_S)
        threading.Event().wait(0.05)
        write(self, key, table, *arguments, **named)
        assert torch.equal(before, table.embeddings_ND)

    monkeypatch.setattr(PartitionFiles, "write", late)
    return opened


def on_second_iteration(trainer, then):
    """Call `then` after each bucket of the second iteration and of those that follow."""
    train = trainer.bucket.train

    def watched(bucket, iteration, *arguments):
        stats = train(bucket, iteration, *arguments)
        if iteration.epoch_idx:
            then()
        return stats

    trainer.bucket.train = watched


@pytest.mark.slow
@pytest.mark.parametrize("own", IN_MEMORY, ids=["device", "buffer"])
def test_a_version_holds_the_state_at_the_end_of_its_iteration(tmp_path, gate, own):
    late = Trainer(graph(tmp_path / "late", own, num_epochs=3))
    committed = []

    def then():
        committed.append(pbg.read_version(late.config.checkpoint_path))
        gate.set()

    assert late.plan.placement == ("device" if "resident" in own else "buffer")
    on_second_iteration(late, then)
    late.run()
    assert committed[0] == 0  # the second iteration did not wait for the first version
    for epochs in (1, 3):
        once = graph(tmp_path / str(epochs), own, num_epochs=epochs)
        Trainer(once).run()
        expected = saved(once)
        found = saved(once, f"{late.config.checkpoint_path}/epoch_{epochs}") | {"stats": expected["stats"]}
        assert expected["version"] == epochs
        assert not differing(found, expected)
    assert not differing(saved(late.config), expected)


@pytest.mark.slow
def test_without_room_for_a_copy_training_waits_for_the_files(tmp_path, monkeypatch):
    beside = Trainer(graph(tmp_path / "beside", IN_MEMORY[0], num_epochs=3))
    beside.run()
    room = memory.whole_bytes(beside.context, writes_beside=True) / memory.WORKER_SHARE
    monkeypatch.setattr(memory, "worker_bytes", lambda: room - 1)
    after = Trainer(graph(tmp_path / "after", IN_MEMORY[0], num_epochs=3))
    assert [each.plan.writes_beside for each in (beside, after)] == [True, False]
    committed = []
    on_second_iteration(after, lambda: committed.append(pbg.read_version(after.config.checkpoint_path)))
    after.run()
    assert committed == [1, 2]
    expected, found = (saved(each.config) for each in (beside, after))
    assert expected["version"] == 3
    assert not differing(found, expected)


def test_a_write_that_fails_ends_the_run_early_with_its_own_message(tmp_path, monkeypatch):
    config = graph(tmp_path, IN_MEMORY[0], num_epochs=50)
    write, seen = PartitionFiles.write, []

    def failing(self, key, table, version, *arguments, **named):
        if version == 2 and key == ("node", 3):
            raise StorageError("the disk is full")
        write(self, key, table, version, *arguments, **named)

    monkeypatch.setattr(PartitionFiles, "write", failing)
    trainer = Trainer(config)
    on_second_iteration(trainer, lambda: seen.append(trainer.version))
    with pytest.raises(StorageError, match="the disk is full"):
        trainer.run()
    assert pbg.read_version(config.checkpoint_path) == 1
    assert max(seen) <= 2  # no third version


def test_an_error_of_training_leaves_the_version_before_it(tmp_path, gate):
    config = graph(tmp_path, IN_MEMORY[1])
    trainer = Trainer(config)

    def fail():
        threading.Timer(0.1, gate.set).start()
        raise TrainingError("not finite")

    on_second_iteration(trainer, fail)
    with pytest.raises(TrainingError, match="not finite"):
        trainer.run()
    assert pbg.read_version(config.checkpoint_path) == 1
