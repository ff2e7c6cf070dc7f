"""Each built-in operator, comparator, loss and regularizer, and a sampler, written again as plug-ins."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from graphmill.plugins import (
    COMPARATORS,
    DYNAMIC_OPERATORS,
    LOSS_FUNCTIONS,
    NEGATIVE_SAMPLERS,
    OPERATORS,
    REGULARIZERS,
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
)


def complex_product(x, real, imag):
    x_real, x_imag = x.chunk(2, -1)
    return torch.cat([x_real * real - x_imag * imag, x_real * imag + x_imag * real], -1)


def modulus(x):
    real, imag = x.chunk(2, -1)
    return (real**2 + imag**2).sqrt()


def operator(name, initial, forward, **more):
    """Register an operator of both kinds, whose `forward(embeddings, *parameters)` takes one row or many.

    `initial(dim)` gives its parameters by name; of all relations they are in the plural.
    """

    def static(self, dim):
        AbstractOperator.__init__(self, dim)
        for key, value in initial(dim).items():
            setattr(self, key, nn.Parameter(value))

    def dynamic(self, dim, num_operations):
        AbstractDynamicOperator.__init__(self, dim, num_operations)
        for key, value in initial(dim).items():
            rows = value.expand(num_operations, *value.shape).clone()
            setattr(self, key if key in ("real", "imag") else f"{key}s", nn.Parameter(rows))

    def rows_of(self, operator_idxs):
        return [each if operator_idxs is None else each[operator_idxs] for each in self.parameters()]

    methods = {
        "forward": lambda self, embeddings, operator_idxs=None: forward(
            embeddings, *rows_of(self, operator_idxs)
        ),
        **({"prepare_embs_for_reg": lambda self, embs: modulus(embs)} if more else {}),
    }
    if more:
        cost = more["cost"]
        methods["get_operator_params_for_reg"] = lambda self, operator_idxs=None: cost(
            *rows_of(self, operator_idxs)
        )
    for registry, base, begin in (
        (OPERATORS, AbstractOperator, static),
        (DYNAMIC_OPERATORS, AbstractDynamicOperator, dynamic),
    ):
        registry.register_as(name)(type(name, (base,), {"__init__": begin, **methods}))
    return OPERATORS.registry[name]


def matrix_product(embeddings, matrix):
    return torch.matmul(matrix, embeddings.unsqueeze(-1)).squeeze(-1)


operator("my_none", lambda dim: {}, lambda x: x)
Diagonal = operator("my_diagonal", lambda dim: {"diagonal": torch.ones(dim)}, torch.mul)
operator("my_translation", lambda dim: {"translation": torch.zeros(dim)}, torch.add)
operator("my_linear", lambda dim: {"linear_transformation": torch.eye(dim)}, matrix_product)
operator(
    "my_affine",
    lambda dim: {"linear_transformation": torch.eye(dim), "translation": torch.zeros(dim)},
    lambda x, matrix, shift: matrix_product(x, matrix) + shift,
)
operator(
    "my_complex_diagonal",
    lambda dim: {"real": torch.ones(dim // 2), "imag": torch.zeros(dim // 2)},
    complex_product,
    cost=lambda real, imag: (real**2 + imag**2).sqrt(),
)
operator(
    "my_rotation",
    lambda dim: {"angle": 2 * math.pi * torch.rand(dim // 2)},
    lambda x, angle: complex_product(x, angle.cos(), angle.sin()),
    cost=lambda angle: None,
)


@COMPARATORS.register_as("my_dot")
class Dot(AbstractComparator):
    def prepare(self, embs):
        return embs

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos_scores = (lhs_pos * rhs_pos).sum(-1)
        return pos_scores, rhs_pos @ lhs_neg.transpose(-1, -2), lhs_pos @ rhs_neg.transpose(-1, -2)


@COMPARATORS.register_as("my_cos")
class Cos(Dot):
    def prepare(self, embs):
        return embs / embs.norm(2, dim=-1, keepdim=True)


def squared_distances(a, b):
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1)


@COMPARATORS.register_as("my_squared_l2")
class SquaredL2(Dot):
    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        pos_scores = -(lhs_pos - rhs_pos).pow(2).sum(-1)
        return pos_scores, -squared_distances(rhs_pos, lhs_neg), -squared_distances(lhs_pos, rhs_neg)


@COMPARATORS.register_as("my_l2")
class L2(SquaredL2):
    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        return tuple(
            -each.neg().clamp_min(1e-30).sqrt()
            for each in super().forward(lhs_pos, rhs_pos, lhs_neg, rhs_neg)
        )


@COMPARATORS.register_as("order")
class Order(Dot):
    """A comparator that tells the sides apart: rhs should be larger than lhs in every element."""

    def forward(self, lhs_pos, rhs_pos, lhs_neg, rhs_neg):
        def score(lhs, rhs):
            return -(lhs - rhs).clamp_min(0).pow(2).sum(-1)

        return (
            score(lhs_pos, rhs_pos),
            score(lhs_neg.unsqueeze(1), rhs_pos.unsqueeze(2)),
            score(lhs_pos.unsqueeze(2), rhs_neg.unsqueeze(1)),
        )


@LOSS_FUNCTIONS.register_as("my_logistic")
class Logistic(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        share = 1 / neg_scores.shape[1] if neg_scores.shape[1] else 0
        per_edge = F.softplus(-pos_scores) + F.softplus(neg_scores).sum(1) * share
        return per_edge.sum() if weight is None else (per_edge * weight).sum()


@LOSS_FUNCTIONS.register_as("my_ranking")
class Ranking(AbstractLossFunction):
    def __init__(self, *, margin, **kwargs):
        super().__init__()
        self.margin = margin

    def forward(self, pos_scores, neg_scores, weight=None):
        per_edge = (neg_scores - pos_scores.unsqueeze(1) + self.margin).clamp_min(0).sum(1)
        return per_edge.sum() if weight is None else (per_edge * weight).sum()


@LOSS_FUNCTIONS.register_as("my_softmax")
class Softmax(AbstractLossFunction):
    def forward(self, pos_scores, neg_scores, weight=None):
        if not neg_scores.shape[1]:
            return torch.zeros((), requires_grad=True)
        scores = torch.cat([pos_scores.unsqueeze(1), neg_scores], 1)
        per_edge = scores.logsumexp(1) - pos_scores
        return per_edge.sum() if weight is None else (per_edge * weight).sum()


@LOSS_FUNCTIONS.register_as("of_release_1")
class OfRelease1(AbstractLossFunction):
    """The logistic loss as in PBG 1.0.0: without arguments and without weights."""

    def __init__(self):
        super().__init__()

    def forward(self, pos_scores, neg_scores):
        return Logistic().forward(pos_scores, neg_scores)


@REGULARIZERS.register_as("my_N3")
class N3(AbstractRegularizer):
    def total(self, src_pos, dst_pos, operator, own, count):
        cubes = [operator.prepare_embs_for_reg(each) ** 3 for each in (src_pos, dst_pos)]
        cost = sum(each.sum() for each in cubes)
        return self.weight * (cost if own is None else cost + (own**3).sum() * count)

    def forward(self, src_pos, dst_pos, operator):
        return self.total(src_pos, dst_pos, operator, operator.get_operator_params_for_reg(), len(src_pos))

    def forward_dynamic(self, src_pos, dst_pos, operator, rel_idxs):
        return self.total(src_pos, dst_pos, operator, operator.get_operator_params_for_reg(rel_idxs), 1)


@NEGATIVE_SAMPLERS.register_as("my_uniform")
class Uniform(AbstractNegativeSampler):
    def sample(self, edges, side, num_rows, generator):
        return torch.randint(num_rows, (len(edges.lhs), self.num_negatives), generator=generator)
