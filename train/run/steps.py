"""Which step trains which batch."""

from collections.abc import Mapping
from typing import Protocol

import torch

from graphmill.config import Config
from graphmill.vocab import Side
from train.edges.grouped import Questions
from train.edges.negatives import Batch
from train.kernel import build
from train.kernel.step import KernelStep, supports
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.grouped_step import GroupedStep
from train.step.step import Step, StepFigures, Table


class BatchStep(Protocol):
    """What trains on one batch of edges after another.

    Attributes:
        lr_scale: multiplies `lr` and `relation_lr`; may be set between batches.
    """

    lr_scale: float

    def __call__(self, batch: Batch, tables: Mapping[Side, Table], generator: torch.Generator) -> StepFigures:
        """Move the rows and parameters that the batch touches."""
        ...


class TrainStep:
    """Trains on whatever `batches.cut_for_training` gives.

    Attributes:
        concurrent: whether several threads may train at the same time, on the same tables.
    """

    def __init__(
        self, edges: BatchStep, bags: BatchStep, questions: GroupedStep, *, concurrent: bool = False
    ) -> None:
        """Steps for edges; for edges whose entities are lists of features; for questions."""
        self.concurrent = concurrent
        self._edges = edges
        self._bags = bags
        self._questions = questions

    def set_lr_scale(self, lr_scale: float) -> None:
        """Multiply both learning rates from now on."""
        self._edges.lr_scale = self._bags.lr_scale = self._questions.lr_scale = lr_scale

    def __call__(
        self, batch: Batch | Questions, tables: Mapping[Side, Table], generator: torch.Generator
    ) -> StepFigures:
        """Move the rows and parameters that the batch touches."""
        if isinstance(batch, Questions):
            return self._questions(batch, tables)
        return (self._bags if batch.bags else self._edges)(batch, tables, generator)


def make_step(config: Config, model: Model, adagrad: Adagrad) -> TrainStep:
    """The step that suits the configuration: the compiled one for edges, where it can do what is asked."""
    plain = Step(config, model, adagrad)
    questions = GroupedStep(config, model, adagrad)
    library = build.library() if supports(config) else None
    if library is None:
        return TrainStep(plain, plain, questions)
    # the others use all cores for one batch
    alone = any(entity.featurized for entity in config.entities.values()) or (
        config.loss_fn == "softmax" and any(relation.all_negs for relation in config.relations)
    )
    edges = KernelStep(config, model, adagrad, library)
    return TrainStep(edges, plain, questions, concurrent=not alone)
