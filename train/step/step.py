"""The interface of a step, which trains on one batch of edges or of queries after another, and its tables.

A `Plan` names the step of each sort of batch. The fused step (train/gpu) takes the edges of a whole bucket.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.vocab import Side
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad

AnyBatch = TypeVar("AnyBatch", contravariant=True)


@dataclass(eq=False)
class Table:
    """The embeddings of one partition and the state of their optimizer."""

    embeddings_ND: Tensor
    sums: Tensor  # of squared gradients: [N] with row-wise Adagrad, [N, D] with element-wise

    def __len__(self) -> int:
        return len(self.embeddings_ND)

    def rows(self, rows: slice) -> Self:
        """Some rows of the table, in its memory."""
        return type(self)(self.embeddings_ND[rows], self.sums[rows])

    def copied(self, device: torch.device | None = None) -> Self:
        """The same rows in memory of their own, here or on another device."""
        device = device or self.sums.device
        return type(self)(self.embeddings_ND.to(device, copy=True), self.sums.to(device, copy=True))

    def fill(self, rows: slice, other: "Table") -> None:
        """Copy all rows of another table to some rows of this one."""
        self.embeddings_ND[rows] = other.embeddings_ND
        self.sums[rows] = other.sums

    def like(self, num_rows: int, device: torch.device) -> Self:
        """Make an empty table of `num_rows` such rows."""
        shapes = [(num_rows, *tensor.shape[1:]) for tensor in (self.embeddings_ND, self.sums)]
        embeddings_ND, sums = (torch.empty(shape, device=device) for shape in shapes)
        return type(self)(embeddings_ND, sums)


Tables = Mapping[PartitionKey, Table]
SideTables = Mapping[Side, Table]  # of the edges of a relation


class StepFigures(NamedTuple):
    """Sums over a batch's edges."""

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor  # negatives that score above their positive
    violators_rhs: Tensor


class Step(ABC, Generic[AnyBatch]):
    """Trains on a batch: score, loss, gradient, update."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad) -> None:
        self.config, self.model, self.adagrad = config, model, adagrad
        self.frozen = Frozen.of(config)
        self.relation_weight = config.train.relation_prediction
        self.lr_scale = 1.0  # multiplies `lr` and `relation_lr`
        self.share_of_negatives = 1.0  # that are drawn

    @abstractmethod
    def __call__(self, batch: AnyBatch, tables: SideTables, generator: torch.Generator) -> StepFigures:
        """Draw what the batch is compared with, and move the rows and parameters that it touches."""

    def begin_bucket(self) -> None:
        """Forget earlier buckets, so that a run that stops and resumes draws the same."""


def joined(
    tables: MutableMapping[PartitionKey, Table], keys: Sequence[PartitionKey]
) -> dict[PartitionKey, Table]:
    """Join the partitions of each type to a table under its partition 0; `tables` become parts of these."""
    made = {}
    for name in dict.fromkeys(name for name, _ in keys):
        own = [key for key in keys if key[0] == name]
        first, stop = tables[own[0]], 0
        made[name, 0] = table = first.like(sum(len(tables[key]) for key in own), first.embeddings_ND.device)
        for key in own:  # one by one, to save memory
            rows = slice(stop, stop := stop + len(tables[key]))
            table.fill(rows, tables[key])
            tables[key] = table.rows(rows)
    return made
