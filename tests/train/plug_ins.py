"""Each built-in operator, comparator, loss and regularizer, and a sampler, written again as plug-ins.

A user of PyTorch-BigGraph would write them so.
"""

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


@OPERATORS.register_as("my_none")
class Identity(AbstractOperator):
    def forward(self, embeddings):
        return embeddings


@OPERATORS.register_as("my_diagonal")
class Diagonal(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.diagonal = nn.Parameter(torch.ones(dim))

    def forward(self, embeddings):
        return self.diagonal * embeddings


@OPERATORS.register_as("my_translation")
class Translation(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.translation = nn.Parameter(torch.zeros(dim))

    def forward(self, embeddings):
        return embeddings + self.translation


@OPERATORS.register_as("my_linear")
class Linear(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.linear_transformation = nn.Parameter(torch.eye(dim))

    def forward(self, embeddings):
        return torch.matmul(self.linear_transformation, embeddings.unsqueeze(-1)).squeeze(-1)


@OPERATORS.register_as("my_affine")
class Affine(Linear):
    def __init__(self, dim):
        super().__init__(dim)
        self.translation = nn.Parameter(torch.zeros(dim))

    def forward(self, embeddings):
        return super().forward(embeddings) + self.translation


@OPERATORS.register_as("my_complex_diagonal")
class ComplexDiagonal(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.real = nn.Parameter(torch.ones(dim // 2))
        self.imag = nn.Parameter(torch.zeros(dim // 2))

    def forward(self, embeddings):
        return complex_product(embeddings, self.real, self.imag)

    def get_operator_params_for_reg(self):
        return (self.real**2 + self.imag**2).sqrt()

    def prepare_embs_for_reg(self, embs):
        return modulus(embs)


@OPERATORS.register_as("my_rotation")
class Rotation(AbstractOperator):
    def __init__(self, dim):
        super().__init__(dim)
        self.angle = nn.Parameter(2 * math.pi * torch.rand(dim // 2))

    def forward(self, embeddings):
        return complex_product(embeddings, self.angle.cos(), self.angle.sin())

    def get_operator_params_for_reg(self):
        return None

    def prepare_embs_for_reg(self, embs):
        return modulus(embs)


@DYNAMIC_OPERATORS.register_as("my_none")
class DynamicNone(AbstractDynamicOperator):
    def forward(self, embeddings, operator_idxs):
        return embeddings


@DYNAMIC_OPERATORS.register_as("my_diagonal")
class DynamicDiagonal(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.diagonals = nn.Parameter(torch.ones(num_operations, dim))

    def forward(self, embeddings, operator_idxs):
        return self.diagonals[operator_idxs] * embeddings


@DYNAMIC_OPERATORS.register_as("my_translation")
class DynamicTranslation(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.translations = nn.Parameter(torch.zeros(num_operations, dim))

    def forward(self, embeddings, operator_idxs):
        return embeddings + self.translations[operator_idxs]


@DYNAMIC_OPERATORS.register_as("my_linear")
class DynamicLinear(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.linear_transformations = nn.Parameter(torch.eye(dim).repeat(num_operations, 1, 1))

    def forward(self, embeddings, operator_idxs):
        return torch.matmul(self.linear_transformations[operator_idxs], embeddings.unsqueeze(-1)).squeeze(-1)


@DYNAMIC_OPERATORS.register_as("my_affine")
class DynamicAffine(DynamicLinear):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.translations = nn.Parameter(torch.zeros(num_operations, dim))

    def forward(self, embeddings, operator_idxs):
        return super().forward(embeddings, operator_idxs) + self.translations[operator_idxs]


@DYNAMIC_OPERATORS.register_as("my_complex_diagonal")
class DynamicComplexDiagonal(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.real = nn.Parameter(torch.ones(num_operations, dim // 2))
        self.imag = nn.Parameter(torch.zeros(num_operations, dim // 2))

    def forward(self, embeddings, operator_idxs):
        return complex_product(embeddings, self.real[operator_idxs], self.imag[operator_idxs])

    def get_operator_params_for_reg(self, operator_idxs):
        return (self.real[operator_idxs] ** 2 + self.imag[operator_idxs] ** 2).sqrt()

    def prepare_embs_for_reg(self, embs):
        return modulus(embs)


@DYNAMIC_OPERATORS.register_as("my_rotation")
class DynamicRotation(AbstractDynamicOperator):
    def __init__(self, dim, num_operations):
        super().__init__(dim, num_operations)
        self.angles = nn.Parameter(2 * math.pi * torch.rand(num_operations, dim // 2))

    def forward(self, embeddings, operator_idxs):
        angle = self.angles[operator_idxs]
        return complex_product(embeddings, angle.cos(), angle.sin())

    def get_operator_params_for_reg(self, operator_idxs):
        return None

    def prepare_embs_for_reg(self, embs):
        return modulus(embs)


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
class SquaredL2(AbstractComparator):
    def prepare(self, embs):
        return embs

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
class Order(AbstractComparator):
    """A comparator that tells the sides apart: rhs should be larger than lhs in every element."""

    def prepare(self, embs):
        return embs

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
