"""Removed edges: their ends move apart until they score like other pairs; other rows stay."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import distributed
import pytest
import torch

from graphmill import storage
from graphmill.config import Config
from graphmill.config.partitions import all_buckets
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.files import REMOVED
from graphmill.vocab import Side
from tests.train.deltas import TwoDays, new_edges, old_edges
from tests.train.graphs import read_visits
from tests.train.step.test_plain import Scene, settings
from train import job
from train.edges import batches
from train.edges.batches import Role
from train.edges.negative_sampling import Batch
from train.edges.own_rows import EQUAL, OwnRows
from train.step.delta import NUM_CANDIDATES, removing_step
from train.step.plain import PlainStep


def probabilities(scene: Scene, own: OwnRows = EQUAL) -> dict[Side, torch.Tensor]:
    """Softmax's probability of each edge among all entities of a side, some with less weight: [B]."""
    entry, batch = scene.config.relations[scene.relation], scene.batch
    rows = {side: scene.tables[entry.entity_type(side)].embeddings_ND for side in Side}
    found = {}
    for side in Side:
        others = rows[side.other][batch.index[side.other]]
        query = scene.model.query(scene.relation, side, others, batch.rel_B)
        scores = scene.model.matrix_scores(query, rows[side], side)
        scores = own.weighted(scores, torch.arange(scores.shape[1]))
        found[side] = scores.softmax(1).gather(1, batch.index[side].unsqueeze(1))[:, 0]
    return found


def removing(loss_fn: str, **more: object) -> tuple[Scene, PlainStep]:
    config = settings("complex_diagonal", "dot", loss_fn, dynamic=True, **more)
    scene = Scene(config, num_edges=2)
    return scene, removing_step(config, scene.model, scene.adagrad)


@pytest.mark.parametrize("loss_fn", ["softmax", "logistic", "ranking"])
def test_removed_edges_become_unlikely_and_other_rows_stay(loss_fn: str) -> None:
    scene, step = removing(loss_fn, margin=0.1)
    first = probabilities(scene)
    before = {name: table.embeddings_ND.clone() for name, table in scene.tables.items()}
    for seed in range(60):
        step(scene.batch, scene.side_tables, torch.Generator().manual_seed(seed))
    for side, now in probabilities(scene).items():
        assert (now < 0.5 * first[side]).all()
    ends = {"user": scene.batch.index[Side.LHS], "item": scene.batch.index[Side.RHS]}
    for name, table in scene.tables.items():
        moved = (table.embeddings_ND != before[name]).any(dim=1)
        assert set(torch.nonzero(moved)[:, 0].tolist()) == set(ends[name].tolist())


@pytest.mark.parametrize(("weight", "own"), [(0.5, EQUAL), (30.0, EQUAL), (3.0, OwnRows(4, 7, 0.1))])
def test_softmax_pushes_by_the_probability(weight: float, own: OwnRows) -> None:
    """The gradient of an edge is its weight times its probability among all rows, and at most 1."""
    relation = {"name": "likes", "lhs": "user", "rhs": "item", "operator": "none"}
    scene, step = removing("softmax", relations=[relation], train={"removed_weight": weight})
    scene.batch.index[Side.LHS][:] = torch.tensor([0, 1])  # ends of their own
    scene.batch.index[Side.RHS][:] = torch.tensor([2, 3])
    for table in scene.tables.values():
        table.sums[:] = 1e20  # steps become small, and the sums stay
    before = {name: table.embeddings_ND.clone() for name, table in scene.tables.items()}
    expected = probabilities(scene, own)
    scene.batch = replace(scene.batch, own_rows=dict.fromkeys(Side, own))
    step(scene.batch, scene.side_tables, torch.Generator().manual_seed(0))
    user, item = (scene.tables[name].embeddings_ND - before[name] for name in ("user", "item"))
    pushed = sum((weight * each).clamp_max(1) for each in expected.values()) * scene.batch.weight_B
    scale = -scene.config.lr / 1e10
    for edge, (lhs, rhs) in enumerate(zip((0, 1), (2, 3), strict=True)):
        slope = float(user[lhs] @ before["item"][rhs] / before["item"][rhs].square().sum()) / scale
        assert slope == pytest.approx(float(pushed[edge]), rel=0.15)
        slope = float(item[rhs] @ before["user"][lhs] / before["user"][lhs].square().sum()) / scale
        assert slope == pytest.approx(float(pushed[edge]), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("chunks", "num_blocks"), [(1, None), (3, None), (1, 1), (2, 2)])
def test_an_epoch_trains_each_removed_edge_once(parted: TwoDays, chunks: int, num_blocks: int | None) -> None:
    config = parted.second(num_epochs=2, num_edge_chunks=chunks)
    counts = Counter[int]()
    for iteration, _, edges in read_visits(config, num_blocks):
        counts[iteration.epoch_idx] += len(edges.of_role(Role.REMOVED))
    assert len(parted.removed) > 20
    assert counts == dict.fromkeys(range(2), len(parted.removed))


@pytest.mark.slow
def test_own_rows_of_blocks_count_less_for_held_out_and_removed_edges(
    parted: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, cut = set[tuple[int, float]](), batches.cut

    def watched(config: Config, *given: Any) -> Iterator[Batch]:
        for batch in cut(config, *given):
            found.update((config.num_uniform_negs, own.weight) for own in batch.own_rows.values())
            yield batch

    monkeypatch.setattr(batches, "cut", watched)
    config = parted.second("blocks", num_epochs=1, eval_fraction=0.9, train={"memory_partitions": 2})
    job.run(config, parted.client)
    assert {(config.num_uniform_negs, 1 / 3), (NUM_CANDIDATES, 1 / 3)} <= found  # of four blocks


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> TwoDays:
    """A graph of four partitions that loses most edges on the second day, in some buckets all."""
    found = TwoDays(
        tmp_path_factory.mktemp("parted"),
        near_client,
        partitions=4,
        num_files=10,
        num_gone=9,
        first=old_edges()[:100],
        second=new_edges()[26:34],
        global_emb=False,
    ).trained(num_epochs=1)
    path = found.second().edge_paths[0]
    counts = edge_buckets.count_all(path, all_buckets(found.second()))
    lost = {
        bucket: storage.exists(edge_buckets.bucket_uri(path, bucket, REMOVED)) and not count
        for bucket, count in counts.items()
    }
    assert {True, False} == set(lost.values())
    return found
