"""Moves of queries (train/step/queries.py) on a GPU, captured as CUDA graphs and replayed.

A graph repeats launches on fixed addresses with fixed shapes. So a batch is copied into a buffer, whose sizes
are powers of two, and filled up with what has no weight. A few graphs serve all batches of a relation and
side. The first move of a shape compiles and allocates, the second is captured. Nothing waits for the host.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from train.edges.one_vs_all import QueryBatch
from train.gpu.capture import Capture, Captured
from train.model.optimizer import Adagrad
from train.step.queries import Move, Moved
from train.step.step import SideTables, StepFigures

MOST_GRAPHS = 1024  # what has not been used for longest goes first


@dataclass(eq=False)
class _Shape:
    """A shape of batches, its buffers, and its move."""

    batch: QueryBatch
    figures_4: Tensor
    moved: list[str]  # keys of the parameters that have moved
    captured: Captured


class Replays:
    """Launches moves, with their results."""

    def __init__(
        self, config: Config, model: Model, adagrad: Adagrad, capture: Capture, device: torch.device
    ) -> None:
        self._batch_size, self._model, self._adagrad = config.batch_size, model, adagrad
        self._capture = capture
        self._lr_scale = torch.ones((), device=device)
        self._last_lr_scale = 1.0
        self._shapes: dict[Any, _Shape] = {}

    def __call__(self, move: Move, batch: QueryBatch, tables: SideTables, lr_scale: float) -> Moved:
        """Launch one move; its figures hold until the next."""
        if lr_scale != self._last_lr_scale:
            self._last_lr_scale = lr_scale
            self._lr_scale.fill_(lr_scale)
        sizes = {name: self._size(name, len(value)) for name, value in batch.tensors().items()}
        key = (
            batch.relation,
            batch.side,
            batch.own,
            *sizes.values(),
            *self._addresses(batch.relation, tables),
        )
        shape = self._shapes.pop(key, None)
        if shape is None:
            figures_4 = batch.weight_A.new_zeros(4, dtype=torch.float64)
            tensors = batch.tensors().items()
            room: dict[str, Any] = {name: value.new_empty(sizes[name]) for name, value in tensors}
            shape = _Shape(replace(batch, **room), figures_4, [], Captured(self._capture))
        _fill(shape.batch, batch)
        shape.captured(partial(self._move, move, shape, tables))
        if batch.mass_C is not None and shape.batch.mass_C is not None:
            batch.mass_C.copy_(shape.batch.mass_C)
        if len(self._shapes) >= MOST_GRAPHS:
            del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape
        return StepFigures(*shape.figures_4), shape.moved

    def _move(self, move: Move, shape: _Shape, tables: SideTables) -> None:
        figures, shape.moved = move(shape.batch, tables, self._lr_scale)
        torch.stack([figure.double() for figure in figures], out=shape.figures_4)

    def _size(self, name: str, size: int) -> int:
        """Round up to a power of two; queries to no more than a full batch."""
        if name.endswith("_C"):  # which are as many each time
            return size
        power = 1 << (size - 1).bit_length() if size else 0
        return min(power, self._batch_size) if name.endswith("_Q") else power

    def _addresses(self, relation: int, tables: SideTables) -> list[int]:
        """List what a graph of the relation refers to beside its buffers."""
        own = [tensor for table in tables.values() for tensor in (table.embeddings_ND, table.sums)]
        for key in self._model.keys_of(relation):
            own += self._model.parameters[key], self._adagrad.sums[key]
        return [number for tensor in own for number in (tensor.data_ptr(), *tensor.shape)]


def _fill(room: QueryBatch, batch: QueryBatch) -> None:
    """Copy a batch, and fill up with its first rows, without weight or count."""
    values = batch.tensors()
    for name, target in room.tensors().items():
        value = values[name]
        target[: len(value)] = value
        if len(value) < len(target):
            target[len(value) :] = 0 if value.is_floating_point() else value[0]
