"""No two buckets that are trained at a time share a partition, and every bucket is trained once."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.vocab import Bucket
from train.distributed.bucket_assignment import Dynamic, Tournament, rounds_of
from train.edges.bucket_order import ordered_buckets

partitions = st.integers(1, 7)
seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 5)


def one_type(bucket):
    return {("node", bucket.lhs), ("node", bucket.rhs)}


def two_types(bucket):
    return {("user", bucket.lhs), ("item", bucket.rhs)}


KEYS = pytest.mark.parametrize("keys", [one_type, two_types])


def everything(num_lhs, num_rhs):
    return [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]


def play(assignment, keys, num_workers, draw):
    """Let workers take, finish and lose buckets in any order; buckets as they were committed."""
    holds, last, done, lost = {}, {}, [], 0
    while not assignment.finished:
        worker = draw(st.integers(0, num_workers - 1))
        if worker not in holds:
            bucket = assignment.next_bucket(last.get(worker))
            if bucket is not None:
                for other in holds.values():
                    assert keys(other).isdisjoint(keys(bucket))
                holds[worker] = bucket
            else:
                assert holds  # or nobody could ever go on
        elif lost < 3 and draw(st.booleans()):
            lost += 1
            assignment.give_back(holds.pop(worker))
        elif assignment.may_publish(holds[worker]):
            last[worker] = holds.pop(worker)
            assignment.commit(last[worker])
            done.append(last[worker])
        elif all(not assignment.may_publish(bucket) for bucket in holds.values()):
            assignment.give_back(holds.pop(worker))
    return done


@KEYS
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds, num=sizes, from_one=st.booleans(), data=st.data())
def test_dynamic(keys, num_lhs, num_rhs, seed, num, from_one, data):
    order = ordered_buckets("random", num_lhs, num_rhs, seed)
    done = play(Dynamic(order, keys, from_one=from_one), keys, num, data.draw)
    assert sorted(done) == everything(num_lhs, num_rhs)


@pytest.mark.slow
@KEYS
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds, num=sizes, from_one=st.booleans(), data=st.data())
def test_tournament_commits_in_one_order(keys, num_lhs, num_rhs, seed, num, from_one, data):
    order = ordered_buckets("inside_out", num_lhs, num_rhs, seed)
    rounds = rounds_of(order, keys, num, from_one=from_one)
    done = play(Tournament(rounds), keys, data.draw(sizes), data.draw)
    assert done == [bucket for each in rounds for bucket in each]
    assert sorted(done) == everything(num_lhs, num_rhs)


@KEYS
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds, size=sizes, from_one=st.booleans())
def test_rounds_share_no_partition(keys, num_lhs, num_rhs, seed, size, from_one):
    rounds = rounds_of(ordered_buckets("random", num_lhs, num_rhs, seed), keys, size, from_one=from_one)
    for each in rounds:
        held = [key for bucket in each for key in keys(bucket)]
        assert len(held) == len(set(held))
        assert len(each) <= size


@pytest.mark.parametrize(("num", "size"), [(4, 2), (8, 4), (16, 8), (8, 2)])
def test_rounds_are_full(num, size):
    """A homogeneous graph of P partitions needs about P * P / size rounds."""
    rounds = rounds_of(ordered_buckets("inside_out", num, num, 1), one_type, size, from_one=False)
    assert len(rounds) <= num * num / size * 1.3 + 1


@given(num=partitions, seed=seeds, data=st.data())
def test_partitions_grow_out_of_one(num, seed, data):
    """In the first iteration a bucket waits until one of its partitions has been trained."""
    assignment = Dynamic(ordered_buckets("random", num, num, seed), one_type, from_one=True)
    done = play(assignment, one_type, 4, data.draw)
    trained = one_type(done[0])
    for bucket in done[1:]:
        assert not trained.isdisjoint(one_type(bucket))
        trained |= one_type(bucket)


def test_a_worker_keeps_the_partitions_that_it_has():
    assignment = Dynamic(everything(3, 3), one_type, from_one=False)
    first = assignment.next_bucket(None)
    assignment.commit(first)
    assert first == Bucket(0, 0)
    assert assignment.next_bucket(Bucket(2, 1)) == Bucket(1, 2)


def test_a_bucket_that_is_given_back_is_the_next_one():
    assignment = Dynamic(everything(3, 3), one_type, from_one=False)
    first = assignment.next_bucket(None)
    assignment.give_back(first)
    assert assignment.next_bucket(None) == first
