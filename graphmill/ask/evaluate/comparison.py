"""Scores compared exactly, at the rate of a rounded matrix product.

Only the order of two scores matters for a rank. The score that decides is `Model.edge_scores` of the two
vectors in float64: it depends on nothing else, so copies tie, and ranks are the same for all block sizes,
threads, workers and machines. A rounded matrix product finds the few pairs that need it. For

    dot, cos            score = q . c                               (with bias: + q_0 + c_0)
    l2, squared_l2      -|q - c|^2 = 2 q . c - |q|^2 - |c|^2        (l2 orders candidates as squared_l2 does)

each score is x + u with x = q' . c', where c' has the candidate's own term v in three more columns, and u
depends on the query alone. So score > own <=> x > own - u. Let q^, c^ be the vectors rounded for the product,
and y the product in float32. By Cauchy and Schwarz, and since sums of n terms in any order err by
n 2^-23 of the sum of their absolute values at most,

    |x - y| <= |q' - q^| |c'| + |q^| |c' - c^| + n 2^-23 (|q^| |c^| + |v|) = B

with the true norms of what the rounding has lost. y > own - u + B is a higher score, and y < own - u - B a
lower one; only pairs in between are scored in float64. A product that is rounded once more at its end (to
bfloat16) keeps that order, if the two limits are rounded outwards. Of the pairs that bfloat16 leaves in
doubt, float32 tells most apart: pair by pair in compiled code, or by another product if they are many.

Other comparators, plug-ins and l2 with a bias, are compared by their float32 `matrix_scores`.

Shapes: D dimension, P queries, N candidates, C edges, T pairs of an edge and a candidate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graphmill.ask.evaluate import counts
from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.machine.variants import has_bfloat16_products
from graphmill.model.built_in import COMPARATORS
from graphmill.model.comparators import is_dot
from graphmill.vocab import Side

MANY_PAIRS = 0.01
"""Share of pairs in doubt from which another product in float32 is cheaper than scores one by one."""
MANY_COMPILED = 0.1
"""The same in compiled code."""
_PAIRS = 1 << 15  # floats of the vectors scored at a time: they stay in the cache
_LARGEST = 2.0**126  # up to here no sum overflows
_SMALLEST = 2.0**-96  # more than underflow takes from a product, and SMALLEST_SQUARE from a distance
_TERM = 3  # where `_sizes` has the largest term
_NUM_PARTS = 3  # columns of a candidate's own term: two of 8 bits, and the rest


def is_product(config: Config) -> bool:
    """Tell whether scores are ordered as inner products are."""
    built_in = COMPARATORS.get(config.comparator)
    return built_in is not None and not (built_in.is_root and config.bias)


def dtypes(config: Config, device: torch.device) -> tuple[torch.dtype, ...]:
    """The precisions of the products, each for the pairs that the one before leaves in doubt."""
    precision = config.evaluate.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cpu" and has_bfloat16_products() else "float32"
    return (torch.bfloat16, torch.float32) if precision == "bfloat16" else (torch.float32,)


class _Rounded(NamedTuple):
    """Vectors as a product takes them, and their factors of the bound B, which is a sum of five products.

    Attributes:
        rows: [N, D'] of the product's dtype.
        bound: float64; `_weights` of each query [P, 5], `_sizes` of a block of candidates [5].
        rounded_norm: the largest.
    """

    rows: Tensor
    bound: Tensor
    rounded_norm: float


@dataclass(frozen=True, eq=False)
class ComparedFactors:
    """Queries or candidates of a block, for products of every precision.

    Attributes:
        vectors: [N, D] as the model made them.
        term: [N] float64: u of a query, v of a candidate.
        rounded: the factors of a product of each dtype.
    """

    vectors: Tensor
    term: Tensor
    rounded: dict[torch.dtype, _Rounded]


@dataclass(frozen=True, eq=False)
class ComparedEdges:
    """Edges of a block of queries, to be compared with the candidates of a block.

    Attributes:
        row_C: row of each edge's query.
        own_C: score of each edge, float64.
        own_column_C: column of each edge's own candidate; -1 for one of another block.
        left_out: rows and columns of pairs of a query and a candidate that do not count.
        num_candidates: candidates of the block; columns after these do not count.
    """

    row_C: Tensor
    own_C: Tensor
    own_column_C: Tensor
    left_out: tuple[Tensor, Tensor]
    num_candidates: int

    def leave_out(self, score_PN: Tensor) -> Tensor:
        """The same scores, with the least score of what does not count for any edge."""
        score_PN[:, self.num_candidates :] = -torch.inf
        score_PN[self.left_out] = -torch.inf
        return score_PN

    def rivals(self, score_PN: Tensor, edge_E: Tensor) -> Tensor:
        """The scores of some edges' rivals, the least for the edge's own: [E, N]."""
        rival_EN = score_PN.index_select(0, self.row_C[edge_E])
        column_E = self.own_column_C[edge_E]
        is_here = (column_E >= 0).nonzero().flatten()
        rival_EN[is_here, column_E[is_here]] = -torch.inf
        return rival_EN

    def parts(self, size: int) -> Iterator[Tensor]:
        """The numbers of the edges, `size` at a time."""
        return iter(torch.split(torch.arange(len(self.row_C), device=self.row_C.device), size))


class Comparison:
    """Compares edges' own scores with those of all pairs of their queries and some candidates."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model, self._config = model, model.config
        self._is_product = is_product(model.config)
        self._dtypes = dtypes(model.config, device)

    def queries(self, query_PD: Tensor) -> ComparedFactors:
        """Factors of queries."""
        return self._factors(query_PD, are_queries=True)

    def candidates(self, candidate_ND: Tensor) -> ComparedFactors:
        """Factors of candidates."""
        return self._factors(candidate_ND, are_queries=False)

    def own_scores(self, query_CD: Tensor, candidate_ND: Tensor, side: Side) -> Tensor:
        """Scores that decide, of edges whose candidates are the first rows of a block: [C] float64."""
        if self._is_product:
            return self._scores(query_CD, candidate_ND[: len(query_CD)], side)
        return self._model.matrix_scores(query_CD, candidate_ND, side).diagonal().double()

    def count(
        self, edges: ComparedEdges, queries: ComparedFactors, candidates: ComparedFactors, side: Side
    ) -> Tensor:
        """Numbers of candidates that score higher than each edge, and that score the same: [2, C]."""
        if self._is_product:
            return self._count_products(edges, queries, candidates, side)
        score_PN = edges.leave_out(self._model.matrix_scores(queries.vectors, candidates.vectors, side))
        counted = []
        for edge_E in edges.parts(len(score_PN)):
            rival_EN, own_E1 = edges.rivals(score_PN, edge_E), edges.own_C[edge_E].float().unsqueeze(1)
            counted.append(torch.stack([(rival_EN > own_E1).sum(1), (rival_EN == own_E1).sum(1)]))
        return torch.cat(counted, 1)

    def _count_products(
        self, edges: ComparedEdges, queries: ComparedFactors, candidates: ComparedFactors, side: Side
    ) -> Tensor:
        is_compiled = edges.row_C.device.type == "cpu" and counts.library() is not None
        for dtype in self._dtypes:
            product_PN = queries.rounded[dtype].rows @ candidates.rounded[dtype].rows.T
            low_C1, high_C1, overflows = self._limits(edges, queries, candidates, dtype)
            if overflows:
                product_PN.nan_to_num_()  # finite: all are in doubt
            edges.leave_out(product_PN)
            counter: counts.Counter | _TorchCounter = (
                counts.Counter(product_PN, edges.row_C, edges.own_column_C, low_C1, high_C1)
                if is_compiled
                else _TorchCounter(edges, product_PN, low_C1, high_C1)
            )
            higher_C, doubt_C = counter.count()
            many = MANY_COMPILED if is_compiled else MANY_PAIRS
            if int(doubt_C.sum()) <= many * len(doubt_C) * product_PN.shape[1]:
                break
        factors = None
        if is_compiled and dtype is not torch.float32 and not overflows:
            rows = queries.rounded[torch.float32].rows, candidates.rounded[torch.float32].rows
            factors = counts.Factors(*rows, *self._limits(edges, queries, candidates, torch.float32)[:2])
        equal_C = torch.zeros_like(higher_C)
        for edge_T, column_T in counter.pairs(doubt_C, higher_C, factors):
            row_T = edges.row_C[edge_T]
            score_T = self._pair_scores(queries.vectors, candidates.vectors, side, row_T, column_T)
            own_T = edges.own_C[edge_T]
            higher_C.index_add_(0, edge_T, (score_T > own_T).long())
            equal_C.index_add_(0, edge_T, (score_T == own_T).long())
        return torch.stack([higher_C, equal_C])

    def _pair_scores(
        self, query_PD: Tensor, candidate_ND: Tensor, side: Side, row_T: Tensor, column_T: Tensor
    ) -> Tensor:
        """Scores that decide, of pairs: [T]."""
        step = max(1, _PAIRS // query_PD.shape[1])
        parts = zip(torch.split(row_T, step), torch.split(column_T, step), strict=True)
        scores = [
            self._scores(query_PD.index_select(0, rows), candidate_ND.index_select(0, columns), side)
            for rows, columns in parts
        ]
        return torch.cat([candidate_ND.new_empty(0, dtype=torch.float64), *scores])

    def _scores(self, query_TD: Tensor, candidate_TD: Tensor, side: Side) -> Tensor:
        return self._model.edge_scores(query_TD.double(), candidate_TD.double(), side)

    def _factors(self, vectors_ND: Tensor, *, are_queries: bool) -> ComparedFactors:
        if not self._is_product:
            return ComparedFactors(vectors_ND, vectors_ND.new_zeros(0), {})
        vectors_ND = vectors_ND.contiguous()
        config = self._config
        compared_ND = vectors_ND[:, 1:] if config.bias else vectors_ND
        term_N = vectors_ND.new_zeros(len(vectors_ND), dtype=torch.float64)
        if config.bias:
            term_N += vectors_ND[:, 0]
        is_distance = not is_dot(config.comparator, bias=False)
        if is_distance:
            term_N -= compared_ND.double().square().sum(1)
            compared_ND = 2 * compared_ND if are_queries else compared_ND
        parts_NK = compared_ND[:, :0]
        if config.bias or is_distance:
            parts_NK = torch.ones_like(compared_ND[:, :1]).expand(-1, _NUM_PARTS)
            parts_NK = parts_NK if are_queries else _parts(term_N)
        rounded = {}
        for dtype in self._dtypes:
            rows_ND = compared_ND.to(dtype)
            if parts_NK.shape[1]:
                rows_ND = torch.cat([rows_ND, parts_NK.to(dtype)], 1)
            norms = _norms(compared_ND, dtype)
            bound = _weights(norms, term_N, rows_ND.shape[1] + 8) if are_queries else _sizes(norms, term_N)
            if dtype is not self._dtypes[0]:  # for products pair by pair
                rows_ND = functional.pad(rows_ND, (0, -rows_ND.shape[1] % counts.ALIGNED))
            rounded[dtype] = _Rounded(rows_ND, bound, float(norms[1].amax()))
        return ComparedFactors(vectors_ND, term_N, rounded)

    def _limits(
        self, edges: ComparedEdges, queries: ComparedFactors, candidates: ComparedFactors, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, bool]:
        """Limits [C, 1] of the products that leave no doubt, and whether products may overflow."""
        row_C = edges.row_C
        is_root = COMPARATORS[self._config.comparator].is_root
        own_C = -edges.own_C.square() if is_root else edges.own_C
        limit_C = own_C - queries.term[row_C]
        q, c = queries.rounded[dtype], candidates.rounded[dtype]
        fits = q.rounded_norm * c.rounded_norm + 1.1 * float(c.bound[_TERM]) <= _LARGEST
        bound_C = (q.bound @ c.bound)[row_C] if fits else torch.full_like(own_C, torch.inf)
        bound_C += (q.rows.shape[1] + 8) * 2.0**-48 * own_C.abs()
        limits = _outwards(limit_C - bound_C, dtype, -1), _outwards(limit_C + bound_C, dtype, 1)
        return *limits, not fits


def _norms(vectors_ND: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Norms of vectors, of the same rounded, and of what rounding has lost: [N] float64."""
    exact_ND = vectors_ND.double()
    norm_N = exact_ND.norm(dim=1)
    if dtype is torch.float32:
        return norm_N, norm_N, torch.zeros_like(norm_N)
    rounded_ND = vectors_ND.to(dtype).double()
    return norm_N, rounded_ND.norm(dim=1), (exact_ND - rounded_ND).norm(dim=1)


def _weights(norms: tuple[Tensor, Tensor, Tensor], term_P: Tensor, num_terms: int) -> Tensor:
    """Factors of each query; multiplied by `_sizes` and summed up, they are the bound B: [P, 5].

    The factors are slightly above the exact ones, as float64 rounds scores, terms, norms and the bound.
    """
    norm_P, rounded_P, lost_P = norms
    one_P = torch.ones_like(norm_P)
    columns = (
        lost_P + num_terms * (_SMALLEST + 2.0**-48 * norm_P),
        num_terms * 2.0**-23 * rounded_P,
        rounded_P,
        (2.0**-24 + num_terms * (1.1 * 2.0**-23 + 2.0**-48)) * one_P,
        num_terms * (_SMALLEST * (1 + norm_P) + 2.0**-48 * term_P.abs()),
    )
    return torch.stack(columns, 1) * (1 + 2.0**-20)


def _sizes(norms: tuple[Tensor, Tensor, Tensor], term_N: Tensor) -> Tensor:
    """Largest norm, rounded norm, lost norm and own term of a block of candidates, and 1: [5]."""
    largest = [norm_N.amax() for norm_N in (*norms, term_N.abs())]
    return torch.stack([*largest, torch.ones_like(largest[0])])


def _parts(term_N: Tensor) -> Tensor:
    """Summands of each term, of which two are bfloat16, and the last is 2^-16 of the term: [N, 3]."""
    first_N = term_N.bfloat16().double()
    second_N = (term_N - first_N).bfloat16().double()
    return torch.stack([first_N, second_N, term_N - first_N - second_N], 1).float()


def _outwards(limit_C: Tensor, dtype: torch.dtype, sign: int) -> Tensor:
    """The limits, rounded up (sign 1) or down (-1) to finite numbers of `dtype`: [C, 1]."""
    largest = torch.finfo(dtype).max
    rounded_C = limit_C.clamp(-largest, largest).to(dtype)
    is_inside_C = sign * (limit_C - rounded_C.double()) > 0
    next_C = torch.nextafter(rounded_C, torch.full_like(rounded_C, sign * largest))
    return torch.where(is_inside_C, next_C, rounded_C).unsqueeze(1)


class _TorchCounter:
    """Counts as `counts.Counter` does, on any device."""

    def __init__(self, edges: ComparedEdges, product_PN: Tensor, low_C1: Tensor, high_C1: Tensor) -> None:
        self._edges, self._product_PN, self._low_C1, self._high_C1 = edges, product_PN, low_C1, high_C1

    def count(self) -> tuple[Tensor, Tensor]:
        """Numbers of products above the upper limit, and of those between the limits: [C] each."""
        counted = []
        for edge_E in self._edges.parts(len(self._product_PN)):
            rival_EN = self._edges.rivals(self._product_PN, edge_E)
            is_beyond_EN = torch.empty_like(rival_EN)  # sums of floats are vectorised, of booleans not
            higher_E = _sum(torch.gt(rival_EN, self._high_C1[edge_E], out=is_beyond_EN))
            lower_E = _sum(torch.lt(rival_EN, self._low_C1[edge_E], out=is_beyond_EN))
            counted.append(torch.stack([higher_E, rival_EN.shape[1] - higher_E - lower_E]))
        higher_C, doubt_C = torch.cat(counted, 1)
        return higher_C, doubt_C

    def pairs(
        self, doubt_C: Tensor, higher_C: Tensor, factors: counts.Factors | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The pairs between the limits, edges and columns, in parts [T]; the rest is not used."""
        for edge_E in torch.split(doubt_C.nonzero().flatten(), len(self._product_PN)):
            rival_EN = self._edges.rivals(self._product_PN, edge_E)
            is_between_EN = (rival_EN <= self._high_C1[edge_E]) & (rival_EN >= self._low_C1[edge_E])
            which_T, column_T = is_between_EN.nonzero(as_tuple=True)
            yield edge_E[which_T], column_T


def _sum(is_beyond_CN: Tensor) -> Tensor:
    return is_beyond_CN.sum(1, dtype=torch.float32).long()
