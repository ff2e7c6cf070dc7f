"""Drawn candidates and negatives: in proportion to their mass, with weights that make sums unbiased."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError
from graphmill.vocab import Side
from tests.train.graphs import make_config, node_graph, relation, write_graph
from tests.train.step.test_plain import Scene
from tests.train.step.test_queries import all_negs
from train import job
from train.edges import batches
from train.edges.batches import EdgeTensors
from train.edges.candidates import CandidateSampler
from train.edges.negative_sampling import Sampling, popularity
from train.edges.one_vs_all import QueryBatch
from train.run.bucket import lr_scale, share_done, share_of_negatives
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


@pytest.mark.parametrize("all_negs", [False, True])
def test_the_first_steps_of_a_run_draw_few(tmp_path, rng, monkeypatch, all_negs):
    """Negatives of edges, and candidates of queries."""
    train = {"candidates": 40 if all_negs else None, "first_negatives": 0.25, "engine": "plain"}
    settings = {"num_batch_negs": 0, "num_uniform_negs": 40, "num_epochs": 4, "batch_size": 100}
    relations = [relation("none", all_negs=all_negs)]
    config = node_graph(tmp_path, rng, 200, 400, relations=relations, train=train, **settings)
    drawn = []
    draw, blocks = CandidateSampler.draw, Sampling.blocks
    monkeypatch.setattr(
        CandidateSampler,
        "draw",
        lambda *given: drawn.append(len((found := draw(*given)).candidate_C)) or found,
    )
    monkeypatch.setattr(
        Sampling, "blocks", lambda self, *given: drawn.append(self.num_uniform_negs) or blocks(self, *given)
    )
    job.train(config)
    assert drawn == sorted(drawn)
    assert set(drawn) == {10, 20, 40}
    assert drawn.count(20) == pytest.approx(len(drawn) / 2, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_weighted_sums_are_those_of_all_rows(share):
    """With mass on a few rows; and the rows with mass come more often."""
    own, draw = sampler(20), drawing()
    values = torch.rand(100, generator=draw, dtype=torch.float64)
    sums, counts = [], torch.zeros(100)
    for number in range(4000):
        drawn = own.draw(batch(), 100, draw, share)
        assert len(drawn.candidate_C) == 20 * share
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


def drawn(config, edges, num_rows):
    """Count the draws of each row on each side."""
    rows = {side: [num_rows] for side in Side}
    counts = {side: torch.zeros(num_rows) for side in Side}
    generator = torch.Generator().manual_seed(0)
    for batch in batches.cut_for_training(config, edges, generator, rows):
        for block in Sampling.of_training(config).blocks(
            batch, dict.fromkeys(Side, num_rows), False, generator
        ):
            for side in Side:
                found = block.rows[side][:, block.num_positives :].flatten()
                counts[side] += torch.bincount(found, minlength=num_rows)
    return counts


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_negatives_are_drawn_as_often_as_edges_ask(power):
    config = make_config("unused", batch_size=100, num_batch_negs=1, num_uniform_negs=200,
                         train={"negative_power": power, "chunk_edges": 1})  # fmt: skip
    lhs = torch.tensor([0] * 99 + [1] * 24 + [2] * 3)
    rhs = torch.tensor([3] * 63 + [4] * 63)
    edges = EdgeTensors(lhs, torch.zeros_like(lhs), rhs, torch.ones(len(lhs)))
    counts = drawn(config, edges, 5)
    for side, degrees in ((Side.LHS, [99, 24, 3, 0, 0]), (Side.RHS, [0, 0, 0, 63, 63])):
        expected = (1 + torch.tensor(degrees)) ** power
        share = counts[side] / counts[side].sum()
        torch.testing.assert_close(share, (expected / expected.sum()).float(), atol=0.01, rtol=0.05)


def test_running_sums_of_popularity():
    """They start above zero."""
    assert popularity(torch.tensor([0, 0, 2]), 3, 1.0).tolist() == [3, 4, 6]
    assert popularity(torch.tensor([], dtype=torch.int64), 2, 0.5).tolist() == [1, 2]


class TestLearningRate:
    """Schedules are functions of how much of the run is done."""

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("constant", [1, 1, 1, 1]),
            ("linear", [1, 0.92, 0.6, 0.2]),
            ("cosine", [1, 0.6 + 0.4 * math.cos(0.1 * math.pi), 0.6, 0.2]),
        ],
    )
    def test_beginning_middle_and_end(self, schedule, expected):
        settings = TrainConfig(lr_schedule=schedule, lr_final=0.2)
        found = [lr_scale(settings, done) for done in (0.0, 0.1, 0.5, 1.0)]
        assert found == pytest.approx(expected)

    def test_negatives_double(self):
        for first, expected in (
            (1, [1, 1, 1, 1]),
            (0.125, [1 / 8, 1 / 4, 1 / 2, 1]),
            (0.3, [0.3, 0.5, 0.5, 1]),
        ):
            settings = TrainConfig(first_negatives=first)
            found = [share_of_negatives(settings, done) for done in (0.0, 0.3, 0.6, 1.0)]
            assert found == expected

    def test_progress_counts_epochs_paths_and_chunks(self):
        seen = [
            share_done(Iteration(2, epoch, 3, path, "", 2, chunk), share)
            for epoch in range(2)
            for path in range(3)
            for chunk in range(2)
            for share in (0.0, 0.5)
        ]
        assert seen == pytest.approx([number / 24 for number in range(24)])

    def test_a_rate_that_falls_to_nothing_and_popular_negatives_change_the_result(self, tmp_path):
        losses = set()
        falling = {"lr_schedule": "linear", "lr_final": 0.0}
        for number, train in enumerate(({}, falling, {"negative_power": 0.75})):
            config = make_config(tmp_path / str(number), train=train, num_epochs=3)
            write_graph(config, {"node": 9}, np.array([[i, 0, (i + 1) % 9] for i in range(9)]))
            losses.add(job.train(config)["loss"])
        assert len(losses) == 3

    def test_shares_are_shares(self, tmp_path):
        with pytest.raises(ConfigError, match=r"train\.lr_final"):
            make_config(tmp_path, train={"lr_final": 1.5})
