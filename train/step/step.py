"""The interface of a step, which trains on one batch of edges or of queries after another.

    PlainStep       edges, in torch                                         train/step/plain.py
    CompiledStep    edges, in C++                                           train/compiled/compiled_step.py
    QueryStep       queries, in torch, by passes in C++ or as a replay      train/step/queries.py

A `Plan` names the step of each sort of batch. The fused step (train/gpu) takes the edges of a whole bucket.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.vocab import Side
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.step.table import Table

AnyBatch = TypeVar("AnyBatch", contravariant=True)


class StepFigures(NamedTuple):
    """Sums over a batch's edges."""

    loss: Tensor
    reg: Tensor
    violators_lhs: Tensor  # negatives that score above their positive
    violators_rhs: Tensor


class Step(ABC, Generic[AnyBatch]):
    """Trains on a batch: score, loss, gradient, update.

    Attributes:
        lr_scale: multiplies `lr` and `relation_lr`.
    """

    def __init__(self, config: Config, model: Model, adagrad: Adagrad) -> None:
        self.config, self.model, self.adagrad = config, model, adagrad
        self.frozen = Frozen.of(config)
        self.relation_weight = config.train.relation_prediction
        self.lr_scale = 1.0

    @abstractmethod
    def __call__(
        self, batch: AnyBatch, tables: Mapping[Side, Table], generator: torch.Generator
    ) -> StepFigures:
        """Draw what the batch is compared with, and move the rows and parameters that it touches."""

    def begin_bucket(self) -> None:
        """Forget earlier buckets, so that a run that stops and resumes draws the same."""
