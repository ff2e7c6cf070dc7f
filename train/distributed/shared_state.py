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
from train.edges.partitions import Location, PartitionKey
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

    def copy_(self, other: "_State") -> None:
        self.values.copy_(other.values)
        self.sums.copy_(other.sums)

    def merge_(self, other: "_State", base_sums: Tensor) -> None:
        """Merge with another copy; both had `base_sums` when they parted."""
        ours, theirs = self.sums - base_sums, other.sums - base_sums
        share = (theirs / (ours + theirs)).nan_to_num_(nan=0.0)  # neither copy has moved: both are equal
        if share.dim() < self.values.dim():
            share = share.unsqueeze(-1)
        self.values.lerp_(other.values, share.expand_as(self.values))
        self.sums.add_(theirs)


class SharedState:
    """A worker's copy of the shared state."""

    def __init__(
        self,
        context: RunContext,
        model: Model,
        adagrad: Adagrad,
        files: PartitionFiles,
        keys: list[PartitionKey],
    ) -> None:
        """`keys` are the types with one partition."""
        self.context = context
        self.model = model
        self.adagrad = adagrad
        self.files = files
        self.tables: dict[PartitionKey, Table] = {}
        self._keys = keys
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
        """Merge the copies of all members of a group at once; the result is that of `publish` one by one."""
        states = list(self._states())
        seen = [state.sums - self._base[name] for name, state in states]
        pulled = [state.values * _widened(each, state) for each, (_, state) in zip(seen, states, strict=True)]
        steps = torch.tensor([self.adagrad.steps[name] - count for name, count in self._base_steps.items()])
        *totals, step_totals = collective.sum([*seen, *pulled, steps], group)
        for number, (name, state) in enumerate(states):
            total = totals[number]
            mean = totals[len(states) + number] / _widened(total, state)
            # where no copy has moved, all are equal
            state.values.copy_(torch.where(_widened(total, state) > 0, mean, state.values))
            state.sums.copy_(self._base[name] + total)
        for name, total in zip(self._base_steps, step_totals.tolist(), strict=True):
            self.adagrad.steps[name] = self._base_steps[name] + int(total)

    def publish(
        self,
        location: Location,
        path: str,
        version: int,
        revision: int,
        iteration: Iteration,
        *,
        writes: bool = True,
    ) -> None:
        """Merge with the state at `location`; with `writes`, write the result as `revision` to `path`."""
        if location.revision != self._base_revision:
            self._merge(location)
        self._revision = revision
        if not writes:
            return
        for key in self._keys:
            self.files.write(key, self.tables[key], version, iteration, path)
        self.context.write_model(self.model, self.adagrad, version, iteration, path)

    def _read(self, location: Location) -> None:
        model, adagrad = self.context.load_model(location.path, location.version)
        for name in self.model.parameters:
            self._parameter(name).copy_(_State(model.parameters[name], adagrad.sums[name]))
        self.adagrad.steps.update(adagrad.steps)
        for key in self._keys:
            self.tables[key] = self.files.load(key, location.version, location.path)

    def _merge(self, location: Location) -> None:
        model, adagrad = self.context.load_model(location.path, location.version)
        for name in self.model.parameters:
            theirs = _State(model.parameters[name], adagrad.sums[name])
            self._parameter(name).merge_(theirs, self._base[name])
            self.adagrad.steps[name] += adagrad.steps[name] - self._base_steps[name]
        for key in self._keys:
            table = self.files.load(key, location.version, location.path)
            own = self.tables[key]
            _State(own.embeddings_ND, own.sums).merge_(
                _State(table.embeddings_ND, table.sums), self._base[key]
            )

    def _parameter(self, name: str) -> _State:
        return _State(self.model.parameters[name], self.adagrad.sums[name])

    def _states(self) -> Iterator[tuple[str | PartitionKey, _State]]:
        for name in self.model.parameters:
            yield name, self._parameter(name)
        for key, table in self.tables.items():
            yield key, _State(table.embeddings_ND, table.sums)


def _widened(sums: Tensor, state: _State) -> Tensor:
    """Sums, or of a row-wise optimizer one for each element."""
    return sums if sums.dim() == state.values.dim() else sums.unsqueeze(-1)
