"""The functions of a fused step in plain torch: the definition of the functions in `kernels`.

One side of a step, for edges in chunks that share their candidates:

    sample                edges of a step, in random order, and candidates drawn for them
    stage                 rows of a table            -> operands
    query                 rows, relation             -> operands, to compare with candidates
    query_gradients       queries, candidates        -> losses, gradients of the queries; stores no score
    candidate_gradients   queries, candidates        -> gradients of the candidates
    backward              gradients of the queries   -> gradients of their rows and of their relation
    update_rows           Adagrad, row-wise or element-wise
    count_above, pair_scores    ranking

Operators are those of graphmill/model, losses and Adagrad those of train/model; the comparator is the dot
product.

Shapes: N rows of a table, D dimension, C chunks, P positives per chunk, K candidates of a chunk (its
positives first), M negatives, T touched rows with repetitions, R relations.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from graphmill.model import operators
from train.gpu import counter
from train.model import losses, optimizer
from train.step.plain import gradient_of

Operator = Literal["none", "diagonal", "translation", "complex_diagonal"]
Loss = Literal["ranking", "logistic", "softmax"]


class Edges(NamedTuple):
    """Columns of all edges of a pass, int32 [E], on the device."""

    lhs: Tensor
    rel: Tensor
    rhs: Tensor
    weight: Tensor | None  # float32


class Clock(NamedTuple):
    """Everything that differs between two steps of one shape; on the device, int64 [F]."""

    key: int
    position: int  # of the step's first edge, in the random order of its group
    first: int  # edge of the group
    size: int  # of the group
    half_bits: int  # of the size: counter.half_bits
    num_lhs: int  # rows of the tables
    num_rhs: int


class Sample(NamedTuple):
    """Edges in chunks, and the candidates of each side."""

    rows: tuple[Tensor, Tensor]  # of lhs and rhs, int32 [C, K]: the positives, some again, the drawn ones
    rel_CP: Tensor  # int32
    weight_CP: Tensor


class Source(NamedTuple):
    """Rows, and the relation that turns each into a query."""

    operator: Operator
    adjoint: bool  # apply the adjoint of the operator: <adjoint(x), y> = <x, operator(y)>
    table_ND: Tensor
    rows_CP: Tensor  # may be the first columns of a wider tensor
    parameters_RD: Tensor | None  # of complex_diagonal: the real parts, then the imaginary ones
    rel_CP: Tensor


class Comparison(NamedTuple):
    """Queries and their candidates."""

    loss: Loss
    margin: float
    query_CPD: Tensor
    candidate_CKD: Tensor
    rows_CK: Tensor  # of the candidates
    first: int  # candidate that is a negative
    weight_CP: Tensor
    exact: bool  # float32 operands multiply as float32, not in tf32; here they always do


class Compared(NamedTuple):
    """Result of `query_gradients`."""

    loss: Tensor  # float64 sum over the edges
    violators: Tensor  # float64 number of candidates that score above their positive
    gradient_CPD: Tensor  # of the queries
    saved: tuple[Tensor, ...]  # for candidate_gradients


def sample(edges: Edges, clock_F: Tensor, shape: tuple[int, int, int, int]) -> Sample:
    """Take the edges at the next C x P positions of a group's random order; draw candidates for each side.

    `clock_F` holds a Clock, `shape` = (C, P, number of a chunk's first positives that are repeated as
    candidates, number of drawn candidates). Key and position determine the drawn candidates too.
    """
    chunks, positives, again, drawn = shape
    key, position = clock_F[:2]
    clock = Clock(*clock_F.tolist())
    place_CP = position + torch.arange(chunks * positives, device=clock_F.device).view(chunks, positives)
    edge_CP = clock.first + counter.permute(key, place_CP, clock.size)
    counter_CM = torch.arange(chunks * drawn, device=clock_F.device).view(chunks, drawn)
    num_rows = clock.num_lhs, clock.num_rhs
    rows = []
    for side, (column, num) in enumerate(zip((edges.lhs, edges.rhs), num_rows, strict=True)):
        side_key = counter.mix(key ^ (side + 1), position)
        drawn_CM = counter.draw(side_key, counter_CM, num).to(torch.int32)
        rows.append(torch.cat([column[edge_CP], column[edge_CP[:, :again]], drawn_CM], dim=1))
    weight_CP = torch.ones(edge_CP.shape, device=clock_F.device)
    if edges.weight is not None:
        weight_CP = edges.weight[edge_CP]
    return Sample((rows[0], rows[1]), edges.rel[edge_CP], weight_CP)


def stage(table_ND: Tensor, rows_CK: Tensor, dtype: torch.dtype) -> Tensor:
    """Gather rows as operands of a matrix product: [C, K, D]."""
    return table_ND[rows_CK.long()].to(dtype)


def query(source: Source, dtype: torch.dtype) -> Tensor:
    """Gather rows and apply their relation: [C, P, D]."""
    return _apply(source, *_leaves(source)).detach().to(dtype)


def query_gradients(comparison: Comparison) -> Compared:
    """Compare every query with its own candidate, k = p, and with the negatives, k >= `first`."""
    query_CPD, candidate_CKD = _wide(comparison.query_CPD), _wide(comparison.candidate_CKD)
    positives, first = query_CPD.shape[1], comparison.first
    own_CPD, negative_CMD = candidate_CKD[:, :positives], candidate_CKD[:, first:]
    pos_CP = (query_CPD * own_CPD).sum(-1)
    neg_CPM = query_CPD @ negative_CMD.transpose(1, 2)
    losses.mask_own(neg_CPM, comparison.rows_CK, positives, first)
    violators = torch.count_nonzero(neg_CPM > pos_CP.unsqueeze(-1))
    weight_CP = comparison.weight_CP.to(pos_CP)
    loss_CP, pos_CP, neg_CPM = losses.loss_gradient(
        comparison.loss, comparison.margin, pos_CP, neg_CPM, weight_CP
    )
    gradient_CPD = neg_CPM @ negative_CMD + pos_CP.unsqueeze(-1) * own_CPD
    loss = loss_CP.sum(dtype=torch.float64)
    return Compared(loss, violators.double(), gradient_CPD, (pos_CP, neg_CPM))


def candidate_gradients(comparison: Comparison, saved: tuple[Tensor, ...], out_CKD: Tensor) -> None:
    """Write the gradients of all candidates, positives included, to `out_CKD`."""
    pos_CP, neg_CPM = saved
    query_CPD = _wide(comparison.query_CPD)
    out_CKD[:, : comparison.first] = 0
    out_CKD[:, comparison.first :] = neg_CPM.transpose(1, 2) @ query_CPD
    out_CKD[:, : query_CPD.shape[1]] += pos_CP.unsqueeze(-1) * query_CPD


def backward(
    source: Source, gradient_CPD: Tensor, regularization: tuple[float, float], out_CPD: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Write the gradients of the rows; return those of each edge's relation [C, P, D], and the N3 cost.

    `regularization` holds the coefficients of N3 on the row and on the relation.
    """
    rows_CPD, own_CPD = _leaves(source)
    _apply(source, rows_CPD, own_CPD).backward(gradient_CPD)  # type: ignore[no-untyped-call]
    row_gradient_CPD, cost = _regularised(source.operator, rows_CPD, regularization[0])
    out_CPD[:] = row_gradient_CPD
    if own_CPD is None:
        return None, cost
    own_gradient_CPD, own_cost = _regularised(source.operator, own_CPD, regularization[1])
    return own_gradient_CPD, cost + own_cost


