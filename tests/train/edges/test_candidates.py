"""CandidateSampler: distinct rows in proportion to their mass, and weights that make sums unbiased."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.vocab import Side
from tests.train.step.test_plain import Scene
from tests.train.step.test_queries import all_negs
from train.edges.candidates import CandidateSampler
from train.edges.one_vs_all import QueryBatch
from train.step.queries import QueryStep


def sampler(num):
    return CandidateSampler(all_negs("none", "dot", True, train={"candidates": num}))


def batch(num=3, weight=1.0):
    whole, weights = torch.arange(num), torch.full((num,), weight)
    return QueryBatch(
        0, Side.RHS, num, whole, None, torch.ones(num), weights, whole, whole, weights, whole, torch.ones(num)
    )


def drawing(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("num", "rows"), [(5, 9), (5, 5), (None, 100)])
def test_small_tables_are_compared_as_a_whole(num, rows):
    same = batch()
    own = sampler(num)
    assert own.draw(same, rows, drawing()) is same
    own.learn(same)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 5), st.floats(0, 1))
def test_rows_come_twice_at_most(num, more, seed, share):
    rows, draw = 2 * num + more, drawing(seed)
    own = sampler(num)
    for _ in range(4):
        drawn = own.draw(batch(), rows, draw)
        found = drawn.candidate_C.tolist()
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] < rows
        assert max(map(found.count, found)) <= 2
        assert bool((drawn.log_weight_C >= -1e-6).all())  # a row stands for itself at least
        drawn.mass_C[: 1 + int(share * (num - 1))] = 100.0
        own.learn(drawn)


@pytest.mark.slow
def test_weighted_sums_are_those_of_all_rows():
    """With mass on a few rows; and the rows with mass come more often."""
    own, draw = sampler(20), drawing()
    values = torch.rand(100, generator=draw, dtype=torch.float64)
    sums, counts = [], torch.zeros(100)
    for number in range(6000):
        drawn = own.draw(batch(), 100, draw)
        drawn.mass_C.copy_((drawn.candidate_C < 10) * 1.0)
        own.learn(drawn)
        if number >= 1000:
            sums.append(float((values[drawn.candidate_C] * drawn.log_weight_C.exp()).sum()))
            counts += torch.bincount(drawn.candidate_C, minlength=100)
    assert float(torch.tensor(sums).mean()) == pytest.approx(float(values.sum()), rel=0.01)
    assert counts[:10].min() > 2 * counts[10:].max() > 0
    assert counts.min() > 0


def test_a_bucket_draws_the_same_again():
    scene = Scene(all_negs("none", "dot", True, train={"candidates": 4}))
    step = QueryStep(scene.config, scene.model, scene.adagrad)
    found = []
    for _ in range(2):
        step.begin_bucket()
        own, draw, rows = step.candidates, drawing(3), []
        for _ in range(5):
            drawn = own.draw(batch(), 50, draw)
            drawn.mass_C.copy_(torch.rand(4, generator=draw))
            own.learn(drawn)
            rows.append(drawn.candidate_C)
        found.append(torch.stack(rows))
    assert torch.equal(*found)


def test_mass_does_not_depend_on_the_number_or_weight_of_queries():
    masses = []
    for num, weight in ((3, 1.0), (30, 0.5)):
        own = sampler(4)
        drawn = own.draw(batch(num, weight), 50, drawing())
        drawn.mass_C.copy_(torch.full((4,), 0.1 * num * weight))
        own.learn(drawn)
        masses.append(own.draw(batch(), 50, drawing(1)).candidate_C)
    assert torch.equal(*masses)


def test_rows_without_any_mass_are_drawn_alike():
    own, draw = sampler(4), drawing()
    for _ in range(2000):  # until all shares underflow
        drawn = own.draw(batch(), 8, draw)
        own.learn(drawn)
    assert bool(drawn.log_weight_C.isfinite().all())
    assert drawn.log_weight_C.exp().sum() == pytest.approx(8, rel=0.3)
