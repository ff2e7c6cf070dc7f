"""Copies of the shared state on several workers, and what they exchange with the shards."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster, get_worker

from graphmill.vocab import Bucket
from tests.train.graphs import make_config, random_triples, write_graph
from tests.waiting import wait_until
from train.distributed import shard_placement
from train.distributed.shard_placement import ShardPlacement
from train.distributed.shards import Holder, ShardLostError
from train.distributed.shared_state import SharedRows
from train.plan.decide import decide
from train.step.step import Table
from train.tables.run_context import RunContext

NUM_ROWS = 100_000  # of 36 bytes: more than a shard of 1 MiB for each worker
KEY = ("city", 0)


def write(root, num_rows=NUM_ROWS, **settings):
    """A graph between a type with two partitions and a type with one, with three kinds of parameters."""
    config = make_config(
        root,
        entities={"node": {"num_partitions": 2}, "city": {"num_partitions": 1}},
        relations=[
            {"name": "lives", "lhs": "node", "rhs": "city", "operator": "translation"},
            {"name": "near", "lhs": "city", "rhs": "city", "operator": "linear"},
            {"name": "still", "lhs": "node", "rhs": "city", "operator": "diagonal"},
        ],
        global_emb=True,
        train={"num_workers": 2, "freeze": ["still"], "shared_interval_s": 0.01} | settings,
    )
    write_graph(
        config, {"node": 20, "city": num_rows}, random_triples(np.random.default_rng(3), 20, 3, 20, 50)
    )
    return config


def server():
    (actor,) = get_worker().state.actors.values()
    return actor


def begin(config):
    """Make a copy of the state on this worker, which its server keeps."""
    from train.distributed.shared_state import SharedState

    context = RunContext(config)
    SharedState(context, *context.load_model(), decide(context, 2), server())


def on_copy(function, *arguments):
    """Call a function with this worker's copy; returns its result and the bytes that it moved."""
    copy = server().copy
    copy.moved()
    return function(copy, *arguments), copy.moved()["shared_bytes"]


def step(copy, rows, value, growth):
    """Move rows of the type to `value`, and all relations by .5, as a step would."""
    table = copy.tables[KEY]
    table.embeddings_ND[rows] = value
    table.sums[rows] += growth
    for name, parameter in copy.model.parameters.items():
        if name not in copy.adagrad.frozen:
            parameter += 0.5
            copy.adagrad.sums[name] += growth
            copy.adagrad.steps[name] += 3


def trained(copy, rows, value, growth=1.0, grant=1):
    copy.begin()
    step(copy, rows, value, growth)
    copy.push(grant)


def state(copy):
    """Take over what others have pushed; all that the copy holds."""
    copy.begin()
    table = copy.tables[KEY]
    parameters = {name: value.clone() for name, value in copy.model.parameters.items()}
    sums = {name: value.clone() for name, value in copy.adagrad.sums.items()}
    return table.embeddings_ND.clone(), table.sums.clone(), parameters, sums, dict(copy.adagrad.steps)


class Cluster:
    """Two workers with copies, and shards on both."""

    def __init__(self, client, config, *functions):
        self.client = client
        self.addresses = sorted(client.scheduler_info()["workers"])
        in_rounds = config.train.bucket_assignment == "tournament"
        self.placement = ShardPlacement(client, 2, in_rounds=in_rounds)
        for address in self.addresses:
            self.placement.start(address)
        for number, address in enumerate(self.addresses):
            self.submit(number, functions[number], config)
            self.placement.add(address)

    def submit(self, number, function, *arguments):
        return self.client.submit(
            function, *arguments, workers=[self.addresses[number]], pure=False, allow_other_workers=False
        ).result(timeout=300)

    def on(self, number, function, *arguments):
        return self.submit(number, on_copy, function, *arguments)


@contextmanager
def cluster_of(config, begins=begin, joins=begin):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield Cluster(client, config, begins, joins)


