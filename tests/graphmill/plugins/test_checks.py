"""`graphmill.plugins.check`: right plug-ins pass, wrong ones are told what is wrong."""

import pytest
import torch
from torch import nn

from graphmill.errors import ConfigError
from graphmill.model.losses import loss_gradient
from graphmill.plugins import (
    DYNAMIC_OPERATORS,
    OPERATORS,
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
    check,
)
from tests.train import plug_ins as written

NAMES = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal", "rotation")
STATIC, DYNAMIC = (
    {name: each.registry[f"my_{name}"] for name in NAMES} for each in (OPERATORS, DYNAMIC_OPERATORS)
)


@pytest.mark.parametrize("name", NAMES)
def test_operators_written_again(name):
    check(STATIC[name], name)
    check(DYNAMIC[name], name)
    check(DYNAMIC[name], STATIC[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("class_", "name"),
    [(written.Dot, "dot"), (written.Cos, "cos"), (written.L2, "l2"), (written.SquaredL2, "squared_l2")],
)
def test_comparators_written_again(class_, name):
    check(class_, name)


@pytest.mark.parametrize(
    ("class_", "name"),
    [(written.Ranking, "ranking"), (written.Logistic, "logistic"), (written.Softmax, "softmax")],
)
def test_losses_written_again(class_, name):
    def reference(pos, neg, weight):
        return loss_gradient(name, 0.3, pos[None], neg[None].clone(), weight[None]).loss_CP.sum()

    check(class_, reference, **({"margin": 0.3} if name == "ranking" else {}))


def test_others_written_again():
    """The sides of a comparator differ, a loss is of release 1."""

    def penalty(src, dst, op):
        return sum((x.abs() ** 3).sum() for x in (src, dst)) + len(src) * (op.diagonal.abs() ** 3).sum()

    check(written.N3, penalty)
    for class_ in (written.Order, written.OfRelease1, written.Uniform):
        check(class_)


class Shortens(AbstractOperator):
    def forward(self, embeddings):
        return embeddings[..., 1:]


class MixesTheBatch(AbstractOperator):
    def forward(self, embeddings):
        return embeddings - embeddings.flatten(0, -2).mean(0) if embeddings.dim() > 1 else embeddings


class Overwrites(AbstractOperator):
    def forward(self, embeddings):
        return embeddings.detach().mul_(2) * embeddings


class Unused(written.Diagonal):
    def __init__(self, dim):
        super().__init__(dim)
        self.more = nn.Parameter(torch.ones(dim))

    def forward(self, embeddings):
        return self.diagonal * embeddings


class Nested(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.inside = nn.Linear(dim, dim)

    def forward(self, embeddings):
        return self.inside(embeddings)


class WithoutGradient(written.Diagonal):
    def forward(self, embeddings):
        return (self.diagonal * embeddings).detach()


class Fails(AbstractOperator):
    def forward(self, embeddings):
        raise ValueError("no reason")


class Shared(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.all_alike = nn.Parameter(torch.ones(dim))

    def forward(self, embeddings, operator_idxs):
        return embeddings * self.all_alike


class NextRow(DYNAMIC["diagonal"]):
    def forward(self, embeddings, operator_idxs):
        return self.diagonals[(operator_idxs + 1) % self.num_operations] * embeddings


class OnlyOneSide(written.Dot):
    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos, lhs, rhs = super().forward(lhs_pos, rhs_pos, lhs_neg, rhs_neg)
        return pos, lhs, 2 * rhs


class Trained(written.Dot):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Swapped(AbstractComparator):
    def prepare(self, embs):
        return embs

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos, lhs, rhs = written.Dot().forward(lhs_pos, rhs_pos, lhs_neg, rhs_neg)
        return pos, rhs, lhs


class Mean(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        return written.Logistic().forward(pos_scores, neg_scores, weight) / len(pos_scores)


class PerEdge(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        return -pos_scores


class SeesMasked(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        return ((neg_scores.square().sum(1) - pos_scores) * weight).sum()


class IgnoresWeights(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        return written.Logistic().forward(pos_scores, neg_scores)


class Negative(AbstractRegularizer):
    def forward(self, src_pos, dst_pos, operator):
        return -self.weight * src_pos.square().sum()

    def forward_dynamic(self, src_pos, dst_pos, operator, rel_idxs):
        return self.weight * src_pos.square().sum() + 1


class OwnRandomNumbers(AbstractNegativeSampler):
    def sample(self, edges, side, num_rows, generator):
        return torch.randint(num_rows, (len(edges.lhs), 40))


class TooFar(AbstractNegativeSampler):
    def sample(self, edges, side, num_rows, generator):
        return torch.full((len(edges.lhs), 2), num_rows)


class Floats(AbstractNegativeSampler):
    def sample(self, edges, side, num_rows, generator):
        return torch.rand(len(edges.lhs), 2, generator=generator)


@pytest.mark.parametrize(
    ("class_", "messages"),
    [
        (object, ["expected a subclass of one of AbstractOperator"]),
        (Shortens, [r"expected the shape \(2, 3, 8\) of the vectors, found \(2, 3, 7\)"]),
        (MixesTheBatch, ["expected the numbers of one vector by itself"]),
        (Overwrites, ["expected the vectors unchanged"]),
        (Unused, ["parameter 'more': expected a gradient"]),
        (Nested, ["parameter 'inside.weight': expected one of the operator itself"]),
        (WithoutGradient, ["expected a result with a gradient"]),
        (Fails, ["fails with ValueError: no reason"]),
        (Shared, ["parameter 'all_alike': expected a row for each of 4 relations"]),
        (NextRow, ["expected the numbers of relation 0 by itself"]),
        (OnlyOneSide, ["expected the numbers of the score of the same pair among rhs_neg"]),
        (Trained, ["parameter 'scale': expected none"]),
        (Swapped, ["forward: expected scores of shapes"]),
        (Mean, ["expected the numbers of the sum of the edges' losses, times their weights"]),
        (PerEdge, [r"expected one number, the sum of the losses, found the shape \(5,\)"]),
        (SeesMasked, ["expected the numbers of negatives of score -2e\\+09"]),
        (IgnoresWeights, ["the sum of the edges' losses, times their weights"]),
        (Negative, ["expected a penalty that is not negative", "forward_dynamic with half of the weight"]),
        (OwnRandomNumbers, ["expected the same rows for one seed"]),
        (TooFar, ["expected rows from 0 to 49, found 50 to 50", "expected rows from 0 to 0, found 1 to 1"]),
        (Floats, [r"expected rows of torch.int64 and shape \(3, K\), found torch.float32"]),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_wrong_is_told(class_, messages):
    for message in messages:
        with pytest.raises(ConfigError, match=f"{class_.__name__}.*{message}"):
            check(class_)


def test_another_reference_is_told():
    with pytest.raises(ConfigError, match="my_diagonal: expected the numbers of the operator translation"):
        check(written.Diagonal, "translation")
    with pytest.raises(ConfigError, match="expected the numbers of relation 0 of my_translation"):
        check(DYNAMIC["diagonal"], STATIC["translation"])
    with pytest.raises(ConfigError, match="expected the numbers of the comparator cos"):
        check(written.Dot, "cos")
