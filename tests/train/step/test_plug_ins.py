"""Plug-ins in a training step: a built-in written again as a plug-in trains to the same numbers."""

from functools import partial

import pytest
import torch

import tests.train.plug_ins as written  # registers them
from graphmill.errors import ConfigError
from graphmill.model import losses
from graphmill.model.registry import COMPARATORS as REGISTERED
from graphmill.vocab import Side
from tests.pairs import pairs
from tests.train.step.test_plain import COMPARATORS, LOSSES, OPERATORS, Scene, settings
from train.edges.negative_sampling import Batch

check_same = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5, check_dtype=False)


def trained(operator, comparator, loss_fn, dynamic, *, relation=0, **more):
    """Figures of a step, and all rows, sums and parameters after it."""
    scene = Scene(settings(operator, comparator, loss_fn, dynamic, **more), relation)
    figures = scene.step()
    rows, parameters, sums = scene.state()
    return [*figures, *rows, *parameters.values(), *sums.values()]


@pytest.mark.parametrize(
    ("operator", "comparator", "loss_fn", "kind", "more", "mine"),
    pairs(
        list(OPERATORS),
        COMPARATORS,
        LOSSES,
        ["static", "dynamic", "reciprocal"],
        [{}, {"regularization_coef": 0.2}, {"bias": True}, {"disable_lhs_negs": True, "margin": 0.7}],
        [{"operator"}, {"comparator"}, {"loss_fn"}, {"regularizer"}],
    ),
)
def test_one_written_again_is_the_built_in(operator, comparator, loss_fn, kind, more, mine):
    train = {"chunk_edges": 1, "engine": "plain", "reciprocal_relations": kind == "reciprocal"}
    names = {"operator": operator, "comparator": comparator, "loss_fn": loss_fn, "regularizer": "N3"}
    both = [
        trained(**chosen, dynamic=kind == "dynamic", train=train, **more)
        for chosen in (names, names | {key: f"my_{names[key]}" for key in mine})
    ]
    check_same(*both)


def test_a_sampler():
    sampled = {"chunk_edges": 1, "engine": "plain", "negative_sampler": "my_uniform"}
    expected = trained("diagonal", "dot", "softmax", False)
    check_same(trained("diagonal", "dot", "softmax", False, train=sampled), expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_all_at_once_with_all_entities_as_negatives(dynamic):
    def relations(operator):
        return [{"name": "likes", "lhs": "user", "rhs": "item", "operator": operator, "all_negs": True}]

    both = [
        trained(f"{my}affine", f"{my}l2", f"{my}softmax", dynamic, relations=relations(f"{my}affine"))
        for my in ("my_", "")
    ]
    check_same(*both)


def test_a_comparator_that_tells_the_sides_apart():
    """Each side's scores are those of the edge with this side replaced."""
    scene = Scene(settings("none", "order", "ranking", False, global_emb=False))
    lhs, rhs = torch.randn(3, 4), torch.randn(5, 4)
    expected = -(lhs.unsqueeze(1) - rhs).clamp_min(0).pow(2).sum(-1)
    torch.testing.assert_close(scene.model.matrix_scores(lhs, rhs, Side.RHS), expected)
    torch.testing.assert_close(scene.model.matrix_scores(rhs, lhs, Side.LHS), expected.T)
    torch.testing.assert_close(scene.model.edge_scores(lhs, rhs[:3], Side.RHS), expected[:, :3].diagonal())
    torch.testing.assert_close(scene.model.edge_scores(rhs[:3], lhs, Side.LHS), expected[:, :3].diagonal())
    assert REGISTERED.get_class("order") is written.Order


def test_a_loss_of_release_1_has_the_weight_of_its_relation():
    scene = Scene(settings("none", "dot", "of_release_1", False))
    with pytest.raises(ConfigError, match=r"of_release_1.*the edges have weights.*third argument"):
        scene.step()
    ours, theirs = (Scene(settings("none", "dot", loss, False)) for loss in ("of_release_1", "logistic"))
    for each in (ours, theirs):
        each.batch = Batch(0, each.batch.index, None, torch.full_like(each.batch.weight_B, 1.5))
        each.step()
    torch.testing.assert_close(ours.tables["user"].embeddings_ND, theirs.tables["user"].embeddings_ND)


class Apart(written.AbstractLossFunction):
    def forward(self, pos_scores, neg_scores):
        return neg_scores.sum() - pos_scores.sum()


def test_a_masked_negative_has_no_gradient():
    written.LOSS_FUNCTIONS.register("apart", Apart)
    pos_CP, neg_CPM = torch.zeros(1, 1), torch.tensor([[[1.0, losses.MASKED]]])
    gradient = losses.loss_gradient("apart", 0.1, pos_CP, neg_CPM, torch.ones(1, 1))
    assert gradient.neg_CPM.tolist() == [[[1.0, 0.0]]]


class Wrong(written.Uniform):
    """Draws what the test puts into `drawn`."""

    drawn = None

    def sample(self, edges, side, num_rows, generator):
        return type(self).drawn(edges, num_rows)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (lambda edges, num: torch.full((len(edges.lhs), 2), num), "expected rows from 0 to"),
        (lambda edges, num: torch.zeros(len(edges.lhs), 2), "found torch.float32"),
        (lambda edges, num: torch.zeros(len(edges.lhs) + 1, 2, dtype=torch.int64), "shape"),
        (lambda edges, num: [1, 2], "found list"),
    ],
)
def test_what_a_sampler_draws_is_checked(drawn, message):
    if "wrong" not in written.NEGATIVE_SAMPLERS.registry:
        written.NEGATIVE_SAMPLERS.register("wrong", Wrong)
    Wrong.drawn = staticmethod(drawn)
    sampled = {"chunk_edges": 1, "engine": "plain", "negative_sampler": "wrong"}
    with pytest.raises(ConfigError, match=message):
        trained("none", "dot", "softmax", False, train=sampled)
