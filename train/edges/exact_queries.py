"""Queries that are compared with all entities, though others are compared with a sample (`train.candidates`).

The loss counts a query as often as it has answers, and so its gradient has the error of the sample times its
weight. A few queries ("packages of this section") have thousands of answers. On a graph of packages one query
in a hundred has 37 % of the answers, and 99.7 % of the sum of squared weights. So these queries take no
sample. They have batches of their own.

Shapes: Q queries of a group, M queries of all groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from train.edges.candidates import has_sample
from train.edges.one_vs_all import QueryGroup, QueryPart

MOST_ELEMENTS = 1 << 27  # of a table; a step has a gradient of all its rows
ONE_OF = 64  # queries are exact at most
SHARE_OF_SCORES = 1 / 2  # of the scores of the samples, that exact queries may have in addition
QUERIES_OF_AN_UPDATE = 128  # whose scores take as long as an update of all rows


def by_sample(
    config: Config, groups: Sequence[QueryGroup], num_rows: Mapping[Side, Sequence[tuple[int, int]]]
) -> Iterator[QueryPart]:
    """Yield the queries of each group of one relation that take a sample, and then those that are exact."""
    num = config.train.candidates
    rows = [0 if num is None else _rows_to_compare(config, group, num, num_rows) for group in groups]
    for group, is_exact_Q in zip(groups, exact(groups, rows, num or 0), strict=True):
        for takes_sample, chosen_Q in ((True, ~is_exact_Q), (False, is_exact_Q)):
            if len(numbers := chosen_Q.nonzero()[:, 0]):
                yield QueryPart(group, numbers, takes_sample)


def _rows_to_compare(
    config: Config, group: QueryGroup, num: int, num_rows: Mapping[Side, Sequence[tuple[int, int]]]
) -> int:
    """Count the rows of a group's table; 0 if it has no sample, or is too large for exact queries."""
    rows, _ = num_rows[group.side][group.relation]
    dimension = config.entity_dimension(config.relations[group.relation].entity_type(group.side))
    return rows if has_sample(num, rows) and rows * dimension <= MOST_ELEMENTS else 0


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
