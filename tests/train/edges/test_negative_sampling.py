"""Drawn negatives: uniform, or by the number of edges."""

import math

import numpy as np
import pytest
import torch

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError
from graphmill.vocab import Side
from tests.train.graphs import make_config, write_graph
from train import job
from train.edges import batches
from train.edges.batches import EdgeTensors
from train.edges.negative_sampling import Sampling, popularity
from train.run.bucket import lr_scale, share_done


def drawn(config, edges, num_rows):
    """Count the draws of each row on each side."""
    rows = {side: [(num_rows, 0)] for side in Side}
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


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
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


def test_running_sums_start_above_zero():
    """Else the first row would never be drawn, or be drawn for nothing."""
    assert popularity(torch.tensor([0, 0, 2]), 3, 0, 1.0).tolist() == [3, 4, 6]
    assert popularity(torch.tensor([], dtype=torch.int64), 2, 0, 0.5).tolist() == [1, 2]


def test_outside_rows_are_as_popular_as_the_mean():
    assert popularity(torch.tensor([0, 0, 1]), 4, 2, 1.0).tolist() == [3, 5, 7.5, 10]


def test_training_with_popular_negatives(tmp_path):
    config = make_config(tmp_path, train={"negative_power": 0.75}, entities={"node": {"num_partitions": 2}})
    rng = np.random.default_rng(2)
    triples = np.stack([rng.integers(30, size=90), np.zeros(90, np.int64), rng.integers(30, size=90)], axis=1)
    write_graph(config, {"node": 30}, triples)
    assert job.train(config)["loss"] > 0


class TestLearningRate:
    """Schedules are functions of how much of the run is done."""

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("constant", [1, 1, 1]),
            ("linear", [1, 0.6, 0.2]),
            ("cosine", [1, 0.6, 0.2]),
        ],
    )
    def test_beginning_middle_and_end(self, schedule, expected):
        settings = TrainConfig(lr_schedule=schedule, lr_final=0.2)
        found = [lr_scale(settings, done) for done in (0.0, 0.5, 1.0)]
        assert found == pytest.approx(expected)

    def test_cosine_is_flat_at_both_ends(self):
        settings = TrainConfig(lr_schedule="cosine", lr_final=0.0)
        assert lr_scale(settings, 0.1) == pytest.approx((1 + math.cos(0.1 * math.pi)) / 2)

    def test_progress_counts_epochs_paths_and_chunks(self):
        seen = [
            share_done(Iteration(2, epoch, 3, path, "", 2, chunk), share)
            for epoch in range(2)
            for path in range(3)
            for chunk in range(2)
            for share in (0.0, 0.5)
        ]
        assert seen == pytest.approx([number / 24 for number in range(24)])

    def test_a_rate_that_falls_to_nothing_changes_the_result(self, tmp_path):
        rows = []
        for number, train in enumerate(({}, {"lr_schedule": "linear", "lr_final": 0.0})):
            config = make_config(tmp_path / str(number), train=train, num_epochs=3)
            write_graph(config, {"node": 9}, np.array([[i, 0, (i + 1) % 9] for i in range(9)]))
            rows.append(job.train(config)["loss"])
        assert rows[0] != rows[1]

    def test_shares_are_shares(self, tmp_path):
        with pytest.raises(ConfigError, match=r"train\.lr_final"):
            make_config(tmp_path, train={"lr_final": 1.5})
