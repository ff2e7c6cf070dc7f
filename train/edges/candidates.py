"""Candidates of a sampled softmax: entities that a batch of queries is compared with, drawn for each batch.

Half of the draws are uniform. The other half goes to rows in proportion to their mass: their share of the
softmax when they were last drawn, so entities that are often mistaken for an answer come often. The
step weights each candidate by 1 / (C p), with p its odds of being drawn: then the expected sum over the
candidates is the sum over all entities (importance sampling, doi:10.1109/TNN.2007.912312).

The loss counts a query as often as it has answers, and so its gradient has the error of the sample times its
weight. A few queries ("packages of this section") have thousands of answers. On a graph of packages one query
in a hundred has 37 % of the answers, and 99.7 % of the sum of squared weights. So these exact queries take no
sample: they are compared with all entities, in batches of their own.

Shapes: N rows, C candidates, Q queries of a group, M queries of all groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from train.edges.negative_sampling import share_of
from train.edges.one_vs_all import QueryBatch, QueryGroup
from train.edges.own_rows import BlockRows

_MEMORY = 0.7  # of a row's mass that stays when the row is drawn again
_LEAST_MASS = 1e-30  # the shares of all rows may underflow
_DRAWS_PER_ROW = 1 / 8  # between two times that the odds are computed
MOST_ELEMENTS = 1 << 27  # of a table; a step has a gradient of all its rows
ONE_OF = 64  # queries are exact at most
SHARE_OF_SCORES = 1 / 2  # of the scores of the samples, that exact queries may have in addition
QUERIES_OF_AN_UPDATE = 128  # whose scores take as long as an update of all rows


def has_sample(num_candidates: int | None, num_rows: int) -> bool:
    """Tell whether candidates are drawn from a table that is large enough; another is compared as a whole."""
    return num_candidates is not None and num_rows >= 2 * num_candidates


NumRows = Mapping[Side, Sequence[int]]  # of each relation's table


@dataclass(eq=False)
class _Odds:
    """The odds of the rows of a table."""

    mass_N: Tensor  # share of the softmax, as it was when the row was drawn
    odds_N: Tensor
    sums_N: Tensor  # running sums of the odds
    draws: int = 0  # rows that were drawn since the odds were computed


class CandidateSampler:
    """Draws candidates, and learns from the steps that compare with them.

    Each bucket has its own, so that a run that stops and resumes draws the same.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.num = config.train.candidates
        self._odds: dict[tuple[Side, str], _Odds] = {}

    def draw(
        self, batch: QueryBatch, num_rows: int, generator: torch.Generator, share: float = 1.0
    ) -> QueryBatch:
        """Give a batch a share of the candidates, ascending.

        It has none if it takes none, or if the table has less than twice as many rows as all candidates. The
        range of odds is cut into C parts, and one row is drawn from each. No row has odds above 1 / C, so a
        row comes twice at most.
        """
        if self.num is None or not batch.takes_sample or not has_sample(self.num, num_rows):
            return batch
        device = batch.answer_A.device
        key = batch.side, self.config.relations[batch.relation].entity_type(batch.side)
        if key not in self._odds:
            self._odds[key] = _odds(torch.full((num_rows,), 1 / num_rows, device=device), self.num)
        own = self._odds[key]
        if own.draws > _DRAWS_PER_ROW * num_rows:
            own = self._odds[key] = _odds(own.mass_N, self.num)
        num = share_of(self.num, share)
        own.draws += num
        at_C = torch.arange(num) + torch.rand(num, generator=generator, dtype=torch.float64)
        at_C = at_C.to(device) * (own.sums_N[-1] / num)
        rows_C = torch.searchsorted(own.sums_N, at_C, right=True).clamp_max_(num_rows - 1)
        weight_C = -(own.odds_N[rows_C] * num).log()
        return replace(batch, candidate_C=rows_C, log_weight_C=weight_C, mass_C=torch.zeros_like(weight_C))

    def learn(self, batch: QueryBatch) -> None:
        """Take the mass of a batch's candidates from its step."""
        if batch.candidate_C is None or batch.mass_C is None:
            return
        key = batch.side, self.config.relations[batch.relation].entity_type(batch.side)
        mass_N = self._odds[key].mass_N
        mass_C = batch.mass_C / batch.weight_Q.sum().clamp_min_(1e-30)
        mass_N[batch.candidate_C] = torch.lerp(mass_C, mass_N[batch.candidate_C], _MEMORY)


