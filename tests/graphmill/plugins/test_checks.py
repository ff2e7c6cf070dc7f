"""`graphmill.plugins.check`: right plug-ins pass, wrong ones are told what is wrong."""

import pytest
import torch
from torch import nn

from graphmill.errors import ConfigError
from graphmill.model.losses import loss_gradient
from graphmill.plugins import (
    DYNAMIC_OPERATORS,
    OPERATORS,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
    check,
)
from tests.train import plug_ins as written

NAMES = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal", "rotation")
STATIC = {name: OPERATORS.registry[f"my_{name}"] for name in NAMES}
DYNAMIC = {name: DYNAMIC_OPERATORS.registry[f"my_{name}"] for name in NAMES}


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


class Shared(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.all_alike = nn.Parameter(torch.ones(dim))

    def forward(self, embeddings, operator_idxs):
        return embeddings * self.all_alike


class OnlyOneSide(written.Dot):
    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos, lhs, rhs = super().forward(lhs_pos, rhs_pos, lhs_neg, rhs_neg)
        return pos, lhs, 2 * rhs


class Trained(written.Dot):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Swapped(written.Dot):
    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos, lhs, rhs = super().forward(lhs_pos, rhs_pos, lhs_neg, rhs_neg)
        return pos, rhs, lhs


class Negative(AbstractRegularizer):
    def forward(self, src_pos, dst_pos, operator):
        return -self.weight * src_pos.square().sum()

    def forward_dynamic(self, src_pos, dst_pos, operator, rel_idxs):
        return self.weight * src_pos.square().sum() + 1


logistic = written.Logistic().forward
WITH_ONE_METHOD = {
    "Fails": (AbstractOperator, lambda self, x: 1 / 0),
    "Shortens": (AbstractOperator, lambda self, x: x[..., 1:]),
    "MixesTheBatch": (AbstractOperator, lambda self, x: x - x.flatten(0, -2).mean(0) if x.dim() > 1 else x),
    "Overwrites": (AbstractOperator, lambda self, x: x.detach().mul_(2) * x),
    "WithoutGradient": (written.Diagonal, lambda self, x: (self.diagonal * x).detach()),
    "NextRow": (DYNAMIC["diagonal"], lambda self, x, of: self.diagonals[(of + 1) % self.num_operations] * x),
    "Mean": (AbstractLossFunction, lambda self, pos, neg, weight=None: logistic(pos, neg, weight) / len(pos)),
    "PerEdge": (AbstractLossFunction, lambda self, pos, neg, weight=None: -pos),
    "SeesMasked": (
        AbstractLossFunction,
        lambda self, pos, neg, w=None: ((neg.square().sum(1) - pos) * w).sum(),
    ),
    "IgnoresWeights": (AbstractLossFunction, lambda self, pos, neg, weight=None: logistic(pos, neg)),
    "OwnRandomNumbers": (
        AbstractNegativeSampler,
        lambda self, of, _, num, __: torch.randint(num, (len(of.lhs), 40)),
    ),
    "TooFar": (AbstractNegativeSampler, lambda self, of, _, num, __: torch.full((len(of.lhs), 2), num)),
    "Floats": (
        AbstractNegativeSampler,
        lambda self, of, _, __, drawn: torch.rand(len(of.lhs), 2, generator=drawn),
    ),
}


@pytest.mark.parametrize(
    ("class_", "messages"),
    [
        (object, ["expected a subclass of one of AbstractOperator"]),
        ("Shortens", [r"expected the shape \(2, 3, 8\) of the vectors, found \(2, 3, 7\)"]),
        ("MixesTheBatch", ["expected the numbers of one vector by itself"]),
        ("Overwrites", ["expected the vectors unchanged"]),
        (Unused, ["parameter 'more': expected a gradient"]),
        (Nested, ["parameter 'inside.weight': expected one of the operator itself"]),
        ("WithoutGradient", ["expected a result with a gradient"]),
        ("Fails", ["fails with ZeroDivisionError: division by zero"]),
        (Shared, ["parameter 'all_alike': expected a row for each of 4 relations"]),
        ("NextRow", ["expected the numbers of relation 0 by itself"]),
        (OnlyOneSide, ["expected the numbers of the score of the same pair among rhs_neg"]),
        (Trained, ["parameter 'scale': expected none"]),
        (Swapped, ["forward: expected scores of shapes"]),
        ("Mean", ["expected the numbers of the sum of the edges' losses, times their weights"]),
        ("PerEdge", [r"expected one number, the sum of the losses, found the shape \(5,\)"]),
        ("SeesMasked", ["expected the numbers of negatives of score -2e\\+09"]),
        ("IgnoresWeights", ["the sum of the edges' losses, times their weights"]),
        (Negative, ["expected a penalty that is not negative", "forward_dynamic with half of the weight"]),
        ("OwnRandomNumbers", ["expected the same rows for one seed"]),
        ("TooFar", ["expected rows from 0 to 49, found 50 to 50", "expected rows from 0 to 0, found 1 to 1"]),
        ("Floats", [r"expected rows of torch.int64 and shape \(3, K\), found torch.float32"]),
    ],
    ids=lambda each: getattr(each, "__name__", each if isinstance(each, str) else ""),
)
def test_what_is_wrong_is_told(class_, messages):
    if class_ in WITH_ONE_METHOD:
        base, method = WITH_ONE_METHOD[class_]
        name = "sample" if base is AbstractNegativeSampler else "forward"
        class_ = type(class_, (base,), {name: method})
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
