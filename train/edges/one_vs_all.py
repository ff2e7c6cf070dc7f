"""1-vs-all training: a comparison of edges with all entities, grouped by query.

An edge has two queries: the rhs of (lhs, relation), and the lhs of (relation, rhs). With all_negs and
softmax, the edges of one query, its answers, share the scores of all entities:

    loss = sum over queries q and their answers a of  weight[a] (log Z(q) - score(q, a))
    Z(q) = sum over all entities x of exp score(q, x)

The sum equals that of the edges' own losses; FB15k-237 has 149,689 queries instead of 544,230.

With `train.candidates`, Z(q) is estimated by the answers of q and by entities that are drawn for the batch
and stand for all others, but for the queries that need no estimate (train/edges/candidates.py).

A delta trains some edges (train/step/delta.py). The other answers of their queries, which it does not train
now, are no wrong answers: Z(q) leaves them out. In a visit of two blocks of partitions, entities of the block
of q count less in Z(q) (train/edges/own_rows.py).

Shapes: E edges, Q queries, A answers and O other known answers, in the order of their queries, C drawn
candidates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmill.config import Config, PbgConfig
from graphmill.vocab import Side
from train.edges.negative_sampling import sides_with_negatives
from train.edges.own_rows import EQUAL, OwnRows
from train.model import regularizers
from train.model.optimizer import add_rows

_SPAN_BATCHES = 64  # that are made at once


def sorts_of(config: Config) -> list[Literal["edges", "features", "queries"]]:
    """List the sort of each relation's batches."""
    has_closed_form = config.loss_fn == "softmax" and not regularizers.is_plug_in(config)
    featurized = {name for name, entity in config.entities.items() if entity.featurized}
    return [
        "queries"
        if relation.all_negs and has_closed_form
        else "edges"
        if featurized.isdisjoint((relation.lhs, relation.rhs))
        else "features"
        for relation in config.relations
    ]


