"""Step on whole tables by the kernels or their reference, with the results of train/step/plain.py.

    sample edges and candidates from counters
    for each side: query, stage, query_gradients, candidate_gradients, backward      (see reference.py)
    Adagrad on the touched rows and relations

A step never waits for the host. All that differs between the steps of a shape is on the device: the clock and
the learning rates. So a step can be captured once and replayed, in other buckets and epochs too.
The updates of relations run on a branch beside those of entities.

Shapes: as in reference.py.
"""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from train.config import TrainConfig
from train.edges.negative_sampling import in_batch_negatives
from train.gpu import reference
from train.gpu.capture import Branch
from train.gpu.operator_rows import OperatorRows, Operators
from train.gpu.reference import Clock, Comparison, Edges, Sample, Source
from train.model.frozen import Frozen
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.plain import StepFigures
from train.step.table import Table

Sides = tuple[Table, Table]  # the tables of lhs and rhs


class Group(NamedTuple):
    """Edges that one kind of step can train: of one static relation, or of all dynamic relations."""

    relation: int
    first: int
    size: int


class Shape(NamedTuple):
    """The size of a step: chunks x positives, of one relation."""

    relation: int  # or another with the same operator, types and freezing
    chunks: int
    positives: int

    @property
    def num_edges(self) -> int:
        """Edges of a step."""
        return self.chunks * self.positives


