"""What each kernel computes, in plain torch: the meaning of `kernels`, and what runs where they do not.

One side of a step, for edges in chunks that share their candidates:

    sample      edges of a step, in random order, and candidates drawn for them
    stage       rows of a table            -> operands
    query       rows, relation             -> operands that candidates are compared with
    attend      queries, candidates        -> losses, gradients of the queries; no score is kept
    spread      queries, candidates        -> gradients of the candidates
    backward    gradients of the queries   -> gradients of the rows and of the relation they came from
    update_rows, update_parameters         Adagrad, row-wise or element-wise
    count_above, pair_scores               ranking

Losses are those of train/model/losses.py, the comparator is the dot product. A candidate that is the edge's
own entity costs nothing and moves nothing (logistic counts it in its mean).

Shapes: N rows of a table, D dimension, C chunks, P positives of a chunk, K candidates of a chunk (its
positives first), T touched rows with repetitions, R relations.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from train.gpu import counter

Operator = Literal["none", "diagonal", "translation", "complex_diagonal"]
Loss = Literal["ranking", "logistic", "softmax"]
EPSILON = 1e-10  # of train/model/optimizer.py


class Sample(NamedTuple):
    """Edges in chunks, and what each side is compared with."""

    rows: tuple[Tensor, Tensor]  # of lhs and rhs, int32 [C, K]: the positives, some again, the drawn ones
    rel_CP: Tensor  # int32
    weight_CP: Tensor


class Edges(NamedTuple):
    """All edges of a pass, int32 columns on the device; [E] each."""

    lhs: Tensor
    rel: Tensor
    rhs: Tensor
    weight: Tensor | None  # float32


class Attended(NamedTuple):
    """What a query's comparison with its candidates gives."""

    loss_CP: Tensor
    violators_CP: Tensor  # candidates that score above the positive, as float
    positive_CP: Tensor  # the positive's score
    norm_CP: Tensor  # softmax: the logarithm of the sum of all exponentials
    pull_CP: Tensor  # gradient of the positive's score
    gradient_CPD: Tensor  # of the query


def sample(
    edges: Edges,
    group: tuple[int, int],
    clock_2: Tensor,
    num_rows: tuple[int, int],
    shape: tuple[int, int, int, int],
) -> Sample:
    """The edges at the next C x P positions of a random order of a group, and the candidates of each side.

    `group` is the group's first edge and its size, `clock_2` = (key, position) an int64 tensor, `shape` =
    (C, P, how many of a chunk's first positives come again as candidates, how many candidates are drawn).
    These follow from key and position too.
    """
    chunks, positives, again, drawn = shape
    key, position = clock_2
    place_CP = position + torch.arange(chunks * positives, device=clock_2.device).view(chunks, positives)
    edge_CP = group[0] + counter.permuted(key, place_CP, group[1])
    counter_CM = torch.arange(chunks * drawn, device=clock_2.device).view(chunks, drawn)
    rows = []
    for side, (column, num) in enumerate(zip((edges.lhs, edges.rhs), num_rows, strict=True)):
        side_key = counter.mixed(key ^ (side + 1), position)
        drawn_CM = counter.drawn(side_key, counter_CM, num).to(torch.int32)
        rows.append(torch.cat([column[edge_CP], column[edge_CP[:, :again]], drawn_CM], dim=1))
    weight_CP = torch.ones(edge_CP.shape, device=clock_2.device)
    if edges.weight is not None:
        weight_CP = edges.weight[edge_CP]
    return Sample((rows[0], rows[1]), edges.rel[edge_CP], weight_CP)


