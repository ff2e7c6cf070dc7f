"""The functions of a fused step in plain torch: the definition of the functions in `kernels`.

They are one side of a step, for edges in chunks that share their candidates: docs/explanation/gpu_inside.md.

Random numbers have no state: a key and a counter give a number. Any number of threads can repeat any step,
and a shuffled epoch takes no memory: `permute` maps a position of the epoch to an edge.

    mix         murmur3's 32-bit finalizer over (key, counter)
    permute     a Feistel network over the smallest 2^b >= n, applied again while its result is not below n
    draw        (mix x n) >> 32: uniform over [0, n) but for a share of n / 2^32

They are 32 bits wide, held in int64. Source: Black and Rogaway, Ciphers with arbitrary finite domains (CT-RSA
2002), for the walk.

Operators are those of graphmill/model, losses and Adagrad those of train/model; the comparator is the dot
product.

Shapes: N rows of a table, D dimension, S both sides, C chunks, P positives per chunk, K candidates of a chunk
(its positives first), M negatives, T touched rows with repetitions, R relations.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.model import losses, operators
from train.model import optimizer
from train.step.plain import gradient_of

# What the kernels know, by the numbers that they give it.
OPERATORS = {"none": 0, "diagonal": 1, "translation": 2, "complex_diagonal": 3}
LOSSES = {"softmax": 0, "logistic": 1, "ranking": 2}

ROUNDS = 4
_MASK = 0xFFFFFFFF


def mix(key: Tensor | int, counter: Tensor) -> Tensor:
    """Draw 32 random bits for each counter, int64 in and out."""
    bits = (counter * 0x9E3779B1 + key) & _MASK
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & _MASK
    bits = bits ^ (bits >> 16)
    # A second pass: keys that differ in one bit must not correlate.
    bits = ((bits + key) * 0x85EBCA6B) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0xC2B2AE35) & _MASK
    return bits ^ (bits >> 16)


def half_bits(num_items: int) -> int:
    """Bits of each half of the network that permutes `num_items`."""
    return max(1, ((num_items - 1).bit_length() + 1) // 2)


def permute(key: Tensor | int, position: Tensor, num_items: int) -> Tensor:
    """Find the item at each position of a random order of `num_items`: int64 in and out."""
    bits = half_bits(num_items)
    item = _network(key, position, bits)
    while bool((outside := item >= num_items).any()):
        item = torch.where(outside, _network(key, item, bits), item)
    return item


def draw(
    key: Tensor | int, counter: Tensor, num_items: int, start: int = 0, stop: int = 0, odds: int = 0
) -> Tensor:
    """Draw an item below num_items < 2^31 for each counter: of [start, stop) by `odds` of 2^32."""
    bits, own = mix(key, counter), stop - start
    other = (bits * (num_items - own)) >> 32
    is_own = mix(key ^ 1, counter) < odds
    return torch.where(is_own, start + ((bits * own) >> 32), other + own * (other >= start))


def _network(key: Tensor | int, value: Tensor, bits: int) -> Tensor:
    mask = (1 << bits) - 1
    left, right = value >> bits, value & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (mix(key, right + (number << 26)) & mask)
    return (left << bits) | right


class KernelEdges(NamedTuple):
    """Columns of all edges of a pass, int32 [E], on the device."""

    lhs: Tensor
    rel: Tensor
    rhs: Tensor
    weight: Tensor | None  # float32


class KernelClock(NamedTuple):
    """Everything that differs between two steps of one shape; on the device, int64 [F]."""

    key: int
    position: int  # of the step's first edge, in the random order of its group
    first: int  # edge of the group
    size: int  # of the group
    half_bits: int  # of the size: half_bits
    num_lhs: int  # rows of the tables
    num_rhs: int
    start_lhs: int = 0  # own rows (train/edges/own_rows.py)
    stop_lhs: int = 0
    odds_lhs: int = 0  # of 2^32, that a drawn row is one of them
    start_rhs: int = 0
    stop_rhs: int = 0
    odds_rhs: int = 0


class KernelSample(NamedTuple):
    """Edges in chunks, and the candidates of each side."""

    rows_SCK: Tensor  # of lhs and rhs, int32: the positives, some again, the drawn ones
    rel_CP: Tensor  # int32
    weight_CP: Tensor


class KernelSource(NamedTuple):
    """Rows, and the relation that turns each into a query."""

    operator: str
    adjoint: bool  # apply the adjoint of the operator: <adjoint(x), y> = <x, operator(y)>
    table_ND: Tensor
    rows_CP: Tensor  # the first columns of the candidates of their side
    parameters_RD: Tensor | None  # of complex_diagonal: the real parts, then the imaginary ones
    rel_CP: Tensor


class KernelComparison(NamedTuple):
    """Queries and their candidates."""

    loss: str
    margin: float
    query_CPD: Tensor
    candidate_CKD: Tensor
    rows_CK: Tensor  # of the candidates
    first: int  # candidate that is a negative
    weight_CP: Tensor
    exact: bool  # float32 operands multiply as float32, not in tf32; here they always do


class Compared(NamedTuple):
    """Result of `query_gradients`."""

    loss_CP: Tensor
    violators_CP: Tensor  # number of negatives that score above the positive
    gradient_CPD: Tensor  # of the queries, in their dtype
    pull_CP: Tensor  # gradients of the positives' scores
    saved: tuple[Tensor, ...]  # for candidate_gradients


class Runs(NamedTuple):
    """Touched rows in ascending order: equal ones are side by side."""

    key_T: Tensor  # the rows
    order_T: Tensor  # their places before


class Positive(NamedTuple):
    """The positives of one side, as candidates of its queries."""

    query_CPD: Tensor
    pull_CP: Tensor  # gradients of their scores
    is_negative: bool  # candidate_gradients has written their gradients as negatives of other queries


def sample(edges: KernelEdges, clock_F: Tensor, shape: tuple[int, int, int, int]) -> KernelSample:
    """Take the edges at the next C x P positions of a group's random order; draw candidates for each side.

    `clock_F` holds a Clock, `shape` = (C, P, number of a chunk's first positives that are repeated as
    candidates, number of drawn candidates). Key and position determine the drawn candidates too.
    """
    chunks, positives, again, drawn = shape
    key, position = clock_F[:2]
    clock = KernelClock(*clock_F.tolist())
    place_CP = position + torch.arange(chunks * positives, device=clock_F.device).view(chunks, positives)
    edge_CP = clock.first + permute(key, place_CP, clock.size)
    counter_CM = torch.arange(chunks * drawn, device=clock_F.device).view(chunks, drawn)
    sides = (edges.lhs, clock.num_lhs, clock[7:10]), (edges.rhs, clock.num_rhs, clock[10:])
    rows = []
    for side, (column, num, own) in enumerate(sides):
        side_key = mix(key ^ (side + 1), position)
        drawn_CM = draw(side_key, counter_CM, num, *own).to(torch.int32)
        rows.append(torch.cat([column[edge_CP], column[edge_CP[:, :again]], drawn_CM], dim=1))
    weight_CP = torch.ones(edge_CP.shape, device=clock_F.device)
    if edges.weight is not None:
        weight_CP = edges.weight[edge_CP]
    return KernelSample(torch.stack(rows), edges.rel[edge_CP], weight_CP)


def stage(table_ND: Tensor, rows_CK: Tensor, positives: int, dtype: torch.dtype) -> Tensor:
    """Gather the candidates after the first P, which `query` gathers, as operands of a product [C, K, D]."""
    candidate_CKD = table_ND.new_empty(*rows_CK.shape, table_ND.shape[1], dtype=dtype)
    candidate_CKD[:, positives:] = table_ND[rows_CK[:, positives:].long()].to(dtype)
    return candidate_CKD


def query(source: KernelSource, own_CKD: Tensor) -> Tensor:
    """Gather rows and apply their relation: [C, P, D], in the dtype of `own_CKD`.

    The rows themselves are the first P candidates of their side, and are written to `own_CKD`.
    """
    rows_CPD, parameters_CPD = _leaves(source)
    own_CKD[:, : rows_CPD.shape[1]] = rows_CPD.detach()
    return _apply(source, rows_CPD, parameters_CPD).detach().to(own_CKD.dtype)


def query_gradients(comparison: KernelComparison) -> Compared:
    """Compare every query with its own candidate, k = p, and with the negatives, k >= `first`."""
    query_CPD, candidate_CKD = _wide(comparison.query_CPD), _wide(comparison.candidate_CKD)
    positives, first = query_CPD.shape[1], comparison.first
    own_CPD, negative_CMD = candidate_CKD[:, :positives], candidate_CKD[:, first:]
    pos_CP = (query_CPD * own_CPD).sum(-1)
    neg_CPM = query_CPD @ negative_CMD.transpose(1, 2)
    losses.mask_own(neg_CPM, comparison.rows_CK, positives, first)
    violators_CP = (neg_CPM > pos_CP.unsqueeze(-1)).sum(-1).to(pos_CP)
    weight_CP = comparison.weight_CP.to(pos_CP)
    loss_CP, pos_CP, neg_CPM = losses.loss_gradient(
        comparison.loss, comparison.margin, pos_CP, neg_CPM, weight_CP
    )
    gradient_CPD = neg_CPM @ negative_CMD + pos_CP.unsqueeze(-1) * own_CPD
    gradient_CPD = gradient_CPD.to(comparison.query_CPD.dtype)
    return Compared(loss_CP, violators_CP, gradient_CPD, pos_CP, (neg_CPM,))


def candidate_gradients(comparison: KernelComparison, saved: tuple[Tensor, ...], out_CKD: Tensor) -> None:
    """Write the gradients of the candidates from `first` on, as negatives, to `out_CKD`."""
    (neg_CPM,) = saved
    out_CKD[:, comparison.first :] = neg_CPM.transpose(1, 2) @ _wide(comparison.query_CPD)


def backward(
    source: KernelSource,
    gradient_CPD: Tensor,
    positive: Positive,
    regularization: tuple[float, float],
    out_CKD: Tensor,
    related_CPD: Tensor,
) -> Tensor:
    """Write the gradients of the rows, which are the first P candidates of their side, to `out_CKD`.

    A row gets them as the entity of its query and as the positive of the other side's. The gradients of each
    edge's relation, if it has parameters, go to `related_CPD`. Returns the cost of N3 [C, P].
    `regularization` holds the coefficients of N3 on the row and on the relation.
    """
    rows_CPD, own_CPD = _leaves(source)
    _apply(source, rows_CPD, own_CPD).backward(_wide(gradient_CPD))  # type: ignore[no-untyped-call]
    row_gradient_CPD, cost_CP = _regularised(source.operator, rows_CPD, regularization[0])
    row_gradient_CPD += positive.pull_CP.unsqueeze(-1) * _wide(positive.query_CPD)
    first_CPD = out_CKD[:, : rows_CPD.shape[1]]
    first_CPD.copy_(row_gradient_CPD + first_CPD if positive.is_negative else row_gradient_CPD)
    if own_CPD is None:
        return cost_CP
    own_gradient_CPD, own_cost_CP = _regularised(source.operator, own_CPD, regularization[1])
    related_CPD.copy_(own_gradient_CPD)
    return cost_CP + own_cost_CP


def runs(rows_T: Tensor) -> Runs:
    """Sort rows; equal ones keep their order."""
    return Runs(*torch.sort(rows_T, stable=True))


def update_rows(table_ND: Tensor, sums: Tensor, touched: Runs, gradient_TD: Tensor, lr: Tensor) -> None:
    """Move rows by one step of Adagrad, in place, after summing the gradients of equal rows.

    `gradient_TD` is in the order of the rows before they were sorted. The step is row-wise with `sums` [N],
    element-wise with `sums` [N, D]. `lr` is one number on the device.
    """
    gradient_TD = gradient_TD[touched.order_T].to(table_ND.dtype)
    gradients = optimizer.sum_duplicates(touched.key_T.long(), gradient_TD)
    optimizer.update_rows(table_ND, sums, *gradients, float(lr))


def update_rows_fast(table_ND: Tensor, sums: Tensor, rows_T: Tensor, gradient_TD: Tensor, lr: Tensor) -> None:
    """Move rows like `update_rows`, but by a step for each occurrence, in any order; they need no sorting."""
    for row_1, gradient_1D in zip(torch.split(rows_T.long(), 1), torch.split(gradient_TD, 1), strict=True):
        optimizer.update_rows(table_ND, sums, row_1, gradient_1D, float(lr))


def _leaves(source: KernelSource) -> tuple[Tensor, Tensor | None]:
    """Gather the rows of each edge and the parameters of its relation, [C, P, D] each, as leaves."""
    rows_CPD = source.table_ND[source.rows_CP.long()].requires_grad_()
    if source.parameters_RD is None:
        return rows_CPD, None
    return rows_CPD, source.parameters_RD[source.rel_CP.long()].requires_grad_()


def _apply(source: KernelSource, rows_CPD: Tensor, own_CPD: Tensor | None) -> Tensor:
    if own_CPD is None:
        return rows_CPD.clone()
    operator = operators.OPERATORS[source.operator]
    values = operators.parts(source.operator, own_CPD)
    return (operator.slopes if source.adjoint else operator.apply)(rows_CPD, values)


def _regularised(operator: str, leaf: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
    """Sum the gradient at a leaf and the gradient of N3; and the cost of N3 [C, P]."""
    cost_CP, slopes = losses.n3(operators.parts(operator, leaf.detach()), coefficient)
    return gradient_of(leaf) + torch.cat(slopes, dim=-1), cost_CP


def _wide(operand: Tensor) -> Tensor:
    """Widen operands: products add up in float32 or better."""
    return operand if operand.dtype == torch.float64 else operand.float()
