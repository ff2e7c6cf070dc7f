"""Metrics of held-out edges in training_stats.json."""

import numpy as np
import pytest
import torch

from graphmill.checkpoints import pbg
from graphmill.vocab import Side
from tests.train.graphs import make_config, random_triples, write_graph
from train import job
from train.step.held_out import RandomPairs


@pytest.mark.parametrize("num_batches", [1, 4])
def test_auc_is_over_pairs_of_any_edge_and_any_negative_of_a_batch(num_batches):
    """By the definition: all pairs of a batch are equally likely, ties are no wins, masked negatives are."""
    draw = torch.Generator().manual_seed(1)
    scores = [  # blocks of chunks: 3 chunks of 5 edges with 7 negatives, 1 chunk of 2 edges with 4, per batch
        (torch.randint(5, (num_batches * c, p), generator=draw).float(),
         torch.randint(5, (num_batches * c, p, m), generator=draw).float())
        for c, p, m in ((3, 5, 7), (1, 2, 4))
    ]  # fmt: skip
    scores[0][1][:, :, 0] = -1e9
    expected = 0.0
    for step in range(num_batches):
        pos = torch.cat([each.view(num_batches, -1)[step] for each, _ in scores])
        neg = torch.cat([each.view(num_batches, -1)[step] for _, each in scores])
        expected += float((pos[:, None] > neg).double().mean()) / num_batches
    generator, found, rounds = torch.Generator().manual_seed(0), 0, 600
    for _ in range(rounds):
        pairs = RandomPairs(num_batches, generator)
        for pos_CP, neg_CPM in scores:
            pairs.add(pos_CP, neg_CPM)
        found += pairs.num_in_order()
    drawn = rounds * 17 * num_batches
    assert found / drawn == pytest.approx(expected, abs=4 * 0.5 / drawn**0.5)


@pytest.mark.parametrize("side", list(Side))
def test_a_side_without_negatives_is_left_out_of_the_means(tmp_path, rng, side):
    """Each edge has one negative on the other side: ranks are 1 or 2, and their means between."""
    config = make_config(
        tmp_path, **{f"disable_{side}_negs": True}, num_epochs=1, eval_fraction=0.5,
        eval_num_batch_negs=0, eval_num_uniform_negs=1,
    )  # fmt: skip
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 200))
    job.train(config)
    (line,) = pbg.read_stats(config.checkpoint_path)
    metrics = line["eval_stats_before"]["metrics"]
    assert metrics["r10"] == 1
    assert 1 < metrics["pos_rank"] < 2
    assert metrics["r1"] == pytest.approx(2 - metrics["pos_rank"])
    assert metrics["mrr"] == pytest.approx(0.5 + metrics["r1"] / 2)
    assert np.isfinite(metrics["loss"])
    trained = line["stats"]["metrics"]
    assert trained[f"violators_{side}"] == 0 < trained[f"violators_{side.other}"]
