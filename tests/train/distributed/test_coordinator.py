"""The coordinator with simulated workers: its CPU time, the workers' waiting, lost workers."""

import time
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import all_buckets
from graphmill.vocab import Bucket
from tests.train.distributed.simulated import SimulatedPool, coordinator_of, lines_of
from tests.train.graphs import make_config
from train.edges.bucket_order import num_passes


def config_of(root, num_partitions, num_workers, bucket_assignment="dynamic", **settings):
    relations = [
        {"name": f"r{number}", "lhs": "node", "rhs": "node", "operator": "none"} for number in range(20)
    ]
    return make_config(
        root,
        entities={"node": {"num_partitions": num_partitions}},
        relations=relations,
        train={"num_workers": num_workers, "bucket_assignment": bucket_assignment},
        **settings,
    )


def simulate(root, num_partitions, num_workers):
    """One epoch; CPU milliseconds of the coordinator per bucket, share of the time that workers wait."""
    config = config_of(root, num_partitions, num_workers, num_epochs=1)
    # virtual seconds per bucket are about 1
    pool = SimulatedPool(num_workers, progress_s=0.5 * max(1, num_workers / 8))
    run = coordinator_of(config, pool)
    begun_s = time.process_time()
    run.run()
    cpu_s = time.process_time() - begun_s - pool.cpu_s
    return 1000 * cpu_s / num_partitions**2, pool.waited_s / (pool.waited_s + pool.trained_s)


@pytest.mark.slow
def test_coordinator_takes_little_time(tmp_path):
    """Less than a thirtieth of what it took when it looked at all buckets after each message."""
    cpu_ms, waiting = simulate(tmp_path, 32, 8)
    assert cpu_ms < 10
    assert waiting < 0.1


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), num_partitions=st.integers(2, 9), num_losses=st.integers(0, 6))
def test_lost_workers_cost_buckets_only(tmp_path_factory, seed, num_partitions, num_losses):
    """Each bucket counts once in each epoch, and the checkpoint is whole, whenever workers are lost."""
    root = tmp_path_factory.mktemp("run")
    config = config_of(root, num_partitions, 3, num_epochs=2)
    pool = SimulatedPool(3, num_losses=num_losses, seed=seed)
    assert coordinator_of(config, pool).run()["version"] == 2
    for buckets in lines_of(config).values():
        assert sorted(buckets) == sorted(all_buckets(config))
    _assert_whole(config, num_partitions)


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["dynamic", "tournament"])
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(3, 9), num_losses=st.integers(0, 6))
def test_lost_workers_cost_visits_of_blocks_only(tmp_path_factory, assignment, seed, num_blocks, num_losses):
    """Each visit counts once too where partitions are joined to blocks, anew in each pass."""
    root = tmp_path_factory.mktemp("run")
    config = config_of(root, num_blocks + 3, 3, num_epochs=2, bucket_assignment=assignment)
    pool = SimulatedPool(3, num_losses=num_losses, seed=seed)
    assert coordinator_of(config, pool, num_blocks).run()["version"] == 2
    pairs = {Bucket(*pair) for pair in combinations(range(num_blocks), 2)}
    for visits in lines_of(config).values():
        assert len(visits) == len(set(visits)) == num_passes(num_blocks) * len(pairs)
        assert {Bucket(*sorted(each)) for each in visits} == pairs
    _assert_whole(config, num_blocks + 3)


def _assert_whole(config, num_partitions):
    stems = pbg.versions_of(config.checkpoint_path)[2]
    assert stems == {"model"} | {f"embeddings_node_{part}" for part in range(num_partitions)}
    assert not storage.fs.list_hidden(config.checkpoint_path)
