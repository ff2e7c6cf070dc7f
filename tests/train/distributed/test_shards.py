"""Rows that workers share: the mean of copies, shards, what is exchanged and what is written behind."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster, get_worker
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from graphmill import storage
from graphmill.storage import fs
from graphmill.vocab import Bucket
from tests.train.graphs import (
    make_config,
    mean_reciprocal_rank,
    node_graph,
    random_triples,
    relation,
    write_graph,
)
from tests.waiting import wait_until
from train import job
from train.distributed import shard_placement, shards
from train.distributed.messages import PartitionCopies, SavedFile
from train.distributed.partition_exchange import PartitionExchange
from train.distributed.partition_holder import PartitionHolder
from train.distributed.shard_placement import ShardPlacement
from train.distributed.shards import Holder, ShardLostError, ShardRows, ShardServer, merged
from train.distributed.shared_state import SharedRows
from train.edges import schedule
from train.plan.decide import decide
from train.step.step import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext

NUM, DIMENSION = 6, 3
numbers = st.floats(-10, 10, width=32)
grown = st.one_of(st.just(0.0), st.floats(2**-10, 16, width=32))  # 0: not touched


def rows_of(elements, shape):
    return arrays(np.float32, shape, elements=elements)


states = st.booleans().flatmap(
    lambda row_wise: st.tuples(
        rows_of(st.floats(0, 16, width=32), NUM if row_wise else (NUM, DIMENSION)),
        *[
            st.tuples(
                rows_of(numbers, (NUM, DIMENSION)), rows_of(grown, NUM if row_wise else (NUM, DIMENSION))
            )
            for _ in range(2)
        ],
    )
)


def widened(sums):
    return sums if sums.ndim == 2 else sums[:, None]


def as_it_was(ours, theirs, base):
    """The mean as it was defined before there were shards: all in float64."""
    (values, sums), (their_values, their_sums) = (
        tuple(np.asarray(each, np.float64) for each in pair) for pair in (ours, theirs)
    )
    own, other = sums - base, their_sums - base
    share = np.where(own + other > 0, other / np.where(own + other > 0, own + other, 1), 0)
    return values + widened(share) * (their_values - values), sums + other


@pytest.mark.slow
@given(states)
def test_the_mean_is_weighted_by_squared_gradients(state):
    """A row that one copy has touched is taken over as it is; one that has missed something counts not."""
    base, (values, growth), (their_values, their_growth) = state
    ours, theirs = (values, base + growth), (their_values, base + their_growth)
    expected = as_it_was(ours, theirs, base)
    touched = np.broadcast_to(widened((growth > 0) | (their_growth > 0)), values.shape)
    found = merged(np, ours, theirs, base)
    np.testing.assert_allclose(found[0][touched], expected[0][touched], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-4)
    assert found[0].dtype == found[1].dtype == np.float32
    tensors = [tuple(map(torch.from_numpy, pair)) for pair in (ours, theirs)]
    for number, tensor in enumerate(merged(torch, *tensors, torch.from_numpy(base))):
        np.testing.assert_allclose(tensor.numpy(), found[number], rtol=1e-6, atol=1e-6)

    assert all(map(np.array_equal, merged(np, ours, (their_values, base - 1), base), ours))
    assert all(map(np.array_equal, merged(np, (values, base), theirs, base), theirs))
    touched = np.broadcast_to(widened(their_growth > 0), values.shape)
    back = merged(np, theirs, (values, base), base)  # and stays where nobody else has touched it
    assert np.array_equal(back[0][touched], their_values[touched])
    assert np.array_equal(back[1], theirs[1])


def test_messages_are_bounded():
    wanted = {("a", 0): np.arange(50_000), ("b", 0): np.arange(7), ("c", 0): np.arange(0), "rhs": np.ones(2)}
    sizes = {("a", 0): 800, ("b", 0): 12, ("c", 0): 4, "rhs": 0}  # rows without numbers
    found = list(shards.batches(wanted, sizes))
    for batch in found:
        assert sum(len(rows) * sizes[name] for name, rows in batch) <= shards.PIECE_BYTES
    assert len(found) == 5
    for name, rows in wanted.items():
        parts = [each for batch in found for key, each in batch if key == name]
        assert np.array_equal(np.concatenate([*parts, np.arange(0)]), rows)


@given(st.integers(1, 9), st.integers(0, 40))
def test_every_row_is_in_one_shard(num_shards, num_rows):
    ranges = [schedule.equal_part(num_rows, shard, num_shards) for shard in range(num_shards)]
    assert [row for first, last in ranges for row in range(first, last)] == list(range(num_rows))


class Zeros:
    """A copy of two kinds of rows, all of them zero."""

    def __init__(self):
        tables = {
            ("city", 0): Table(torch.zeros(10, 3), torch.zeros(10)),
            ("", 2): Table(torch.zeros(4, 2), torch.zeros(4, 2)),
        }
        self.parts = {name: SharedRows(table, in_rounds=False) for name, table in tables.items()}

    def num_bytes(self):
        return 10 * 4 * 4 + 4 * 2 * 2 * 4


def attach(dask_worker):
    (actor,) = dask_worker.state.actors.values()
    actor.copy = Zeros()


@contextmanager
def two_workers():
    """The client of two workers in this process."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def servers():
    """Two actors on two workers, and their addresses."""
    with two_workers() as client, client.as_current():
        addresses = sorted(client.scheduler_info()["workers"])
        futures = [client.submit(ShardServer, actor=True, workers=[each], pure=False) for each in addresses]
        actors = [future.result() for future in futures]
        keys = [future.key for future in futures]
        yield client, actors, [Holder(0, *pair, 0) for pair in zip(addresses, keys, strict=True)]