@pytest.mark.slow
def test_traffic_grows_with_the_rows_that_change(tmp_path):
    """1,000 of many rows are pushed, and pulled by the other worker; then nothing."""
    with cluster_of(write(tmp_path)) as cluster:
        rows = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(1))[:1000]
        row_bytes = 8 * 4 + 4
        holders = cluster.placement.holders
        assert len(holders) == 2 == len({holder.address for holder in holders})
        _, pushed = cluster.on(0, trained, rows, 7.0)
        _, pulled = cluster.on(1, state)
        _, nothing = cluster.on(1, state)
        _, own = cluster.on(0, state)  # nobody else has changed what it has pushed
        assert 1000 * row_bytes < pushed < 1000 * (row_bytes + 8 + 4) + 10_000
        assert 1000 * row_bytes < pulled < 1000 * (row_bytes + 8) + 10_000
        assert nothing == own == 0
        (values, sums, *_), _ = cluster.on(1, state)
        assert (values[rows] == 7).all()
        assert sums.sum() == 1000


def test_both_workers_count(tmp_path, monkeypatch):
    """Rows of one worker are taken over, rows and relations of both are averaged, steps add up."""
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1)
    with cluster_of(write(tmp_path, 20)) as cluster:
        first, _ = cluster.on(1, state)
        cluster.on(0, trained, [1, 2], 8.0)
        cluster.on(1, step, [2, 3], 4.0, 3.0)
        cluster.on(1, push, 2)
        ends = [cluster.on(number, state)[0] for number in (0, 1)]
        for values, sums, parameters, parameter_sums, steps in ends:
            assert values[[1, 2, 3]].mean(1).tolist() == [8.0, 5.0, 4.0]
            assert sums[[0, 1, 2, 3]].tolist() == [0.0, 1.0, 4.0, 3.0]
            assert torch.equal(values[4:], first[0][4:])
            for name, value in parameters.items():
                is_frozen = torch.equal(value, first[2][name])
                assert is_frozen == (steps[name] == 0)
                if not is_frozen:  # both have moved it by .5, so has the mean
                    torch.testing.assert_close(value, first[2][name] + 0.5)
                    assert (parameter_sums[name] == 4).all()
                    assert steps[name] == 6
        assert any(steps.values())
        assert not all(steps.values())


def push(copy, grant):
    copy.push(grant)


def test_in_a_tournament_a_round_begins_with_the_last_one(tmp_path, monkeypatch):
    """Pushes wait, even for the worker that has made them; and come in the order of the buckets."""
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1)
    ends = []
    for order in ((0, 1), (1, 0)):
        config = write(tmp_path / str(order), 20, bucket_assignment="tournament")
        with cluster_of(config) as cluster:
            first, _ = cluster.on(0, state)
            for number in order:
                cluster.on(number, trained, [number, 2], 8.0 / (number + 1), number + 0.1, number + 1)
                cluster.placement.publish((number, number), number + 1)
            unchanged, _ = cluster.on(order[0], state)
            assert torch.equal(unchanged[0], first[0])
            assert unchanged[4] == first[4]
            cluster.placement.end_round()
            ends += [cluster.on(number, state)[0] for number in (0, 1)]
    assert not torch.equal(ends[0][0], first[0])
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=0)


def trains_with_others(copy):
    """Train in the middle of a bucket until the other worker's rows have come."""
    copy.begin()
    with copy.exchanging():
        step(copy, [1], 8.0, 1.0)
        wait_until(lambda: (copy.tables[KEY].embeddings_ND[3] == 5).all(), 300)
    return copy.tables[KEY].embeddings_ND[1].tolist()


def test_workers_exchange_rows_while_they_train(tmp_path):
    with cluster_of(write(tmp_path, 20)) as cluster, ThreadPoolExecutor(1) as pool:
        training = pool.submit(cluster.on, 0, trains_with_others)

        def arrives():
            return (cluster.on(1, state)[0][0][1] == 8).all()

        wait_until(arrives, 300)  # while the first one is in mid-bucket
        assert not training.done()
        cluster.on(1, trained, [3], 5.0)
        assert training.result()[0] == [8.0] * 8