def stage(table_ND: Tensor, rows_CK: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows as operands of a matrix product: [C, K, D]."""
    return table_ND[rows_CK.long()].to(dtype)


def query(
    operator: Operator,
    adjoint: bool,
    table_ND: Tensor,
    rows_CP: Tensor,
    parameters_RD: Tensor | None,
    rel_CP: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Rows with their relation applied, or its `adjoint`: <adjoint(x), y> = <x, operator(y)>: [C, P, D].

    complex_diagonal's parameters are the real parts, then the imaginary ones.
    """
    x_CPD = table_ND[rows_CP.long()]
    if parameters_RD is None:
        return x_CPD.to(dtype)
    return _applied(operator, adjoint, x_CPD, parameters_RD[rel_CP.long()]).to(dtype)


def attend(
    loss: Loss,
    margin: float,
    query_CPD: Tensor,
    candidate_CKD: Tensor,
    rows_CK: Tensor,
    first: int,
    weight_CP: Tensor,
) -> Attended:
    """Compare every query with its own candidate, k = p, and with the negatives, k >= `first`."""
    score_CPM, own_CPM = _scores(query_CPD, candidate_CKD, rows_CK, first)
    own_CPD = _wide(candidate_CKD)[:, : query_CPD.shape[1]]
    positive_CP = (_wide(query_CPD) * own_CPD).sum(-1)
    above_CPM = (score_CPM > positive_CP.unsqueeze(-1)) & ~own_CPM
    norm_CP = torch.logsumexp(
        torch.cat([score_CPM.masked_fill(own_CPM, -torch.inf), positive_CP.unsqueeze(-1)], -1), -1
    )
    match loss:
        case "softmax":
            cost_CP = norm_CP - positive_CP
            pull_CP = (positive_CP - norm_CP).exp() - 1
        case "logistic":
            mean_CP = F.softplus(score_CPM).masked_fill(own_CPM, 0).sum(-1) / max(score_CPM.shape[-1], 1)
            cost_CP = F.softplus(-positive_CP) + mean_CP
            pull_CP = -torch.sigmoid(-positive_CP)
        case "ranking":
            excess_CPM = (score_CPM - positive_CP.unsqueeze(-1) + margin).masked_fill(own_CPM, 0).clamp_min(0)
            cost_CP = excess_CPM.sum(-1)
            pull_CP = -(excess_CPM > 0).sum(-1).to(cost_CP)
    pull_CPM = _pulls(loss, margin, score_CPM, own_CPM, positive_CP, norm_CP, weight_CP)
    pull_CP = pull_CP * weight_CP
    gradient_CPD = pull_CPM @ _wide(candidate_CKD)[:, first:] + pull_CP.unsqueeze(-1) * own_CPD
    return Attended(
        cost_CP * weight_CP, above_CPM.sum(-1).to(cost_CP), positive_CP, norm_CP, pull_CP, gradient_CPD
    )


def spread(
    loss: Loss,
    margin: float,
    query_CPD: Tensor,
    candidate_CKD: Tensor,
    rows_CK: Tensor,
    first: int,
    weight_CP: Tensor,
    attended: Attended,
    out_CKD: Tensor,
) -> None:
    """Write the gradients of all candidates, positives included, to `out_CKD`."""
    score_CPM, own_CPM = _scores(query_CPD, candidate_CKD, rows_CK, first)
    pull_CPM = _pulls(loss, margin, score_CPM, own_CPM, attended.positive_CP, attended.norm_CP, weight_CP)
    out_CKD[:, :first] = 0
    out_CKD[:, first:] = pull_CPM.transpose(1, 2) @ _wide(query_CPD)
    out_CKD[:, : query_CPD.shape[1]] += attended.pull_CP.unsqueeze(-1) * _wide(query_CPD)


def backward(
    operator: Operator,
    adjoint: bool,
    table_ND: Tensor,
    rows_CP: Tensor,
    parameters_RD: Tensor | None,
    rel_CP: Tensor,
    gradient_CPD: Tensor,
    regularization: tuple[float, float],
    out_CPD: Tensor,
) -> tuple[Tensor | None, Tensor]:
    """Write the gradients of the rows; those of each edge's relation [C, P, D], and the N3 cost [C, P].

    `regularization` are the coefficients of the row's N3 and of the relation's (complex moduli for
    complex_diagonal).
    """
    x_CPD = table_ND[rows_CP.long()]
    cost_CP, slope_CPD = _n3(operator, x_CPD, regularization[0])
    if parameters_RD is None:
        out_CPD[:] = gradient_CPD + slope_CPD
        return None, cost_CP
    own_CPD = parameters_RD[rel_CP.long()]
    own_cost_CP, own_slope_CPD = _n3(operator, own_CPD, regularization[1])
    match operator:
        case "diagonal":
            row_CPD, related_CPD = gradient_CPD * own_CPD, gradient_CPD * x_CPD
        case "complex_diagonal":
            row_CPD = _applied(operator, not adjoint, gradient_CPD, own_CPD)
            # d<g, w x>/dw = conj(x) g, and d<g, conj(w) x>/dw = conj(g) x
            first, second = (x_CPD, gradient_CPD) if adjoint else (gradient_CPD, x_CPD)
            related_CPD = _applied(operator, True, first, second)
        case _:
            row_CPD = related_CPD = gradient_CPD
    out_CPD[:] = row_CPD + slope_CPD
    return related_CPD + own_slope_CPD, cost_CP + own_cost_CP


def update_rows(table_ND: Tensor, sums_N: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: float) -> None:
    """One step of row-wise Adagrad, in place; gradients of equal rows are summed first."""
    rows_U, position_T = torch.unique(rows_T.long(), return_inverse=True)
    gradient_UD = gradient_TD.new_zeros(len(rows_U), gradient_TD.shape[1]).index_add_(
        0, position_T, gradient_TD
    )
    sums_U = sums_N[rows_U] + gradient_UD.square().mean(1)
    sums_N[rows_U] = sums_U
    table_ND[rows_U] -= lr * gradient_UD / (sums_U.sqrt() + EPSILON).unsqueeze(1)


def update_rows_fast(
    table_ND: Tensor, sums_N: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: float
) -> None:
    """The same, one occurrence after the other: each one a step of its own, in any order."""
    for row, gradient_D in zip(rows_T.tolist(), gradient_TD, strict=True):
        sums_N[row] += gradient_D.square().mean()
        table_ND[row] -= lr * gradient_D / (sums_N[row].sqrt() + EPSILON)


def update_parameters(
    parameters_RD: Tensor, sums_RD: Tensor, rel_T: Tensor, gradient_TD: Tensor, lr: float
) -> None:
    """One step of element-wise Adagrad, in place; gradients of equal relations are summed first."""
    gradient_RD = torch.zeros_like(parameters_RD).index_add_(0, rel_T.long(), gradient_TD)
    sums_RD += gradient_RD.square()
    parameters_RD -= lr * gradient_RD / (sums_RD.sqrt() + EPSILON)


def count_above(query_QD: Tensor, table_ND: Tensor, score_Q: Tensor) -> tuple[Tensor, Tensor]:
    """How many rows score higher than `score_Q`, and how many equal it: int64 [Q], [Q]."""
    score_QN = query_QD @ table_ND.T
    threshold_Q1 = score_Q.unsqueeze(1)
    return (score_QN > threshold_Q1).sum(1), (score_QN == threshold_Q1).sum(1)


def pair_scores(query_QD: Tensor, table_ND: Tensor, query_T: Tensor, row_T: Tensor) -> Tensor:
    """Scores of T pairs of a query and a row, as those that `count_above` compares."""
    return (query_QD[query_T] * table_ND[row_T]).sum(-1)


def _scores(query_CPD: Tensor, candidate_CKD: Tensor, rows_CK: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Scores of the negatives, and which of these are the edge's own entity: [C, P, M]."""
    score_CPM = _wide(query_CPD) @ _wide(candidate_CKD)[:, first:].transpose(1, 2)
    own_CPM = rows_CK[:, : query_CPD.shape[1], None] == rows_CK[:, None, first:]
    return score_CPM, own_CPM


def _pulls(
    loss: Loss,
    margin: float,
    score_CPM: Tensor,
    own_CPM: Tensor,
    positive_CP: Tensor,
    norm_CP: Tensor,
    weight_CP: Tensor,
) -> Tensor:
    """Gradients of the negatives' scores."""
    weight_CP1 = weight_CP.to(score_CPM).unsqueeze(-1)
    match loss:
        case "softmax":
            pull_CPM = (score_CPM - norm_CP.unsqueeze(-1)).exp() * weight_CP1
        case "logistic":
            pull_CPM = score_CPM.sigmoid() * weight_CP1 / max(score_CPM.shape[-1], 1)
        case "ranking":
            pull_CPM = (score_CPM - positive_CP.unsqueeze(-1) + margin > 0) * weight_CP1
    return pull_CPM.masked_fill(own_CPM, 0)


def _applied(operator: Operator, adjoint: bool, x: Tensor, own: Tensor) -> Tensor:
    match operator:
        case "diagonal":
            return x * own
        case "translation":
            return x + own
        case "complex_diagonal":
            (re, im), (cos, sin) = x.chunk(2, -1), own.chunk(2, -1)
            sin = -sin if adjoint else sin
            return torch.cat([re * cos - im * sin, re * sin + im * cos], -1)
    return x


def _n3(operator: Operator, x: Tensor, regularization: float) -> tuple[Tensor, Tensor]:
    """Cost of each vector and its gradient."""
    if operator == "complex_diagonal":
        re, im = x.chunk(2, -1)
        modulus = (re.square() + im.square()).sqrt()
        slope = torch.cat([modulus, modulus], -1) * x
    else:
        modulus = x.abs()
        slope = modulus * x
    return regularization * modulus.pow(3).sum(-1), 3 * regularization * slope


def _wide(operand: Tensor) -> Tensor:
    """Products add up in float32 or better, whatever their operands."""
    return operand if operand.dtype == torch.float64 else operand.float()