def has_queries(config: Config) -> bool:
    """Tell whether the loss of some relation's edges is one of their queries."""
    return "queries" in sorts_of(config)


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """Queries for one side of edges, of one relation; of any relation where relations are dynamic.

    An answer without weight adds nothing, nor does a query without answers: they may fill up a batch.
    """

    relation: int
    side: Side  # side of the answers
    num_edges: float  # an edge has a query on each side, and counts half on each; one side counts whole
    entity_Q: Tensor  # rows of the partition on the other side
    rel_Q: Tensor | None  # with dynamic relations
    count_Q: Tensor  # number of answers; a float, like all counts here
    weight_Q: Tensor  # sum of the answers' weights
    query_A: Tensor  # position of the query in the batch
    answer_A: Tensor  # rows of the partition on `side`
    weight_A: Tensor  # weight of the edge times that of its relation
    candidate_C: Tensor | None = None  # drawn rows, ascending, each at most twice; None: all rows
    log_weight_C: Tensor | None = None  # logarithm of the number of rows that each stands for
    mass_C: Tensor | None = None  # zeros, to which a step adds the candidate's share of the softmax
    takes_sample: bool = True  # of candidates, if there is one
    own: OwnRows = EQUAL  # of the queries' own block: they weigh less in Z
    other_query_O: Tensor | None = None  # position of the query of a known answer that is not trained
    other_answer_O: Tensor | None = None  # its row
    other_mask_O: Tensor | None = None  # 1, or 0 where it fills up a batch

    @property
    def others(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Query, row and mask of known answers that are not trained."""
        if self.other_query_O is None or self.other_answer_O is None or self.other_mask_O is None:
            return None
        return self.other_query_O, self.other_answer_O, self.other_mask_O

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def part(self, queries: slice) -> "QueryBatch":
        """Take some of the queries; the answers of others stay, without weight."""
        entity_Q, query_A = self.entity_Q[queries], self.query_A - queries.start
        is_own_A = (query_A >= 0) & (query_A < len(entity_Q))
        others = {}
        if self.others is not None:
            query_O, _, mask_O = self.others
            query_O = query_O - queries.start
            is_own_O = (query_O >= 0) & (query_O < len(entity_Q))
            others["other_query_O"] = query_O.clamp(0, len(entity_Q) - 1)
            others["other_mask_O"] = mask_O * is_own_O
        return replace(
            self,
            **others,
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
    share: float  # of an edge that counts on this side
    other_count_Q: Tensor | None = None  # known answers of each query that are not trained
    other_answer_O: Tensor | None = None

    def with_known(self, index: Mapping[Side, Tensor], rel_E: Tensor) -> "QueryGroup":
        """Add the answers of these queries among known edges of any relation, but for those they have."""
        entity_E, answer_E = index[self.side.other], index[self.side]
        if self.rel_Q is None:
            own = torch.nonzero(rel_E == self.relation)[:, 0]
            entity_E, answer_E, rel_E = entity_E[own], answer_E[own], rel_E[own]
        if not len(entity_E) or not len(self.entity_Q):
            return self
        width = int(max(entity_E.max(), self.entity_Q.max())) + 1
        key_E = entity_E if self.rel_Q is None else rel_E * width + entity_E
        key_Q = self.entity_Q if self.rel_Q is None else self.rel_Q * width + self.entity_Q  # ascending
        query_E = torch.searchsorted(key_Q, key_E).clamp_max_(len(key_Q) - 1)
        num_rows = int(max(answer_E.max(), self.answer_A.max())) + 1
        query_A = torch.repeat_interleave(self.count_Q, output_size=len(self.answer_A))
        has_E = torch.isin(query_E * num_rows + answer_E, query_A * num_rows + self.answer_A)
        edge_O = torch.nonzero((key_Q[query_E] == key_E) & ~has_E)[:, 0]
        query_O, order_O = torch.sort(query_E[edge_O], stable=True)
        counts_Q = torch.bincount(query_O, minlength=len(key_Q))
        return replace(self, other_count_Q=counts_Q, other_answer_O=answer_E[edge_O[order_O]])

    def sum_weights(self) -> Tensor:
        """Sum up the weights of each query's answers: [Q]."""
        query_A = torch.repeat_interleave(self.count_Q, output_size=len(self.weight_A))
        return add_rows(self.weight_A.new_zeros(len(self.count_Q)), query_A, self.weight_A)

    def cut(
        self, chosen_Q: Tensor, size: int, generator: torch.Generator, **compared: Any
    ) -> Iterator[QueryBatch]:
        """Cut queries, by their numbers, in random order into batches of at most `size`.

        `compared` are attributes of all batches: what they are compared with.

        The host reads the bounds of all batches here, so that no step waits for a device. Batches are made
        some at a time, when they are asked for: all of them would take several times the memory of the edges.
        """
        order_Q = chosen_Q[torch.randperm(len(chosen_Q), generator=generator).to(chosen_Q.device)]
        answers = _Lists.of(self.count_Q, order_Q, size)
        others = None if self.other_count_Q is None else _Lists.of(self.other_count_Q, order_Q, size)
        lists = size, answers, others
        spans = range(0, len(answers.sizes), _SPAN_BATCHES)
        return chain.from_iterable(self._cut(order_Q, first, *lists, compared) for first in spans)

    def _cut(
        self,
        order_Q: Tensor,
        first: int,
        size: int,
        answers: "_Lists",
        others: "_Lists | None",
        compared: Mapping[str, Any],
    ) -> Iterator[QueryBatch]:
        span = slice(first, first + _SPAN_BATCHES)
        own_Q = order_Q[first * size : (first + _SPAN_BATCHES) * size]
        query_A, order_A = answers.entries(own_Q, span)
        answer_A, weight_A = self.answer_A[order_A], self.weight_A[order_A]
        queries = {
            "entity_Q": self.entity_Q[own_Q],
            "rel_Q": None if self.rel_Q is None else self.rel_Q[own_Q],
            "count_Q": self.count_Q[own_Q].to(weight_A),
            "weight_Q": add_rows(weight_A.new_zeros(len(own_Q)), query_A, weight_A),
        }
        columns = {"query_A": query_A % size, "answer_A": answer_A, "weight_A": weight_A}
        sizes_Q = [min(size, len(own_Q) - start) for start in range(0, len(own_Q), size)]
        parts_A, more = _slices(answers.sizes[span]), self._others(own_Q, size, span, others)
        for of_Q, of_A, known in zip(_slices(sizes_Q), parts_A, more, strict=True):
            yield QueryBatch(
                self.relation,
                self.side,
                self.share * (of_A.stop - of_A.start),
                **_sliced(queries, of_Q),
                **_sliced(columns, of_A),
                **compared,
                **known,
            )

    def _others(self, own_Q: Tensor, size: int, span: slice, lists: "_Lists | None") -> list[dict[str, Any]]:
        if lists is None or self.other_answer_O is None:
            return [{}] * -(-len(own_Q) // size)
        query_O, order_O = lists.entries(own_Q, span)
        columns = {
            "other_query_O": query_O % size,
            "other_answer_O": self.other_answer_O[order_O],
            "other_mask_O": torch.ones(len(query_O), device=query_O.device),
        }
        return [_sliced(columns, of_O) for of_O in _slices(lists.sizes[span])]


@dataclass(frozen=True, eq=False)
class _Lists:
    """Lists of all queries of a group, one after the other."""

    count_Q: Tensor
    first_Q: Tensor
    sizes: list[int]  # entries of the queries of each batch

    @classmethod
    def of(cls, count_Q: Tensor, order_Q: Tensor, size: int) -> "_Lists":
        """Lists of these lengths, in batches of `size` queries of `order_Q`."""
        num_missing = -len(order_Q) % size
        sizes = F.pad(count_Q[order_Q], (0, num_missing)).view(-1, size).sum(1).tolist()
        return cls(count_Q, count_Q.cumsum(0) - count_Q, sizes)

    def entries(self, own_Q: Tensor, span: slice) -> tuple[Tensor, Tensor]:
        """Find the entries of the queries `own_Q` of a span: positions of their queries, and their places."""
        count_Q = self.count_Q[own_Q]
        query_A = torch.repeat_interleave(count_Q, output_size=sum(self.sizes[span]))
        shift_Q = self.first_Q[own_Q] - (count_Q.cumsum(0) - count_Q)
        return query_A, torch.arange(len(query_A), device=query_A.device) + shift_Q[query_A]


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
    sides = sides_with_negatives(config)
    for side in sides:
        entity_E = index[side.other]
        width = int(entity_E.max()) + 1 if len(entity_E) else 1
        key_E = entity_E if rel_E is None else rel_E * width + entity_E
        sorted_E, order_E = torch.sort(key_E, stable=True)
        key_Q, count_Q = torch.unique_consecutive(sorted_E, return_counts=True)
        queries = key_Q % width, None if rel_E is None else key_Q // width, count_Q
        answers = index[side][order_E], weight_E[order_E]
        groups.append(QueryGroup(relation, side, *queries, *answers, share=1 / len(sides)))
    return groups