def _odds(mass_N: Tensor, num: int) -> _Odds:
    """Compute the odds of all rows; none is above 1 / num, if there are at least 2 num rows."""
    most = 1 / (4 * num)
    own_N = mass_N.double() + _LEAST_MASS
    odds_N = (own_N / (2 * own_N.sum())).clamp_max_(most)
    odds_N += 1 / (2 * len(mass_N))
    odds_N /= odds_N.sum()
    return _Odds(mass_N, odds_N.float(), odds_N.cumsum(0))


def by_sample(
    config: Config, groups: Sequence[QueryGroup], num_rows: NumRows, blocks: BlockRows
) -> Iterator[tuple[QueryGroup, Tensor, dict[str, Any]]]:
    """Yield of each group of one relation the queries that take a sample, and then those that are exact.

    Each with attributes of their batches, which have queries of one block.
    """
    num = config.train.candidates
    rows = [_rows_to_compare(config, group, num_rows) for group in groups]
    for group, is_exact_Q in zip(groups, exact(groups, rows, num or 0), strict=True):
        for takes_sample, chosen_Q in ((True, ~is_exact_Q), (False, is_exact_Q)):
            relation, numbers = config.relations[group.relation], chosen_Q.nonzero()[:, 0]
            block_Q = blocks.block_of(relation, group.side.other, group.entity_Q[numbers])
            for block in (0, 1):
                if len(own := numbers[block_Q == block]):
                    own_rows = blocks.own(relation, group.side, block)
                    yield group, own, {"takes_sample": takes_sample, "own": own_rows}


def _rows_to_compare(config: Config, group: QueryGroup, num_rows: NumRows) -> int:
    """Count the rows of a group's table; 0 if it has no sample, or is too large for exact queries."""
    rows = num_rows[group.side][group.relation]
    dimension = config.entity_dimension(config.relations[group.relation].entity_type(group.side))
    return rows if has_sample(config.train.candidates, rows) and rows * dimension <= MOST_ELEMENTS else 0


def exact(groups: Sequence[QueryGroup], num_rows: Sequence[int], num_candidates: int) -> list[Tensor]:
    """Choose exact queries, as a mask [Q] of each group.

    They are those of the greatest weight, above the mean; the first of equal ones. `num_rows` has the rows of
    each group's table; 0: none of its queries is exact.
    """
    sizes = [len(group.count_Q) for group in groups]
    num_queries = sum(size for size, rows in zip(sizes, num_rows, strict=True) if rows)
    most_scores = SHARE_OF_SCORES * num_candidates * num_queries - QUERIES_OF_AN_UPDATE * sum(num_rows)
    if most_scores <= 0:
        return [torch.zeros_like(group.count_Q, dtype=torch.bool) for group in groups]
    counts = [group.count_Q for group in groups]
    rows_M = torch.cat(list(starmap(torch.full_like, zip(counts, num_rows, strict=True))))
    weight_M = torch.cat([group.sum_weights() for group in groups]) * (rows_M > 0)
    chosen = torch.sort(weight_M, descending=True, stable=True).indices[: num_queries // ONE_OF]
    is_exact_M = torch.zeros_like(weight_M, dtype=torch.bool)
    is_exact_M[chosen] = (rows_M[chosen].cumsum(0) <= most_scores) & (weight_M[chosen] > weight_M.mean())
    return list(torch.split(is_exact_M, sizes))
