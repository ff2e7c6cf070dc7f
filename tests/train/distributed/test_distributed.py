"""Training over several Dask workers: as good as on one, whatever happens to them."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from distributed import WorkerPlugin

from graphmill import config as configuration
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import all_keys
from graphmill.errors import ClusterError, TrainingError
from tests.contents import contents
from tests.train.graphs import (
    assert_checksums,
    differing,
    embeddings,
    make_config,
    mean_reciprocal_rank,
    saved,
    write_graph,
)
from tests.train.run.test_job import planted
from tests.train.run.test_trainer import COUNTS, DIVERGING, TYPES, mixed, write_mixed
from tests.train.tables import test_blocks
from tests.waiting import wait_until
from tests.workers import die_once, forking, workers
from train import job
from train.distributed import coordinator
from train.distributed.coordinator import Coordinator

pytestmark = pytest.mark.slow
COUNT, TRAIN, TEST = planted(np.random.default_rng(5))
KNOWN = np.concatenate([TRAIN, TEST])


def several_workers(root, num_workers, assignment="dynamic", **settings):
    train = {"num_workers": num_workers, "bucket_assignment": assignment}
    return make_config(root, **{"num_partitions": 4, "train": train} | settings)


def planted_graph(root, *workers, **settings):
    """The same, and the graph of hidden groups is written."""
    config = several_workers(root, *workers, **settings)
    write_graph(config, {"node": COUNT}, TRAIN)
    return config


def test_checkpoint_of_a_heterogeneous_graph(tmp_path, client):
    """Types with three partitions and with one, chunks, held-out edges, copies of epochs."""
    entities = TYPES | {"idle": {"num_partitions": 2}}  # in no relation
    more = {"eval_fraction": 0.1, "num_edge_chunks": 2, "checkpoint_preservation_interval": 1}
    config = mixed(tmp_path, entities=entities, train={"num_workers": 2}, **more)
    write_mixed(config, np.random.default_rng(3), COUNTS | {"idle": 7})
    figures = json.loads(json.dumps(job.run(config, client)))
    assert figures["version"] == 4
    checkpoint = config.checkpoint_path
    stems = {f"embeddings_{name}_{part}" for name, part in all_keys(config)}
    assert pbg.versions_of(checkpoint)[4] == stems | {"model"}
    assert {"config.json", "graphmill.json", "training_stats.json"} < contents(checkpoint).keys()
    assert not storage.fs.list_hidden(checkpoint)
    assert pbg.read_version(f"{checkpoint}/epoch_1") == 2
    for path in (checkpoint, f"{checkpoint}/epoch_1"):
        assert_checksums(path)
    for name, count in COUNTS.items():
        assert embeddings(config, name, count).abs().sum(1).min() > 0
    lines = pbg.read_stats(checkpoint)
    assert [line["index"] for line in lines] == list(range(36))
    for number in range(4):
        buckets = {(line["lhs_partition"], line["rhs_partition"]) for line in lines[9 * number :][:9]}
        assert len(buckets) == 9
    for entry in figures["epochs"]:
        assert len(entry["buckets"]) == 18
        assert len({each["worker"] for each in entry["buckets"]}) <= 2
        assert entry["edges"] == sum(each["edges"] for each in entry["buckets"])
        assert 0 < entry["mrr"] <= 1
    alone = configuration.from_mapping(config.model_dump() | {"num_epochs": 3, "train": {"num_workers": 1}})
    assert job.run(alone, client)["first_version"] == 4  # another number of workers goes on with it


def test_blocks_of_several_workers_keep_every_row(tmp_path, client):
    """Types with eight, six and one partition: without a learning rate each row stays as it was drawn."""
    still = {"lr": 1e-30, "relation_lr": 0.1, "max_norm": None}
    whole = test_blocks.graph(tmp_path / "whole", num_epochs=1, **still)
    job.run(whole, client)
    train = {"num_workers": 2, "bucket_assignment": "tournament", "memory_partitions": 4}
    config = test_blocks.graph(tmp_path / "blocks", num_epochs=2, train=train, **still)
    figures = job.run(config, client)
    assert figures["plan"]["blocks"] == 4
    for epoch in figures["epochs"]:
        assert epoch["edges"] == 400
        assert len(epoch["buckets"]) == 6
    found, drawn = map(test_blocks.rows_of, (config, whole))
    torch.testing.assert_close(found, drawn, rtol=0, atol=1e-12)


def is_in_mid_bucket(task):
    """Its next message says that the bucket is trained, not that it is published."""
    return task.bucket is not None and task.visit is None


def kill_one(run, pids):
    """SIGKILL to a worker in mid-bucket, if there is one that holds a shard; `pids` by address."""
    holders = {holder.address for holder in run.pool.shards.holders}
    mine = [task for task in list(run.pool.tasks.values()) if task.address in pids.keys() & holders]
    for task in filter(is_in_mid_bucket, mine):
        os.kill(pids[task.address], signal.SIGSTOP)
        if is_in_mid_bucket(task):  # still, and now it stays so
            os.kill(pids[task.address], signal.SIGKILL)
            return True
        os.kill(pids[task.address], signal.SIGCONT)
    return False


def test_worker_that_dies_costs_a_bucket(tmp_path, caplog):
    """SIGKILL to one of three workers in mid-bucket: the run goes on and ends as well as without it.

    In a tournament it ends with the same bytes, unless the log says that changes were lost with its shard.
    """
    settings = {"dimension": 32, "num_epochs": 3, "regularization_coef": 0.01, "num_partitions": 6}
    configs = [planted_graph(tmp_path / name, 3, "tournament", **settings) for name in ("a", "b")]
    for config in configs:
        job.claim_checkpoint(config)
    with workers(3) as client, ThreadPoolExecutor(1) as pool:
        Coordinator.on(client, configs[0]).run()
        run = Coordinator.on(client, configs[1])
        pids = client.run(os.getpid)
        running = pool.submit(run.run)
        wait_until(lambda: running.done() or run.version > 0, 600)
        wait_until(lambda: running.done() or kill_one(run, pids), 600)
        assert running.result()["version"] == 3
        assert sum(run.losses.values()) == 1  # it was in the middle of a bucket
    if "does not repeat to the last byte" not in caplog.text:
        assert not differing(*map(saved, configs))
    mrr = [mean_reciprocal_rank(config, KNOWN, TEST) for config in configs]
    assert mrr[0] > 0.05  # a blind guess scores .025
    assert mrr[1] > 0.65 * mrr[0], mrr


def train_apart(config):
    """Train on two workers, in a process group of its own."""
    os.setsid()
    with workers(2) as client:
        job.run(config, client)


def test_everything_is_killed_and_resumes(tmp_path, client):
    """SIGKILL to client, scheduler and workers in mid-epoch: the next run ends with the same bytes."""
    # of many epochs: however late this process looks, some are left
    configs = [planted_graph(tmp_path / name, 2, "tournament", num_epochs=1000) for name in ("a", "b")]
    checkpoint = configs[0].checkpoint_path
    child = forking().Process(target=train_apart, args=(configs[0],))
    child.start()

    def is_in_mid_epoch():
        assert child.is_alive()
        return pbg.read_version(checkpoint) and storage.fs.list_hidden(checkpoint)

    try:
        wait_until(is_in_mid_epoch, 600)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    version = pbg.read_version(checkpoint)
    configs = [config.model_copy(update={"num_epochs": version + 1}) for config in configs]
    assert job.run(configs[0], client)["first_version"] == version
    job.run(configs[1], client)
    assert not differing(*map(saved, configs))
    assert not storage.fs.list_hidden(checkpoint)


def test_an_error_of_a_worker_ends_the_run(tmp_path, client):
    config = planted_graph(tmp_path, 2, **DIVERGING)
    with pytest.raises(TrainingError, match="not finite"):
        job.run(config, client)
    assert pbg.read_version(config.checkpoint_path) == 0


class Dies(WorkerPlugin):
    """One worker dies in mid-bucket, one while another fetches from it, one with partitions no other has."""

    name = "dies"

    def __init__(self, folder):
        self.folder = folder

    def setup(self, worker):
        from train.distributed.partition_exchange import PartitionExchange
        from train.distributed.partition_holder import PartitionHolder
        from train.run.bucket import BucketTrainer

        signs, train = self.folder, BucketTrainer.train
        rows, put = PartitionHolder.rows, PartitionExchange.put

        async def dying_rows(self, key, revision, start, stop):
            if start:
                die_once(f"{signs}/serving", bool)
            return await rows(self, key, revision, start, stop)

        def dying_put(self, tables, revision, folder, version):
            put(self, tables, revision, folder, version)
            if version > 1 and len(self.holder.resting()) > 2:
                die_once(f"{signs}/holding", bool)

        def dying_train(self, bucket, *arguments):
            trained = train(self, bucket, *arguments)
            if bucket == (1, 2):
                die_once(f"{signs}/training", bool)
            return trained

        PartitionHolder.rows, PartitionExchange.put, BucketTrainer.train = dying_rows, dying_put, dying_train


def test_workers_that_die_with_partitions_cost_their_buckets(tmp_path):
    """SIGKILL to workers in mid-bucket, sending a partition, and with partitions that are in no file yet."""
    config = planted_graph(tmp_path / "run", 3, num_partitions=6, dimension=32, num_epochs=3)
    with workers(3) as client:
        client.register_plugin(Dies(str(tmp_path)))
        assert job.run(config, client)["version"] == 3
    assert all((tmp_path / death).exists() for death in ("training", "serving", "holding"))
    lines = pbg.read_stats(config.checkpoint_path)
    for epoch in range(3):
        buckets = [
            (each["lhs_partition"], each["rhs_partition"]) for each in lines if each["epoch_idx"] == epoch
        ]
        assert len(buckets) == len(set(buckets)) == 15  # pairs of six blocks
    assert_checksums(config.checkpoint_path)
    assert not storage.fs.list_hidden(config.checkpoint_path)
    assert mean_reciprocal_rank(config, KNOWN, TEST) > 0.05  # a blind guess scores .025


class Deadly(WorkerPlugin):
    """Has every worker die in one bucket, as if it did not fit in memory."""

    name = "deadly"

    def setup(self, worker):
        from train.run.bucket import BucketTrainer

        train = BucketTrainer.train

        def dying(self, bucket, *arguments):
            if bucket == (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            return train(self, bucket, *arguments)

        BucketTrainer.train = dying


def test_a_bucket_that_kills_its_workers_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "MAX_LOSSES", 1)
    config = planted_graph(tmp_path, 2, num_epochs=1)
    with workers(2) as client:
        client.register_plugin(Deadly())
        with pytest.raises(ClusterError, match=r"bucket \(1, 2\) took 2 workers down"):
            job.run(config, client)