@pytest.mark.slow
def test_a_worker_that_is_gone_is_not_waited_for(servers):
    """Dask would knock for as long as its configuration says."""
    client, _, holders = servers
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = holders[0]._replace(address=f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    with dask.config.set({"distributed.comm.timeouts.connect": "1h"}):
        asked = client.submit(lambda: shards.call_from_worker(get_worker(), gone, "revisions"), pure=False)
        with pytest.raises(ShardLostError, match="Timed out"):
            asked.result(timeout=300)


def city(rows, value, base=0.0):
    """Rows that a worker has moved to `value` by one squared gradient."""
    rows = np.array(rows)
    values = np.full((len(rows), 3), value, np.float32)
    before = np.full(len(rows), base, np.float32)
    return ShardRows(("city", 0), rows, values, before + 1, before)


def read(server, number, rows):
    ((values, sums),) = shards.call(server, "read", number, [(("city", 0), np.array(rows))])
    return values[:, 0].tolist(), sums.tolist()


def changed(server, number, since, own=()):
    revision, found = shards.call(server, "changed", number, [("city", 0)], since, set(own))
    return revision, found["city", 0].tolist()


def test_in_rounds_nothing_changes_before_the_end_of_a_round(servers):
    client, (server, _), (holder, _) = servers
    with pytest.raises(ShardLostError, match="no copy"):
        shards.call(server, "hold", 1, (0, 2), None, True)
    client.run(attach)
    shards.call(server, "hold", 1, (0, 1), None, True)
    shards.call(server, "place", [holder._replace(number=1)])
    pushes = {3: city([1, 2], 1e8), 9: city([2], 1.0), 5: city([2], 3.0)}
    for grant, pushed in pushes.items():
        for _ in range(2):  # a worker that has missed the answer pushes again
            shards.call(server, "push", 1, [pushed], grant, 0)
    assert changed(server, 1, 0) == (0, [])
    shards.call(server, "merge", [5, 3])  # 9 does not count: its worker was lost
    # in this order: the other rounds to 50000004
    assert read(server, 1, [1, 2]) == ([1e8, 5e7], [1.0, 2.0])
    shards.call(server, "merge", [9])
    assert read(server, 1, [2])[0] == [5e7]


def test_a_shard_moves_with_all_that_was_pushed(servers, monkeypatch):
    monkeypatch.setattr(shards, "PIECE_BYTES", 64)
    client, (former, new), (source, target) = servers
    client.run(attach)
    source, target = source._replace(number=1), target._replace(number=2)
    shards.call(former, "hold", 1, (0, 1), None, True)
    shards.call(former, "place", [source])
    shards.call(former, "push", 1, [city(range(1, 9), 2.0)], None, 0)
    missed = city([9], 3.0)._replace(base=np.full(1, 4, np.float32))  # counts for nothing, and is told
    shards.call(former, "push", 1, [missed], None, 0)
    shards.call(former, "hand_over", 1)
    shards.call(former, "place", [None])
    with pytest.raises(ShardLostError):
        shards.call(former, "push", 1, [city([3], 2.0)], None, 0)
    shards.call(new, "hold", 2, (0, 1), source, False)
    for each in (former, new):
        shards.call(each, "place", [target])
    assert read(new, 2, range(10)) == ([0.0, *[2.0] * 8, 0.0], [0.0, *[1.0] * 8, 0.0])
    assert changed(new, 2, 0)[1] == list(range(1, 10))
    assert changed(new, 2, 0, [1, 3])[1] == [9]
    with pytest.raises(ShardLostError):
        read(former, 1, [3])


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_commit_may_delete_the_folder_of_a_file_that_is_being_written(tmp_path, monkeypatch, is_deleted):
    """The coordinator commits newer copies; the worker goes on."""
    config = node_graph(tmp_path, np.random.default_rng(3), num_edges=50, num_partitions=2)
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
    tables = exchange.take({key: PartitionCopies(0, file=SavedFile(0, config.checkpoint_path, 0, "", True))})
    exchange.put(tables, 1, folder, 1)
    monkeypatch.setattr(fs, "move", move)
    exchange.write_behind(0)
    exchange.close()
    assert len(saved) == (0 if is_deleted else 1)
    assert torch.equal(exchange.holder.take((key, 1)).table.embeddings_ND, tables[key].embeddings_ND)


NUM_RELATIONS = 12


def planted_cities(rng, num_groups=20, num_nodes=800, num_edges=9600):
    """Edges from nodes to the cities of their group, by many relations; no id tells a node's group."""
    group_of_node = rng.integers(num_groups, size=num_nodes)
    lhs, rel = rng.integers(num_nodes, size=num_edges), rng.integers(NUM_RELATIONS, size=num_edges)
    rhs = num_groups * rng.integers(15, size=num_edges) + group_of_node[lhs]
    triples = rng.permutation(np.unique(np.stack([lhs, rel, rhs], axis=1), axis=0))
    return {"node": num_nodes, "city": 15 * num_groups}, triples[1000:], triples[:1000]


def test_one_type_and_many_relations_in_all_buckets(tmp_path, client, monkeypatch):
    """Two workers exchange them while they train: the MRR of 1,000 held-out edges is within .005."""
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1 << 12)  # one on each worker
    counts, train, test = planted_cities(np.random.default_rng(5))
    known, found, moved = np.concatenate([train, test]), {}, {}
    settings = {"dimension": 16, "num_epochs": 8, "batch_size": 400, "num_uniform_negs": 50}
    relations = [relation("translation", name=f"r{number}", rhs="city") for number in range(NUM_RELATIONS)]
    for num in (1, 2):
        config = make_config(
            tmp_path / str(num),
            entities={"node": {"num_partitions": 4}, "city": {"num_partitions": 1}},
            relations=relations,
            regularization_coef=0.01,
            train={"num_workers": num, "shared_interval_s": 0.05},
            **settings,
        )
        write_graph(config, counts, train)
        figures = job.run(config, client)
        found[num] = mean_reciprocal_rank(config, known, test)
        moved[num] = sum(each.get("shared_bytes", 0) for each in figures["epochs"])
    assert found[1] > 0.08  # a blind guess scores .015
    assert found[2] > found[1] - 0.005, found
    assert moved[1] == 0 < moved[2]


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


def exchanged(copy):
    """Parameters that lie in the tables that workers exchange."""
    places = {part.table.embeddings_ND.untyped_storage().data_ptr() for part in copy.parts.values()}
    values = copy.model.parameters.items()
    return {name for name, value in values if value.untyped_storage().data_ptr() in places}


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
    with two_workers() as client:
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
        assert cluster.on(0, exchanged)[0] == {name for name in steps if steps[name]}


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