class FusedStep:
    """Trains on a group's edges, batch by batch.

    Attributes:
        sums: StepFigures so far, float64 [4].
        clock_F: Clock of the next step.
        operators: the parameters of relations; to be loaded before steps, and written back after them.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        adagrad: Adagrad,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Products take bfloat16 operands with half_precision, else `dtype`, that of the tables."""
        settings = config.section(TrainConfig)
        self.config, self.model, self.adagrad, self.device = config, model, adagrad, device
        self.dtype = torch.bfloat16 if config.half_precision else dtype
        self.exact = settings.exact_products
        self.kernels = kernels = _kernels_of(device)
        self.update_rows = kernels.update_rows if settings.deterministic else kernels.update_rows_fast
        self.clock_F = torch.zeros(len(Clock._fields), dtype=torch.int64, device=device)
        self.operators = Operators(config, model, adagrad)
        self.branch = Branch(device)
        self.sums = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=device)
        self.frozen = Frozen.of(config)
        self._lr, self._relation_lr = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        self.set_lr_scale(1.0)

    def set_lr_scale(self, lr_scale: float) -> None:
        """Multiply both learning rates from now on, also of captured steps."""
        self._lr.fill_(self.config.lr * lr_scale)
        self._relation_lr.fill_(self.adagrad.lr * lr_scale)

    def __call__(self, edges: Edges, shape: Shape, tables: Sides) -> None:
        """Take one step at the clock's position."""
        first, again = in_batch_negatives(self.config.num_batch_negs, shape.positives)
        drawn = self.config.num_uniform_negs
        counts = (shape.chunks, shape.positives, again, drawn)
        sample = self.kernels.sample(edges, self.clock_F, counts)
        parameters = self.operators[shape.relation]
        gradient_TD, parts = _touched_gradients(shape, shape.positives + again + drawn, tables)
        sources = [self._source(side, shape, sample, parameters[side], tables) for side in range(2)]
        relations = [self._side(side, first, sample, sources[side], tables, parts) for side in range(2)]
        with self.branch.forked():
            if shape.relation not in self.frozen.relations:
                self._update_relations(parameters, relations, sample.rel_CP.flatten())
        self._update_touched(shape, sample, tables, gradient_TD)
        self.branch.join()

    def _source(self, side: int, shape: Shape, sample: Sample, own: OperatorRows, tables: Sides) -> Source:
        """Describe the queries for one side: entities of the other side, and their relations."""
        return Source(
            operator=self.config.relations[shape.relation].operator,  # type: ignore[arg-type]
            adjoint=not self.model.two_sided and side == 1,
            table_ND=tables[1 - side].embeddings_ND,
            rows_CP=sample.rows[1 - side][:, : shape.positives],
            parameters_RD=own.values_RD,
            rel_CP=sample.rel_CP,
        )

    def _side(
        self, side: int, first: int, sample: Sample, source: Source, tables: Sides, parts: list[Tensor]
    ) -> Tensor | None:
        """Compute score, loss, gradients of one side; return the gradients of edges' relations [C, P, D]."""
        candidate_gradient_CKD, entity_gradient_CPD = parts[2 * side], parts[2 * (1 - side) + 1]
        comparison = Comparison(
            loss=self.config.loss_fn,  # type: ignore[arg-type]
            margin=self.config.margin,
            query_CPD=self.kernels.query(source, self.dtype),
            candidate_CKD=self.kernels.stage(tables[side].embeddings_ND, sample.rows[side], self.dtype),
            rows_CK=sample.rows[side],
            first=first,
            weight_CP=sample.weight_CP,
            exact=self.exact,
        )
        compared = self.kernels.query_gradients(comparison)
        self.kernels.candidate_gradients(comparison, compared.saved, candidate_gradient_CKD)
        relation_CPD: Tensor | None
        relation_CPD, n3_cost = self.kernels.backward(
            source, compared.gradient_CPD, self._regularization(side), entity_gradient_CPD
        )
        self.sums[0] += compared.loss
        self.sums[1] += n3_cost
        self.sums[2 + side] += compared.violators
        return relation_CPD

    def _regularization(self, side: int) -> tuple[float, float]:
        """Coefficients of N3 on the query's entity and on its relation; as in train/step/plain.py."""
        once = self.config.regularization_coef
        if self.model.two_sided:
            return 2 * once, once
        return once, once if side else 0.0

    def _update_touched(self, shape: Shape, sample: Sample, tables: Sides, gradient_TD: Tensor) -> None:
        """Move every touched row by Adagrad; `gradient_TD` has the order of `_touched_gradients`."""
        rows = [part.flatten() for each in sample.rows for part in (each, each[:, : shape.positives])]
        rows_T = torch.cat(rows)
        half = len(rows_T) // 2
        parts = [slice(0, None)] if tables[0] is tables[1] else [slice(0, half), slice(half, None)]
        frozen = self.frozen.sides(self.config, shape.relation)
        for side, table, part in zip(Side, tables, parts, strict=False):
            if side in frozen:
                continue
            self.update_rows(table.embeddings_ND, table.sums, rows_T[part], gradient_TD[part], self._lr)

    def _update_relations(
        self, parameters: tuple[OperatorRows, OperatorRows], gradients: list[Tensor | None], rel_T: Tensor
    ) -> None:
        first, second = gradients
        if first is None or second is None:  # an operator without parameters
            return
        pairs = [(parameters[0], first), (parameters[1], second)]
        if parameters[0] is parameters[1]:
            pairs = [(parameters[0], first + second)]
        for own, gradient_CPD in pairs:
            gradient_TD = gradient_CPD.flatten(0, 1)
            self.kernels.update_rows(own.values_RD, own.sums_RD, rel_T, gradient_TD, self._relation_lr)


def _touched_gradients(shape: Shape, num_candidates: int, tables: Sides) -> tuple[Tensor, list[Tensor]]:
    """Allocate the gradients of all touched rows [T, D], and views that the kernels write.

    Views, for lhs and then for rhs: candidates [C, K, D], entities of the queries [C, P, D].
    """
    like = tables[0].embeddings_ND
    counts = [num_candidates, shape.positives] * 2
    gradient_TD = like.new_empty(shape.chunks * sum(counts), like.shape[1])
    parts = torch.split(gradient_TD, [shape.chunks * count for count in counts])
    views = [part.view(shape.chunks, count, -1) for part, count in zip(parts, counts, strict=True)]
    return gradient_TD, views


def _kernels_of(device: torch.device) -> ModuleType:
    """Choose the kernels on a GPU, and their reference elsewhere."""
    if device.type != "cuda":
        return reference
    from train.gpu import kernels

    return kernels
