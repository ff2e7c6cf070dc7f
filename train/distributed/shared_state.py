"""State that all buckets change: relation parameters, global embeddings, types with one partition.

A worker trains a bucket on a copy of its own, and merges the copy with the state that others have published
meanwhile: each number becomes the mean of both, weighted by the squared gradients (Adagrad's sums) that each
copy has seen since they parted. A row that only one worker touched is taken over as it is, and parameters
that all buckets pull the same way are not pulled several times as far. The sums add up.

Shapes: N rows, D dimension, `...` any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmill.formats.pbg_checkpoint import Iteration
from train.distributed.collective import Collective
from train.distributed.messages import ReduceGroup
from train.edges.partitions import Location, PartitionKey, all_keys, is_shared
from train.model.frozen import Frozen
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext


@dataclass(frozen=True)
class _State:
    """Trained numbers, and the sums of their squared gradients."""

    values: Tensor  # [...] or [N, D]
    sums: Tensor  # [...], or [N] of a row-wise optimizer

    @classmethod
    def of(cls, table: Table) -> "_State":
        return cls(table.embeddings_ND, table.sums)

    def merge_(self, other: "_State", base_sums: Tensor) -> None:
        """Merge with another copy; both had `base_sums` when they parted."""
        ours, theirs = self.sums - base_sums, other.sums - base_sums
        share = (theirs / (ours + theirs)).nan_to_num_(nan=0.0)  # neither copy has moved: both are equal
        self.values.lerp_(other.values, self.widened(share).expand_as(self.values))
        self.sums.add_(theirs)

    def widened(self, sums: Tensor) -> Tensor:
        """Sums that multiply `values`: those of a row-wise optimizer get a dimension of one element."""
        return sums if sums.dim() == self.values.dim() else sums.unsqueeze(-1)


class SharedState:
    """A worker's copy of the shared state."""

    def __init__(self, context: RunContext, model: Model, adagrad: Adagrad) -> None:
        self.context, self.model, self.adagrad = context, model, adagrad
        self.files = PartitionFiles(context)
        self._frozen_types = Frozen.of(context.config).types
        self.tables: dict[PartitionKey, Table] = {}  # types with one partition
        self._revision: int | None = None  # of this copy; None once training has changed it
        self._base_revision = 0
        self._base: dict[str | PartitionKey, Tensor] = {}
        self._base_steps: dict[str, int] = {}

    def begin(self, location: Location) -> None:
        """Start a bucket from the state at `location`, which is read unless it is here already."""
        if self._revision != location.revision:
            self._read(location)
        self._revision, self._base_revision = None, location.revision
        self._base = {name: state.sums.clone() for name, state in self._states()}
        self._base_steps = dict(self.adagrad.steps)

    def reduce(self, collective: Collective, group: ReduceGroup) -> None:
        """Merge the copies of all members of a group at once; the result is that of `merge` one by one."""
        states = list(self._states())
        seen = [state.sums - self._base[name] for name, state in states]
        pulled = [state.values * state.widened(each) for each, (_, state) in zip(seen, states, strict=True)]
        steps = torch.tensor([self.adagrad.steps[name] - count for name, count in self._base_steps.items()])
        *totals, step_totals = collective.sum([*seen, *pulled, steps], group)
        for number, (name, state) in enumerate(states):
            total = state.widened(totals[number])
            mean = totals[len(states) + number] / total
            # where no copy has moved, all are equal
            state.values.copy_(torch.where(total > 0, mean, state.values))
            state.sums.copy_(self._base[name] + totals[number])
        for name, total in zip(self._base_steps, step_totals.tolist(), strict=True):
            self.adagrad.steps[name] = self._base_steps[name] + int(total)

    def merge(self, location: Location, revision: int) -> None:
        """Merge with the state at `location`, unless this copy began with it; the result is `revision`."""
        if location.revision != self._base_revision:
            self._merge(location)
        self._revision = revision

    def write(self, path: str, version: int, iteration: Iteration) -> None:
        """Write the state as of `version` to the folder `path`."""
        for key, table in self.tables.items():
            self.files.write(key, table, version, iteration, path)
        self.context.write_model(self.model, self.adagrad, version, iteration, path)

    def _read(self, location: Location) -> None:
        model, adagrad = self.context.load_model(location.path, location.version)
        for name, state in _parameters(self.model, self.adagrad):
            state.values.copy_(model.parameters[name])
            state.sums.copy_(adagrad.sums[name])
        self.adagrad.steps.update(adagrad.steps)
        for key in (key for key in all_keys(self.context.config) if is_shared(self.context.config, key)):
            self.tables[key] = self.files.load(key, location.version, location.path)

    def _merge(self, location: Location) -> None:
        model, adagrad = self.context.load_model(location.path, location.version)
        theirs = dict(_parameters(model, adagrad))
        for name, state in _parameters(self.model, self.adagrad):
            if name not in self.adagrad.frozen:
                state.merge_(theirs[name], self._base[name])
                self.adagrad.steps[name] += adagrad.steps[name] - self._base_steps[name]
        for key, table in self.tables.items():
            if key[0] in self._frozen_types:
                continue
            loaded = self.files.load(key, location.version, location.path)
            _State.of(table).merge_(_State.of(loaded), self._base[key])

    def _states(self) -> Iterator[tuple[str | PartitionKey, _State]]:
        """All that moves."""
        for name, state in _parameters(self.model, self.adagrad):
            if name not in self.adagrad.frozen:
                yield name, state
        for key, table in self.tables.items():
            if key[0] not in self._frozen_types:
                yield key, _State.of(table)


def _parameters(model: Model, adagrad: Adagrad) -> Iterator[tuple[str, _State]]:
    for name, values in model.parameters.items():
        yield name, _State(values, adagrad.sums[name])
