"""Edges of a bucket: read, checked, some held out, the rest cut in batches.

With static relations a batch has one relation (its operator is applied to whole matrices); with dynamic
ones it has any.

Shapes: E edges of the bucket's chunk, B edges of a batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphmill.config import PbgConfig
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket, Side
from train.negatives import Batch


@dataclass(frozen=True, eq=False)
class EdgeTensors:
    """Edges as tensors; `weight` has the relation's weight in it."""

    lhs: Tensor
    rel: Tensor
    rhs: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.lhs)

    def __getitem__(self, rows: Tensor | slice) -> "EdgeTensors":
        return EdgeTensors(self.lhs[rows], self.rel[rows], self.rhs[rows], self.weight[rows])


def read(
    config: PbgConfig,
    edge_path: str,
    bucket: Bucket,
    rows: tuple[int, int],
    num_rows: Mapping[Side, list[int]],
    num_rel: int,
    device: torch.device,
) -> EdgeTensors:
    """The edges `rows` = (first, past the last) of a bucket.

    `num_rows` counts, for each entry of config.relations, the rows of its type's partition.

    Raises:
        FormatError: the file is not a bucket, or an edge points at what does not exist.
    """
    edges = edge_buckets.read_bucket(edge_path, bucket, *rows)
    uri = edge_buckets.bucket_uri(edge_path, bucket)
    largest = {side: max(num_rows[side]) for side in Side}
    edge_buckets.check_indices(edges, uri, largest[Side.LHS], largest[Side.RHS], num_rel, rows[0])
    if not config.dynamic_relations:
        for side in Side:
            _check_type(config, edges, uri, rows[0], side, num_rows[side])
    lhs, rel, rhs = (torch.from_numpy(getattr(edges, column)) for column in edge_buckets.COLUMNS)
    weight = torch.ones(len(edges)) if edges.weight is None else torch.from_numpy(edges.weight)
    of_relation = torch.tensor([relation.weight for relation in config.relations])
    weight = weight * (of_relation[0] if config.dynamic_relations else of_relation[rel])
    return EdgeTensors(*(each.to(device) for each in (lhs, rel, rhs, weight)))


def _check_type(
    config: PbgConfig, edges: Edges, uri: str, first_row: int, side: Side, num_rows: list[int]
) -> None:
    """Each index is below the count of the type that the edge's own relation has on that side."""
    values = getattr(edges, side)
    beyond = np.flatnonzero(values >= np.asarray(num_rows)[edges.rel])
    if len(beyond):
        row = int(beyond[0])
        relation = config.relations[int(edges.rel[row])]
        raise FormatError(
            f"{uri}: {side}[{first_row + row}] is {values[row]}; relation {relation.name!r} has there the "
            f"type {relation.entity_type(side)!r}, {num_rows[int(edges.rel[row])]} rows here: "
            "the bucket and the counts beside it are not from the same run"
        )


def split(edges: EdgeTensors, fraction: float, generator: torch.Generator) -> tuple[EdgeTensors, EdgeTensors]:
    """Edges to train on, and the fraction that is held out; `generator` alone decides which these are."""
    num_held_out = int(len(edges) * fraction)
    if not num_held_out:
        return edges, edges[:0]
    order_E = torch.randperm(len(edges), generator=generator).to(edges.lhs.device)
    return edges[order_E[num_held_out:]], edges[order_E[:num_held_out]]


def cut(config: PbgConfig, edges: EdgeTensors, generator: torch.Generator) -> Iterator[Batch]:
    """All edges in random order, in batches of at most batch_size."""
    order_E = torch.randperm(len(edges), generator=generator).to(edges.lhs.device)
    if config.dynamic_relations:
        for start in range(0, len(order_E), config.batch_size):
            batch = edges[order_E[start : start + config.batch_size]]
            yield Batch(0, {Side.LHS: batch.lhs, Side.RHS: batch.rhs}, batch.rel, batch.weight)
        return
    yield from _cut_by_relation(config, edges[order_E], generator)


def _cut_by_relation(config: PbgConfig, edges: EdgeTensors, generator: torch.Generator) -> Iterator[Batch]:
    # a stable sort keeps the random order within a relation
    edges = edges[torch.sort(edges.rel, stable=True).indices]
    counts = torch.bincount(edges.rel, minlength=len(config.relations)).tolist()
    pieces: list[tuple[int, int, int]] = []
    start = 0
    for relation, count in enumerate(counts):
        stop = start + count
        pieces += [
            (relation, first, min(first + config.batch_size, stop))
            for first in range(start, stop, config.batch_size)
        ]
        start = stop
    for number in torch.randperm(len(pieces), generator=generator).tolist():
        relation, first, past = pieces[number]
        batch = edges[slice(first, past)]
        yield Batch(relation, {Side.LHS: batch.lhs, Side.RHS: batch.rhs}, None, batch.weight)
