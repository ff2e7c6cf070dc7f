"""Edges that are compared with all entities, grouped: each question is asked once, whatever its answers.

An edge is two questions: which rhs does (lhs, relation) have, and which lhs does (relation, rhs) have. With
all_negs and softmax, all edges that ask the same share every score but their own:

    loss = sum over questions q and their answers a of  weight[a] (log Z(q) - score(q, a))
    Z(q) = sum over all entities x of exp score(q, x)

That is what the edges' losses add up to one by one; on FB15k-237 in 149,689 questions instead of 544,230.

Shapes: E edges, Q questions, A answers, in the order of their questions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.vocab import Side


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions about one side of edges of one relation, or of any where relations are dynamic."""

    relation: int
    side: Side  # that is asked for
    entity_Q: Tensor  # rows of the partition on the other side
    rel_Q: Tensor | None  # with dynamic relations
    count_Q: Tensor  # answers
    answer_A: Tensor  # rows of the partition on `side`
    weight_A: Tensor  # of the edge and its relation
    counted: bool  # an edge is asked about on both sides, and counts on one of them

    def __len__(self) -> int:
        """Edges that these count for."""
        return len(self.answer_A) if self.counted else 0

    def cut(self, size: int, generator: torch.Generator) -> list[Tensor]:
        """Numbers of all questions in random order, at most `size` at a time."""
        order_Q = torch.randperm(len(self.entity_Q), generator=generator).to(self.entity_Q.device)
        return [order_Q[start : start + size] for start in range(0, len(order_Q), size)]

    def select(self, questions: Tensor) -> "Questions":
        """Some of the questions, with their answers."""
        count_Q = self.count_Q[questions]
        start_Q = self.count_Q.cumsum(0)[questions] - count_Q
        first_Q = count_Q.cumsum(0) - count_Q
        question_A = torch.repeat_interleave(count_Q)
        answers = torch.arange(len(question_A), device=count_Q.device) + (start_Q - first_Q)[question_A]
        return Questions(
            self.relation,
            self.side,
            self.entity_Q[questions],
            None if self.rel_Q is None else self.rel_Q[questions],
            count_Q,
            self.answer_A[answers],
            self.weight_A[answers],
            self.counted,
        )


def asked_sides(config: PbgConfig) -> list[Side]:
    """The sides that have negatives."""
    off = {Side.LHS: config.disable_lhs_negs, Side.RHS: config.disable_rhs_negs}
    return [side for side in Side if not off[side]]


def group(
    config: PbgConfig, relation: int, index: dict[Side, Tensor], rel_E: Tensor | None, weight_E: Tensor
) -> list[Questions]:
    """All questions that edges ask, one entry a side; the same question once."""
    found: list[Questions] = []
    for side in asked_sides(config):
        entity_E = index[side.other]
        width = int(entity_E.max()) + 1 if len(entity_E) else 1
        key_E = entity_E if rel_E is None else rel_E * width + entity_E
        sorted_E, order_E = torch.sort(key_E, stable=True)
        key_Q, count_Q = torch.unique_consecutive(sorted_E, return_counts=True)
        found.append(
            Questions(
                relation,
                side,
                key_Q % width,
                None if rel_E is None else key_Q // width,
                count_Q,
                index[side][order_E],
                weight_E[order_E],
                counted=not found,
            )
        )
    return found
