"""The step that trains a batch, of whatever kind the batch is."""

from collections.abc import Mapping

import torch

from graphmill.config import Config
from graphmill.vocab import Side
from train.compiled.compiled_step import CompiledStep, library
from train.edges.negative_sampling import Batch
from train.edges.one_vs_all import QueryBatch
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.plan.plan import Engine
from train.step.grouped import GroupedStep
from train.step.plain import PlainStep, StepFigures
from train.step.table import Table


class BatchStep:
    """Trains on the batches of `batches.cut_for_training`.

    Edges take the compiled step or the plain one, edges with features the plain step, queries the grouped
    step.
    """

    def __init__(self, config: Config, model: Model, adagrad: Adagrad, engine: Engine) -> None:
        self.plain = PlainStep(config, model, adagrad)
        self.grouped = GroupedStep(config, model, adagrad)
        self.edges: PlainStep | CompiledStep = self.plain
        if engine == "compiled" and (compiled := library()) is not None:
            self.edges = CompiledStep(config, model, adagrad, compiled)

    def set_lr_scale(self, lr_scale: float) -> None:
        """Multiply both learning rates from now on."""
        self.edges.lr_scale = self.plain.lr_scale = self.grouped.lr_scale = lr_scale

    def __call__(
        self, batch: Batch | QueryBatch, tables: Mapping[Side, Table], generator: torch.Generator
    ) -> StepFigures:
        """Move the rows and parameters that the batch touches."""
        if isinstance(batch, QueryBatch):
            return self.grouped(batch, tables)
        return (self.plain if batch.bags else self.edges)(batch, tables, generator)
