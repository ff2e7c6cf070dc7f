"""What all buckets change: relation parameters, global embeddings, types with one partition.

A worker trains a bucket on a copy of its own, and merges it with what others have published meanwhile:
each number becomes the mean of both, weighed by the squared gradients (Adagrad's sums) that each side has
seen since they parted. A row that only one of them touched is taken over as it is, and parameters that all
buckets pull the same way are not pulled several times as far. The sums add up.

Shapes: N rows, D dimension, `...` any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from train.edges.schedule import Key
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.spread.collective import Collective
from train.spread.messages import Together
from train.spread.places import Place
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.start import Start


@dataclass(frozen=True)
class _State:
    """Numbers that training moves, and the sums of their squared gradients."""

    values: Tensor  # [...] or [N, D]
    sums: Tensor  # [...], or [N] of a row-wise optimizer

    def copy_(self, other: "_State") -> None:
        self.values.copy_(other.values)
        self.sums.copy_(other.sums)

    def merge_(self, other: "_State", base_sums: Tensor) -> None:
        """Merge with another copy, from which this one parted when the sums were `base_sums`."""
        ours, theirs = self.sums - base_sums, other.sums - base_sums
        share = (theirs / (ours + theirs)).nan_to_num_(nan=0.0)  # neither has moved: both are the same
        if share.dim() < self.values.dim():
            share = share.unsqueeze(-1)
        self.values.lerp_(other.values, share.expand_as(self.values))
        self.sums.add_(theirs)


class Shared:
    """A worker's copy."""

    def __init__(
        self, start: Start, model: Model, adagrad: Adagrad, files: PartitionFiles, keys: list[Key]
    ) -> None:
        """`keys` are the types with one partition."""
        self.start = start
        self.model = model
        self.adagrad = adagrad
        self.files = files
        self.tables: dict[Key, Table] = {}
        self._keys = keys
        self._revision: int | None = None  # that is here; None where training has changed it
        self._base_revision = 0
        self._base: dict[str | Key, Tensor] = {}
        self._base_steps: dict[str, int] = {}

    def begin(self, place: Place) -> None:
        """Take over what is at `place`, unless it is what is here; a bucket's training starts."""
        if self._revision != place.revision:
            self._read(place)
        self._revision, self._base_revision = None, place.revision
        self._base = {name: state.sums.clone() for name, state in self._states()}
        self._base_steps = dict(self.adagrad.steps)

    def reduce(self, collective: Collective, together: Together) -> None:
        """Merge with the copies of all members of a group at once, as one after the other would be."""
        states = list(self._states())
        seen = [state.sums - self._base[name] for name, state in states]
        pulled = [state.values * _widened(each, state) for each, (_, state) in zip(seen, states, strict=True)]
        steps = torch.tensor([self.adagrad.steps[name] - count for name, count in self._base_steps.items()])
        *totals, step_totals = collective.sum([*seen, *pulled, steps], together)
        for number, (name, state) in enumerate(states):
            total = totals[number]
            mean = totals[len(states) + number] / _widened(total, state)
            # where nobody has moved, all are the same
            state.values.copy_(torch.where(_widened(total, state) > 0, mean, state.values))
            state.sums.copy_(self._base[name] + total)
        for name, total in zip(self._base_steps, step_totals.tolist(), strict=True):
            self.adagrad.steps[name] = self._base_steps[name] + int(total)

    def publish(
        self,
        place: Place,
        path: str,
        version: int,
        revision: int,
        iteration: Iteration,
        *,
        writes: bool = True,
    ) -> None:
        """Merge with what is at `place`; the result, `revision`, goes to `path` if this one `writes`."""
        if place.revision != self._base_revision:
            self._merge(place)
        self._revision = revision
        if not writes:
            return
        for key in self._keys:
            self.files.write(key, self.tables[key], version, iteration, path)
        pbg_checkpoint.write_model(
            path,
            version,
            self.model.state_dict(),
            self.adagrad.state_dict(),
            self.start.config.pbg(),
            iteration,
            self.start.checksums,
        )

    def _read(self, place: Place) -> None:
        model, adagrad = self._read_model(place)
        for name in self.model.parameters:
            self._parameter(name).copy_(_State(model.parameters[name], adagrad.sums[name]))
        self.adagrad.steps.update(adagrad.steps)
        for key in self._keys:
            self.tables[key] = self.files.load(key, place.version, place.path)

    def _merge(self, place: Place) -> None:
        model, adagrad = self._read_model(place)
        for name in self.model.parameters:
            theirs = _State(model.parameters[name], adagrad.sums[name])
            self._parameter(name).merge_(theirs, self._base[name])
            self.adagrad.steps[name] += adagrad.steps[name] - self._base_steps[name]
        for key in self._keys:
            table = self.files.load(key, place.version, place.path)
            own = self.tables[key]
            _State(own.embeddings_ND, own.sums).merge_(
                _State(table.embeddings_ND, table.sums), self._base[key]
            )

    def _read_model(self, place: Place) -> tuple[Model, Adagrad]:
        if not place.version:
            return self.start.load_model()
        uri = pbg_checkpoint.model_uri(place.path, place.version)
        state, optimizer_state, _ = pbg_checkpoint.read_model(place.path, place.version)
        model = Model(self.start.config, self.start.num_dynamic)
        model.load_state(state, uri)
        model.to(self.start.device)
        adagrad = Adagrad(model.parameters, self.adagrad.lr)
        if optimizer_state:
            adagrad.load_state_dict(optimizer_state, uri)
        return model, adagrad

    def _parameter(self, name: str) -> _State:
        return _State(self.model.parameters[name], self.adagrad.sums[name])

    def _states(self) -> Iterator[tuple[str | Key, _State]]:
        for name in self.model.parameters:
            yield name, self._parameter(name)
        for key, table in self.tables.items():
            yield key, _State(table.embeddings_ND, table.sums)


def _widened(sums: Tensor, state: _State) -> Tensor:
    """Sums, or of a row-wise optimizer one for each element."""
    return sums if sums.dim() == state.values.dim() else sums.unsqueeze(-1)