def comes_late(config):
    """Make a copy, and change it before this worker holds a shard."""
    begin(config)
    step(server().copy, [3, 13], 2.0, 1.0)


def test_rows_that_become_a_shard_are_not_pushed_to_it():
    rows = SharedRows(Table(torch.zeros(3, 2), torch.zeros(3)), in_rounds=False)
    rows.table.sums += 1
    for is_shard, moved in ((False, [0, 1, 2]), (True, [])):
        rows.part(0, 3, is_shard=is_shard)
        assert rows.moved(0, 3).tolist() == moved


def test_a_worker_that_takes_over_a_shard_keeps_its_own_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1)
    with cluster_of(write(tmp_path, 20), begins=begin, joins=comes_late) as cluster:
        cluster.on(1, push, 1)
        (values, sums, *_), _ = cluster.on(0, state)
        assert values[[3, 13]].mean(1).tolist() == [2.0, 2.0]
        assert sums.sum() == 2


def test_a_lost_shard_is_made_from_what_others_know(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1)
    with cluster_of(write(tmp_path, 20)) as cluster:
        cluster.on(0, trained, [1, 11], 8.0)
        cluster.on(1, trained, [2, 12], 4.0)
        cluster.on(0, state)  # only this one knows all
        cluster.client.retire_workers([cluster.addresses[1]])
        cluster.placement.tend(cluster.addresses[:1])
        assert {holder.address for holder in cluster.placement.holders} == {cluster.addresses[0]}
        cluster.on(0, trained, [3, 13], 2.0)
        (values, *_), _ = cluster.on(0, state)
        assert values[[1, 2, 3, 11, 12, 13]].mean(1).tolist() == [8.0, 4.0, 2.0] * 2


def interrupted(copy):
    """Lose the shard in the middle of a pull; what the copy then says that it knows, and what it knew."""
    (holder,) = {each.origin: each for each in server().holders}.values()
    before, call, lists = copy.knows(holder.origin), copy._call, iter([True, False])

    def lose(holder, method, *arguments):
        if method == "changed" and not next(lists):
            raise ShardLostError("gone")
        return call(holder, method, *arguments)

    copy._call = lose
    with pytest.raises(ShardLostError):
        copy._pull(0, at_rest=True)
    copy._call = call
    return copy.knows(holder.origin), before


def test_half_a_pull_is_not_what_a_worker_knows(tmp_path):
    """It decides who makes a lost shard anew, and whether the run says that it does not repeat."""
    with cluster_of(write(tmp_path, 20, bucket_assignment="tournament")) as cluster:
        cluster.placement.publish(Bucket(0, 0), 1)
        cluster.on(0, trained, [1], 8.0)
        cluster.placement.end_round()
        (knows, before), _ = cluster.on(1, interrupted)
        assert knows == before
        cluster.on(1, state)
        (knows, _), _ = cluster.on(1, interrupted)
        assert knows > before


def test_shards_that_are_lost_or_move(monkeypatch):
    """A lost one, also one on its way, goes to the worker that knows most of it; a move keeps revisions."""
    knows, lost = {"a": 3, "b": 7}, Holder(1, "a", "key", 9)
    monkeypatch.setattr(shard_placement.shards, "call", lambda actor, *_, **__: knows[actor])
    placement = ShardPlacement(SimpleNamespace(cancel=print), 2, in_rounds=False)
    placement._ready = dict(zip(knows, knows, strict=True))
    placement._servers = {name: SimpleNamespace(key=name) for name in knows}
    placement.holders, placement._former = [None], {0: lost}
    placement._lose("a")
    assert (placement._lost, placement._former) == ({0: lost}, {})
    placement._ready = dict(zip(knows, knows, strict=True))
    assert placement._candidates(0) == ["b", "a"]
    placement._lost, placement._former = {}, {0: lost}
    assert placement._find_holder(0, "b", is_first=False)
    assert placement.holders[0].origin == 9
