"""1-vs-all training: a comparison of edges with all entities, grouped by query.

An edge has two queries: the rhs of (lhs, relation), and the lhs of (relation, rhs). With all_negs and
softmax, the edges of one query, its answers, share the scores of all entities:

    loss = sum over queries q and their answers a of  weight[a] (log Z(q) - score(q, a))
    Z(q) = sum over all entities x of exp score(q, x)

The sum equals that of the edges' own losses; FB15k-237 has 149,689 queries instead of 544,230.

With `train.candidates`, Z(q) is estimated by the answers of q and by entities that are drawn for the batch
and stand for all others (train/edges/candidates.py).

Shapes: E edges, Q queries, A answers, in the order of their queries, U distinct answers, C drawn candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.vocab import Side
from train.edges.negative_sampling import sides_with_negatives
from train.model.optimizer import add_rows


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """Queries for one side of edges, of one relation; of any relation where relations are dynamic.

    An answer without weight adds nothing, nor does a query without answers: they may fill up a batch.
    """

    relation: int
    side: Side  # side of the answers
    num_edges: int  # that the batch counts: an edge has a query on each side, and counts on one side
    entity_Q: Tensor  # rows of the partition on the other side
    rel_Q: Tensor | None  # with dynamic relations
    count_Q: Tensor  # number of answers; a float, like all counts here
    weight_Q: Tensor  # sum of the answers' weights
    query_A: Tensor  # position of the query in the batch
    answer_A: Tensor  # rows of the partition on `side`
    weight_A: Tensor  # weight of the edge times that of its relation
    answer_U: Tensor  # rows without repetition; none without regularization
    count_U: Tensor  # number of edges with that answer
    candidate_C: Tensor | None = None  # drawn rows, ascending, each at most twice; None: all rows
    log_weight_C: Tensor | None = None  # logarithm of the number of rows that each stands for
    mass_C: Tensor | None = None  # zeros, to which a step adds the candidate's share of the softmax

    def __len__(self) -> int:
        """Number of edges that the batch counts."""
        return self.num_edges

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def part(self, queries: slice) -> "QueryBatch":
        """Take some of the queries; the answers of others stay, without weight."""
        entity_Q, query_A = self.entity_Q[queries], self.query_A - queries.start
        is_own_A = (query_A >= 0) & (query_A < len(entity_Q))
        return replace(
            self,
            entity_Q=entity_Q,
            rel_Q=None if self.rel_Q is None else self.rel_Q[queries],
            count_Q=self.count_Q[queries],
            weight_Q=self.weight_Q[queries],
            query_A=query_A.clamp(0, len(entity_Q) - 1),
            weight_A=self.weight_A * is_own_A,
        )


@dataclass(frozen=True, eq=False)
class QueryGroup:
    """All queries of a bucket for one side and one relation, with their answers."""

    relation: int
    side: Side
    entity_Q: Tensor
    rel_Q: Tensor | None
    count_Q: Tensor
    answer_A: Tensor
    weight_A: Tensor
    counted: bool
    regularized: bool

    def cut(self, size: int, generator: torch.Generator) -> list[QueryBatch]:
        """Cut the queries, in random order, into batches of at most `size`.

        The host reads the bounds of all batches here, so that no step waits for a device.
        """
        device, num_queries = self.entity_Q.device, len(self.entity_Q)
        if not num_queries:
            return []
        order_Q = torch.randperm(num_queries, generator=generator).to(device)
        count_Q = self.count_Q[order_Q]
        query_A = torch.repeat_interleave(count_Q, output_size=len(self.answer_A))
        shift_Q = self.count_Q.cumsum(0)[order_Q] - count_Q.cumsum(0)
        order_A = torch.arange(len(query_A), device=device) + shift_Q[query_A]
        answer_A, weight_A = self.answer_A[order_A], self.weight_A[order_A]
        batch_A = query_A // size
        num_answers = torch.bincount(batch_A, minlength=-(-num_queries // size))
        answer_U, count_U, num_distinct = answer_A[:0], weight_A[:0], torch.zeros_like(num_answers)
        if self.regularized:
            width = answer_A.max() + 1
            key_U, count_U = torch.unique(batch_A * width + answer_A, return_counts=True)
            answer_U, num_distinct = key_U % width, torch.bincount(key_U // width, minlength=len(num_answers))
        queries = {
            "entity_Q": self.entity_Q[order_Q],
            "rel_Q": None if self.rel_Q is None else self.rel_Q[order_Q],
            "count_Q": count_Q.to(weight_A),
            "weight_Q": add_rows(weight_A.new_zeros(num_queries), query_A, weight_A),
        }
        answers = {"query_A": query_A % size, "answer_A": answer_A, "weight_A": weight_A}
        distinct = {"answer_U": answer_U, "count_U": count_U.to(weight_A)}
        sizes_Q = [min(size, num_queries - start) for start in range(0, num_queries, size)]
        bounds = zip(
            _slices(sizes_Q), _slices(num_answers.tolist()), _slices(num_distinct.tolist()), strict=True
        )
        return [
            QueryBatch(
                self.relation,
                self.side,
                own_A.stop - own_A.start if self.counted else 0,
                **_sliced(queries, own_Q),
                **_sliced(answers, own_A),
                **_sliced(distinct, own_U),
            )
            for own_Q, own_A, own_U in bounds
        ]


def _slices(sizes: list[int]) -> list[slice]:
    """Lay parts of these sizes side by side."""
    return [slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def _sliced(columns: Mapping[str, Tensor | None], rows: slice) -> dict[str, Any]:
    return {name: None if column is None else column[rows] for name, column in columns.items()}


def group_by_query(
    config: PbgConfig, relation: int, index: dict[Side, Tensor], rel_E: Tensor | None, weight_E: Tensor
) -> list[QueryGroup]:
    """Group edges by their query, into one group per side."""
    groups: list[QueryGroup] = []
    for side in sides_with_negatives(config):
        entity_E = index[side.other]
        width = int(entity_E.max()) + 1 if len(entity_E) else 1
        key_E = entity_E if rel_E is None else rel_E * width + entity_E
        sorted_E, order_E = torch.sort(key_E, stable=True)
        key_Q, count_Q = torch.unique_consecutive(sorted_E, return_counts=True)
        groups.append(
            QueryGroup(
                relation,
                side,
                key_Q % width,
                None if rel_E is None else key_Q // width,
                count_Q,
                index[side][order_E],
                weight_E[order_E],
                counted=not groups,
                regularized=bool(config.regularization_coef),
            )
        )
    return groups
