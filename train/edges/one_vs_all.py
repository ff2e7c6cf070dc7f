"""1-vs-all training: a comparison of edges with all entities, grouped by query.

An edge has two queries: the rhs of (lhs, relation), and the lhs of (relation, rhs). With all_negs and
softmax, the edges of one query, its answers, share the scores of all entities:

    loss = sum over queries q and their answers a of  weight[a] (log Z(q) - score(q, a))
    Z(q) = sum over all entities x of exp score(q, x)

The sum equals that of the edges' own losses; FB15k-237 has 149,689 queries instead of 544,230.

Shapes: E edges, Q queries, A answers, in the order of their queries.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.vocab import Side
from train.edges.negative_sampling import sides_with_negatives


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """Queries for one side of edges, of one relation; of any relation where relations are dynamic."""

    relation: int
    side: Side  # side of the answers
    entity_Q: Tensor  # rows of the partition on the other side
    rel_Q: Tensor | None  # with dynamic relations
    count_Q: Tensor  # number of answers
    answer_A: Tensor  # rows of the partition on `side`
    weight_A: Tensor  # weight of the edge times that of its relation
    counted: bool  # an edge has a query on each side, and counts on one side

    def __len__(self) -> int:
        """Number of edges that the batch counts."""
        return len(self.answer_A) if self.counted else 0

    def cut(self, size: int, generator: torch.Generator) -> list[Tensor]:
        """Cut the numbers of all queries, in random order, into parts of at most `size`."""
        order_Q = torch.randperm(len(self.entity_Q), generator=generator).to(self.entity_Q.device)
        return [order_Q[start : start + size] for start in range(0, len(order_Q), size)]

    def select(self, queries: Tensor) -> "QueryBatch":
        """Select some of the queries, with their answers."""
        count_Q = self.count_Q[queries]
        start_Q = self.count_Q.cumsum(0)[queries] - count_Q
        first_Q = count_Q.cumsum(0) - count_Q
        query_A = torch.repeat_interleave(count_Q)
        answers = torch.arange(len(query_A), device=count_Q.device) + (start_Q - first_Q)[query_A]
        return replace(
            self,
            entity_Q=self.entity_Q[queries],
            rel_Q=None if self.rel_Q is None else self.rel_Q[queries],
            count_Q=count_Q,
            answer_A=self.answer_A[answers],
            weight_A=self.weight_A[answers],
        )


def group_by_query(
    config: PbgConfig, relation: int, index: dict[Side, Tensor], rel_E: Tensor | None, weight_E: Tensor
) -> list[QueryBatch]:
    """Group edges by their query, into one batch per side."""
    batches: list[QueryBatch] = []
    for side in sides_with_negatives(config):
        entity_E = index[side.other]
        width = int(entity_E.max()) + 1 if len(entity_E) else 1
        key_E = entity_E if rel_E is None else rel_E * width + entity_E
        sorted_E, order_E = torch.sort(key_E, stable=True)
        key_Q, count_Q = torch.unique_consecutive(sorted_E, return_counts=True)
        batches.append(
            QueryBatch(
                relation,
                side,
                key_Q % width,
                None if rel_E is None else key_Q // width,
                count_Q,
                index[side][order_E],
                weight_E[order_E],
                counted=not batches,
            )
        )
    return batches
