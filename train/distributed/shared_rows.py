"""A worker's copy of rows that all workers share, and of what it has heard last of each row.

Parameters of one width lie together in one table, so that a thousand static relations are no more messages
than one. The steps keep moving the same memory: a parameter becomes a view of some rows.

Shapes: N rows, K rows of a message, D dimension. Sums are [N], or [N, D] of element-wise Adagrad.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.model import Model
from train.distributed.shards import Array, Name, Rows, merged
from train.model.optimizer import Adagrad
from train.step.table import Table

PARAMETERS = ""  # first half of a name, before the width; a type has a longer name
STEPS: Name = ("", -1)  # numbers of steps of the parameters, as sums of rows without values


@dataclass(eq=False)
class SharedRows:
    """Rows that the steps move, and their sums when this copy and the shard's were last equal.

    Attributes:
        in_rounds: the rows change only between two rounds, and then become those of the shards; else both
            copies are merged at any time.
        at_rest: steps keep copies of these rows: they move only between two buckets.
        base: values and sums as the shards have them; without `in_rounds` no values.
    """

    table: Table
    in_rounds: bool
    at_rest: bool = False
    base: Table = field(init=False)

    def __post_init__(self) -> None:
        values = self.table.embeddings_ND
        self.base = Table(values.clone() if self.in_rounds else values[:0], self.table.sums.clone())

    def __len__(self) -> int:
        return len(self.table)

    @property
    def row_bytes(self) -> int:
        """Size of a row with its sums."""
        both = (self.table.embeddings_ND, self.table.sums)
        return sum(each[:1].numel() * each.element_size() for each in both)

    def moved(self, first: int, last: int) -> Array:
        """Those of the rows first..last that have seen a gradient since `base`."""
        differ = self.table.sums[first:last] != self.base.sums[first:last]
        if differ.dim() == 2:
            differ = differ.any(1)
        return differ.nonzero().squeeze(1).cpu().numpy() + first

    def push(self, name: Name, rows: Array) -> Rows:
        """Make the message of some rows."""
        at = _tensor(rows, self.table.sums.device)
        sums = self.table.sums[at]  # before the values: a step in between is pushed again, not lost
        values = self.table.embeddings_ND[at]
        return Rows(name, rows, *(each.cpu().numpy() for each in (values, sums, self.base.sums[at])))

    def pushed(self, message: Rows) -> None:
        """Note that the shard has merged the rows."""
        at, sums = (_tensor(each, self.table.sums.device) for each in (message.rows, message.sums))
        self.base.sums[at] = sums

    def pull(self, rows: Array, values: Array, sums: Array) -> None:
        """Take over rows of the shard, merged with what this copy has seen since."""
        device = self.table.sums.device
        at, *theirs = (_tensor(each, device) for each in (rows, values, sums))
        if self.in_rounds:
            self.base.embeddings_ND[at] = theirs[0]
        else:
            ours = self.table.embeddings_ND[at], self.table.sums[at]
            found = merged(torch, ours, (theirs[0], theirs[1]), self.base.sums[at])
            self.table.embeddings_ND[at], self.table.sums[at] = found
        self.base.sums[at] = theirs[1]

    def reset(self) -> None:
        """Make all rows as they are in `base`: at the beginning of a round."""
        self.table.embeddings_ND.copy_(self.base.embeddings_ND)
        self.table.sums.copy_(self.base.sums)

    def part(self, first: int, last: int, *, is_shard: bool) -> tuple[Array, Array]:
        """Values and sums in arrays of their own; a shard that they become has nothing to hear of them."""
        table = self.base if self.in_rounds else self.table
        sums = table.sums[first:last].cpu().numpy().copy()
        values = table.embeddings_ND[first:last].cpu().numpy().copy()
        if is_shard and not self.in_rounds:
            self.base.sums[first:last] = _tensor(sums, self.base.sums.device)
        return values, sums


def parameter_tables(model: Model, adagrad: Adagrad) -> dict[Name, Table]:
    """Move the parameters that are trained, and their sums, into one table per width."""
    by_width: defaultdict[int, list[str]] = defaultdict(list)
    for key, value in model.parameters.items():
        if key not in adagrad.frozen and value.numel():
            by_width[value.shape[-1] if value.dim() else 1].append(key)
    tables = {}
    for width, keys in by_width.items():
        values, sums = (
            torch.cat([held[key].reshape(-1, width) for key in keys])
            for held in (model.parameters, adagrad.sums)
        )
        begun = 0
        for key in keys:
            shape = model.parameters[key].shape
            rows = slice(begun, begun := begun + shape.numel() // width)
            model.parameters[key] = adagrad.parameters[key] = values[rows].view(shape)
            adagrad.sums[key] = sums[rows].view(shape)
        tables[PARAMETERS, width] = Table(values, sums)
    return tables


def _tensor(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(np.require(array, requirements="W")).to(device)
