"""Exact queries: those of the greatest weight, within a share of the scores; each query in one part."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.vocab import Side
from tests.train.graphs import make_config, write_graph
from tests.train.step.test_queries import all_negs
from train.edges import batches, candidates
from train.edges.batches import EdgeTensors
from train.edges.candidates import CandidateSampler, exact
from train.edges.one_vs_all import QueryGroup
from train.tables import memory
from train.tables.run_context import RunContext

NUM_ROWS = 40_000


def group(counts, side=Side.RHS, weight=1.0):
    count_Q = torch.tensor(counts, dtype=torch.long)
    answer_A = torch.arange(int(count_Q.sum()))
    weight_A = torch.full((len(answer_A),), weight)
    return QueryGroup(0, side, torch.arange(len(counts)), None, count_Q, answer_A, weight_A, 1.0)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=800),
    st.lists(st.integers(1, 50), min_size=1, max_size=800),
    st.sampled_from([0, 9_000, 90_000]),
    st.sampled_from([1_000, 4_000]),
)
def test_the_heaviest_within_the_limits(lhs, rhs, more, num):
    groups, rows = [group(lhs, Side.LHS), group(rhs, weight=2.0)], [NUM_ROWS, more]
    masks = exact(groups, rows, num)
    assert [len(mask) for mask in masks] == [len(lhs), len(rhs)]
    parts = [(each.sum_weights(), mask, size) for each, mask, size in zip(groups, masks, rows, strict=True)]
    counted = [part for part in parts if part[2]]
    chosen, left = ([w for ws, m, _ in counted for w in ws[m == is_exact].tolist()] for is_exact in (1, 0))
    total = len(chosen) + len(left)
    assert len(chosen) <= total / candidates.ONE_OF
    assert sum(size * int(mask.sum()) for _, mask, size in counted) <= num * total / 2
    assert all(not mask.any() for _, mask, size in parts if not size)
    if chosen:
        assert min(chosen) >= max(left)
        assert min(chosen) > sum(chosen + left) / (total + (len(rhs) if not more else 0))


def test_queries_alike_take_a_sample_all():
    (mask,) = exact([group([3] * 6400)], [10_000], 4_000)
    assert not mask.any()


def test_some_are_exact():
    (mask,) = exact([group([1] * 6300 + [9] * 200)], [10_000], 4_000)
    assert mask.nonzero()[:, 0].tolist() == list(range(6300, 6300 + 6500 // candidates.ONE_OF))


def star(num):
    """Edges of many lhs to one rhs, and as many of a pair each."""
    many = torch.arange(num, dtype=torch.int32)
    lhs, rhs = torch.cat([many, many]), torch.cat([torch.zeros_like(many), many])
    return EdgeTensors(lhs, torch.zeros_like(lhs), rhs, None)


def config_of(candidates):
    config = all_negs("complex_diagonal", "dot", True, train={"candidates": candidates})
    return config.model_copy(update={"batch_size": 64})


def cut(config, edges, num_rows):
    rows = {side: [(num_rows, 0)] for side in Side}
    return list(batches.cut_for_training(config, edges, torch.Generator().manual_seed(0), rows))


@pytest.mark.parametrize(
    ("candidates", "num_rows", "num_exact"),
    [(500, 2000, 1), (1001, 2000, 0), (None, 2000, 0), (500, candidates.MOST_ELEMENTS, 0)],
    ids=["sampled", "a small table", "no sample", "a large table"],
)
def test_the_query_with_many_answers_is_exact(candidates, num_rows, num_exact):
    config, edges = config_of(candidates), star(2000)
    found = cut(config, edges, num_rows)
    whole = [batch for batch in found if not batch.takes_sample]
    assert sum(len(batch.entity_Q) for batch in whole) == num_exact
    assert all(batch.side is Side.LHS and batch.entity_Q.tolist() == [0] for batch in whole)
    sampler = CandidateSampler(config)
    assert all(sampler.draw(batch, 2000, torch.Generator()) is batch for batch in whole)
    asked = sorted(
        (side, int(entity), int(answer))
        for batch in found
        for side in [batch.side]
        for entity, answer in zip(batch.entity_Q[batch.query_A], batch.answer_A, strict=True)
    )
    ends = zip(edges.lhs.tolist(), edges.rhs.tolist(), strict=True)
    assert asked == sorted(each for lhs, rhs in ends for each in ((Side.LHS, rhs, lhs), (Side.RHS, lhs, rhs)))
    assert sum(batch.num_edges for batch in found) == len(edges)


def test_the_same_seed_cuts_the_same():
    config, edges = config_of(500), star(2000)
    first, second = cut(config, edges, 2000), cut(config, edges, 2000)
    for one, other in zip(first, second, strict=True):
        assert one.takes_sample == other.takes_sample
        assert torch.equal(one.entity_Q, other.entity_Q)


def test_memory_counts_the_gradient_of_all_rows(tmp_path):
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "complex_diagonal", "all_negs": True}
    needed = []
    for num in (10, None):
        config = make_config(tmp_path, relations=[relation], train={"candidates": num})
        write_graph(config, {"node": 5000}, np.array([[0, 0, 4999]]))
        needed.append(memory.queries_bytes(RunContext(config)))
    odds = 2 * 16 * 5000
    assert needed[0] - odds == needed[1] > 2 * 4 * 5000 * 8