def update_rows(table_ND: Tensor, sums: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor) -> None:
    """Move rows by one step of Adagrad, in place, after summing the gradients of equal rows.

    The step is row-wise with `sums` [N], element-wise with `sums` [N, D]. `lr` is one number on the device.
    """
    optimizer.update_rows(table_ND, sums, *optimizer.sum_duplicates(rows_T.long(), gradient_TD), float(lr))


def update_rows_fast(
    table_ND: Tensor, sums_N: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor
) -> None:
    """Move rows by a step of row-wise Adagrad for each occurrence, in any order."""
    for row_1, gradient_1D in zip(torch.split(rows_T.long(), 1), torch.split(gradient_TD, 1), strict=True):
        optimizer.update_rows(table_ND, sums_N, row_1, gradient_1D, float(lr))


def count_above(query_QD: Tensor, table_ND: Tensor, score_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Count the rows that score higher than `score_Q`, and those that equal it: int64 [Q], [Q]."""
    score_QN = query_QD @ table_ND.T
    threshold_Q1 = score_Q.unsqueeze(1)
    return (score_QN > threshold_Q1).sum(1), (score_QN == threshold_Q1).sum(1)


def pair_scores(query_QD: Tensor, table_ND: Tensor, query_T: Tensor, row_T: Tensor) -> Tensor:
    """Score T pairs of a query and a row, as `count_above` scores them."""
    return (query_QD[query_T] * table_ND[row_T]).sum(-1)


def _leaves(source: Source) -> tuple[Tensor, Tensor | None]:
    """Gather the rows of each edge and the parameters of its relation, [C, P, D] each, as leaves."""
    rows_CPD = source.table_ND[source.rows_CP.long()].requires_grad_()
    if source.parameters_RD is None:
        return rows_CPD, None
    return rows_CPD, source.parameters_RD[source.rel_CP.long()].requires_grad_()


def _apply(source: Source, rows_CPD: Tensor, own_CPD: Tensor | None) -> Tensor:
    """Apply each edge's operator, or its adjoint."""
    if own_CPD is None:
        return rows_CPD.clone()
    values = operators.parts(source.operator, own_CPD)
    if source.operator == "complex_diagonal" and source.adjoint:
        values = values[0], -values[1]
    query_CPD: Tensor = operators.apply(source.operator, rows_CPD, values)
    return query_CPD


def _regularised(operator: Operator, leaf: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
    """Sum the gradient at a leaf and the gradient of N3; and the cost of N3, in float64."""
    cost_CP, slopes = losses.n3(operators.parts(operator, leaf.detach()), coefficient)
    return gradient_of(leaf) + torch.cat(slopes, dim=-1), cost_CP.sum(dtype=torch.float64)


def _wide(operand: Tensor) -> Tensor:
    """Widen operands: products add up in float32 or better."""
    return operand if operand.dtype == torch.float64 else operand.float()
