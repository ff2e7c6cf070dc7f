"""Every order visits every bucket once, and keeps what its name promises."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.vocab import Bucket
from train.edges.bucket_order import elimination_order, ordered_buckets

ORDERS = ("affinity", "inside_out", "outside_in", "random")
partitions = st.integers(1, 9)
seeds = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("order", ORDERS)
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds)
def test_each_bucket_once(order, num_lhs, num_rhs, seed):
    buckets = ordered_buckets(order, num_lhs, num_rhs, seed)
    assert sorted(buckets) == [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]
    assert ordered_buckets(order, num_lhs, num_rhs, seed) == buckets


@pytest.mark.parametrize("order", ORDERS)
def test_other_seeds_give_other_orders(order):
    assert len({tuple(ordered_buckets(order, 4, 4, seed)) for seed in range(20)}) > 5


@given(num_lhs=partitions, num_rhs=partitions, seed=seeds)
def test_layers_come_from_the_outside_or_from_the_inside(num_lhs, num_rhs, seed):
    for order in ("outside_in", "inside_out"):
        layers = [min(bucket) for bucket in ordered_buckets(order, num_lhs, num_rhs, seed)]
        assert layers == sorted(layers, reverse=order == "inside_out")


@pytest.mark.parametrize("order", ["inside_out", "outside_in"])
@given(num=partitions, seed=seeds)
def test_within_a_layer_buckets_share_a_partition_and_follow_their_transposes(order, num, seed):
    buckets = ordered_buckets(order, num, num, seed)
    for one, two in pairwise(buckets):
        assert min(one) != min(two) or set(one) & set(two)
    place = {bucket: number for number, bucket in enumerate(buckets)}
    for bucket in buckets:
        assert abs(place[bucket] - place[Bucket(bucket.rhs, bucket.lhs)]) == (bucket.lhs != bucket.rhs)


@given(num_lhs=partitions, num_rhs=partitions, seed=seeds)
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


@given(num_lhs=partitions, num_rhs=partitions, slots=st.integers(2, 6), seed=seeds)
def test_elimination_visits_each_bucket_once(num_lhs, num_rhs, slots, seed):
    buckets = elimination_order(num_lhs, num_rhs, slots, seed)
    assert sorted(buckets) == [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]
    assert buckets == elimination_order(num_lhs, num_rhs, slots, seed)


@pytest.mark.parametrize(("num", "slots", "most"), [(16, 4, 46), (32, 8, 86), (8, 8, 8), (8, 2, 29)])
def test_elimination_loads_seldom(num, slots, most):
    """The figures of Marius' BETA order, against some three times as many of inside_out."""
    count = loads(elimination_order(num, num, slots, 1), slots)
    assert count <= most
    if slots == 4:
        assert loads(ordered_buckets("inside_out", num, num, 1), slots) > 2 * count
