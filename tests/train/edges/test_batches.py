"""Batches and buckets: all edges once, every bucket once, the same edges held out."""

from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.run import seeds
from graphmill.vocab import Bucket, Side
from tests.train.graphs import make_config, relation
from train.edges import batches
from train.edges.batches import EdgeTensors
from train.edges.visits import elimination_order, ordered_buckets

RELATIONS = [relation("none", name=f"r{i}") for i in range(4)]


def numbered(rel) -> EdgeTensors:
    """Edges whose lhs is their own number."""
    number = torch.arange(len(rel))
    return EdgeTensors(number, torch.tensor(rel, dtype=torch.int64), number + 1000, number.float())


def cut(dynamic, edges, batch_size, seed=0):
    relations = RELATIONS[:1] if dynamic else RELATIONS
    config = make_config("unused", relations=relations, dynamic_relations=dynamic, batch_size=batch_size)
    return list(batches.cut(config, edges, torch.Generator().manual_seed(seed)))


@given(dynamic=st.booleans(), rel=st.lists(st.integers(0, 3), max_size=150), batch_size=st.integers(1, 20))
def test_every_edge_once_and_whole(dynamic, rel, batch_size):
    edges = numbered(rel)
    found = cut(dynamic, edges, batch_size)
    numbers = [n for batch in found for n in batch.index[Side.LHS].tolist()]
    assert sorted(numbers) == list(range(len(rel)))
    for batch in found:
        assert 0 < len(batch) <= batch_size * batch.num_steps
        assert batch.num_steps == 1 or len(batch) == batch_size * batch.num_steps
        lhs = batch.index[Side.LHS]
        assert torch.equal(batch.index[Side.RHS], lhs + 1000)
        assert torch.equal(batch.weight_B, lhs.float())
        rels = edges.rel[lhs]
        if dynamic:
            assert torch.equal(batch.rel_B, rels)
        else:
            assert batch.rel_B is None
            assert (rels == batch.relation).all()
    if not dynamic:  # no more batches than the relations need
        assert len(found) == sum(-(-rel.count(r) // batch_size) for r in range(4))


def test_order_is_random_and_repeatable():
    edges = numbered([0, 1] * 50)
    orders = [
        tuple(n for batch in cut(False, edges, 10, seed) for n in batch.index[Side.LHS].tolist())
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != tuple(sorted(orders[0]))


def test_batches_are_handed_on_together_fewer_towards_the_end():
    found = [batch.num_steps for batch in cut(True, numbered([0] * 6403), 100)]
    assert found[0] == 4
    assert found == sorted(found, reverse=True)
    assert found[-17:] == [1] * 17  # the last has 3 edges
    (relation,) = RELATIONS[:1]
    config = make_config("unused", relations=[relation | {"all_negs": True}], batch_size=100)
    alone = batches.cut(config, numbered([0] * 6400), torch.Generator())
    assert {batch.num_steps for batch in alone} == {1}  # each holds a list of all entities


@given(
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=50),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_edge_alone_decides_whether_it_is_held_out(edges, fraction, seed):
    columns = tuple(np.array(edges, np.int64).reshape(-1, 3).T)
    is_held = seeds.held_out(columns, fraction, seed)
    for edge, found in zip(edges, is_held.tolist(), strict=True):
        assert seeds.held_out(tuple(np.array([each]) for each in edge), fraction, seed).item() == found
    if fraction in (0, 1):
        assert is_held.tolist() == [bool(fraction)] * len(edges)


def test_about_the_fraction_is_held_out():
    fraction = 0.05
    columns = np.divmod(np.arange(10_000), 100)
    is_held = seeds.held_out((columns[0], np.zeros(10_000, int), columns[1]), fraction, 7)
    assert abs(is_held.mean() - fraction) < 5 * (fraction * (1 - fraction) / 10_000) ** 0.5


@given(held=st.lists(st.booleans(), max_size=50))
def test_held_out_edges_are_the_rest(held):
    edges = replace(numbered([0] * len(held)), is_held_out=torch.tensor(held, dtype=torch.bool))
    kept, rest = batches.split(edges, torch.Generator().manual_seed(7))
    assert sorted(rest.lhs.tolist()) == [row for row, each in enumerate(held) if each]
    assert kept.lhs.tolist() == [row for row, each in enumerate(held) if not each]


ORDERS = ("affinity", "inside_out", "outside_in", "random")
partitions = st.integers(1, 9)
bucket_seeds = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("order", [*ORDERS, "elimination"])
@given(num_lhs=partitions, num_rhs=partitions, slots=st.integers(2, 6), seed=bucket_seeds)
def test_each_bucket_once(order, num_lhs, num_rhs, slots, seed):
    ordered = partial(ordered_buckets, order, num_lhs, num_rhs, seed)
    if order == "elimination":
        ordered = partial(elimination_order, num_lhs, num_rhs, slots, seed)
    assert sorted(ordered()) == [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]
    assert ordered() == ordered()


@pytest.mark.parametrize("order", ORDERS)
def test_other_seeds_give_other_orders(order):
    assert len({tuple(ordered_buckets(order, 4, 4, seed)) for seed in range(20)}) > 5


@given(num_lhs=partitions, num_rhs=partitions, seed=bucket_seeds)
def test_layers_come_from_the_outside_or_from_the_inside(num_lhs, num_rhs, seed):
    for order in ("outside_in", "inside_out"):
        layers = [min(bucket) for bucket in ordered_buckets(order, num_lhs, num_rhs, seed)]
        assert layers == sorted(layers, reverse=order == "inside_out")


@given(order=st.sampled_from(["inside_out", "outside_in"]), num=partitions, seed=bucket_seeds)
def test_within_a_layer_buckets_share_a_partition_and_follow_their_transposes(order, num, seed):
    buckets = ordered_buckets(order, num, num, seed)
    for one, two in pairwise(buckets):
        assert min(one) != min(two) or set(one) & set(two)
    place = {bucket: number for number, bucket in enumerate(buckets)}
    for bucket in buckets:
        assert abs(place[bucket] - place[Bucket(bucket.rhs, bucket.lhs)]) == (bucket.lhs != bucket.rhs)


@given(num_lhs=partitions, num_rhs=partitions, seed=bucket_seeds)
def test_affinity_shares_a_partition_while_it_can(num_lhs, num_rhs, seed):
    buckets = ordered_buckets("affinity", num_lhs, num_rhs, seed)
    for number in range(1, len(buckets)):
        last = buckets[number - 1]
        could = any(set(last) & set(bucket) for bucket in buckets[number:])
        assert bool(set(last) & set(buckets[number])) is could


def loads(buckets, slots):
    """Partitions that have to be loaded, if of those in memory the one that is needed last has to leave."""
    held, count = set(), 0
    for number, bucket in enumerate(buckets):
        for part in set(bucket) - held:
            count += 1
            while len(held | set(bucket)) > slots:
                coming = {p: next((n for n, b in enumerate(buckets[number:]) if p in b), 10**9) for p in held}
                held.remove(max(held - set(bucket), key=coming.get))
            held.add(part)
    return count


@pytest.mark.parametrize(("num", "slots", "most"), [(16, 4, 46), (32, 8, 86), (8, 8, 8), (8, 2, 29)])
def test_elimination_loads_seldom(num, slots, most):
    """The figures of Marius' BETA order, against some three times as many of inside_out."""
    count = loads(elimination_order(num, num, slots, 1), slots)
    assert count <= most
    if slots == 4:
        assert loads(ordered_buckets("inside_out", num, num, 1), slots) > 2 * count
