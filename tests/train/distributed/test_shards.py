"""Merging of rows: the mean of copies, weighted by what each has seen; what a worker writes behind."""

import socket

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
from tests.train.graphs import make_config, mean_reciprocal_rank, node_graph, relation, write_graph
from train import job
from train.distributed import shard_placement, shards
from train.distributed.messages import PartitionCopies, SavedFile
from train.distributed.partition_exchange import PartitionExchange
from train.distributed.partition_holder import PartitionHolder
from train.distributed.shards import Holder, ShardLostError, ShardRows, ShardServer, merged
from train.edges import schedule
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
            for _ in range(4)
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
    base, (values, growth), (their_values, their_growth), *_ = state
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


@pytest.mark.slow
@given(states)
def test_the_order_of_workers_does_not_matter(state):
    """Up to rounding, whenever they all began with the same rows."""
    base, (first, _), *copies = state
    ends = []
    for order in ((0, 1, 2), (2, 0, 1)):
        held = first, base
        for number in order:
            values, growth = copies[number]
            held = merged(np, held, (values, base + growth), base)
        ends.append(held)
    seen = sum(growth > 0 for _, growth in copies)
    touched = np.broadcast_to(widened(seen > 0), first.shape)
    np.testing.assert_allclose(ends[0][0][touched], ends[1][0][touched], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(ends[0][1], ends[1][1], rtol=1e-5, atol=1e-4)


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

    def names(self):
        return {("city", 0): 10, ("", 2): 4}

    def num_bytes(self):
        return 10 * 4 * 4 + 4 * 2 * 2 * 4

    def part_of(self, name, first, last, *, is_shard):
        width = {("city", 0): 3, ("", 2): 2}[name]
        shape = (last - first,) if width == 3 else (last - first, width)
        return np.zeros((last - first, width), np.float32), np.zeros(shape, np.float32)


def attach(dask_worker):
    (actor,) = dask_worker.state.actors.values()
    actor.copy = Zeros()


@pytest.fixture
def servers():
    """Two actors on two workers, and their addresses."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        client.as_current(),
    ):
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


def planted_cities(rng, num_groups=20, nodes=40, cities=15, degree=12):
    """Edges from nodes to the cities of their group, by many relations; groups are hidden in the ids."""
    group_of_node = rng.permutation(np.repeat(np.arange(num_groups), nodes))
    group_of_city = rng.permutation(np.repeat(np.arange(num_groups), cities))
    triples = [
        (node, int(rng.integers(NUM_RELATIONS)), int(city))
        for node, group in enumerate(group_of_node)
        for city in rng.choice(np.flatnonzero(group_of_city == group), degree, replace=False)
    ]
    triples = np.array(triples)
    rng.shuffle(triples)
    return {"node": len(group_of_node), "city": len(group_of_city)}, triples[1000:], triples[:1000]


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
