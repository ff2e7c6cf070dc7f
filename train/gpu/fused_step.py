"""Step on whole tables by the kernels or their reference, with the results of train/step/plain.py.

A step never waits for the host. All that differs between the steps of a shape is on the device: the clock and
the learning rates. So a step can be captured once and replayed, in other buckets and epochs too.
Rows are sorted on a branch beside the scores, and relations move on a branch beside entities.

Shapes: as in reference.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.vocab import Side
from train.edges.negative_sampling import in_batch_negatives
from train.edges.own_rows import OwnRows
from train.gpu import reference
from train.gpu.capture import Branch
from train.gpu.reference import (
    Compared,
    KernelClock,
    KernelComparison,
    KernelEdges,
    KernelSample,
    KernelSource,
    Positive,
    Runs,
)
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.step.step import StepFigures, Table

Sides = tuple[Table, Table]  # the tables of lhs and rhs


class NegativeGroup(NamedTuple):
    """Edges that one kind of step can train: of one static relation, or of all, and of one pair of blocks."""

    kind: int  # among all relations and pairs of blocks
    relation: int
    first: int
    size: int
    own_rows: Mapping[Side, OwnRows]


class Shape(NamedTuple):
    """The size of a step: chunks x positives, of one relation."""

    relation: int  # or another with the same operator, types and freezing
    chunks: int
    positives: int

    @property
    def num_edges(self) -> int:
        """Edges of a step."""
        return self.chunks * self.positives


class _Touched(NamedTuple):
    """Rows of one table that a step touches."""

    table: Table
    part: slice  # their sides
    rows_T: Tensor
    runs: Runs | None  # where gradients of a row are summed


class OperatorRows:
    """A copy of operators' parameters in the layout of the kernels, at an address that never changes.

    Tables have one row per relation. Relations of one operator and dimension share them, so that one captured
    step serves all of them.

    Attributes:
        values_SRD, sums_SRD: parameters and their sums, for queries of each side or, of S = 1, of both; None
            for operators without parameters.
    """

    def __init__(self, model: Model, adagrad: Adagrad, relations: Sequence[int]) -> None:
        """Static relations have one row each, dynamic ones all rows."""
        self._model, self._adagrad = model, adagrad
        # The query for one side is made of the other side's entities, by the other side's operator.
        sides = (Side.RHS, Side.LHS) if model.two_sided else (Side.RHS,)
        self._keys = {
            relation: [model.operator_keys(relation, side) for side in sides] for relation in relations
        }
        self.values_SRD: Tensor | None = None
        self.sums_SRD: Tensor | None = None
        last = max(relations)
        if parameters := [model.parameters[key] for key in self._keys[last][0]]:
            num_rows = last + parameters[0].numel() // parameters[0].shape[-1]
            dimension = sum(parameter.shape[-1] for parameter in parameters)
            self.values_SRD = parameters[0].new_zeros(len(sides), num_rows, dimension)
            self.sums_SRD = torch.zeros_like(self.values_SRD)

    def of_queries(self, side: int) -> Tensor | None:
        """Give the parameters for the queries of a side, [R, D]."""
        return None if self.values_SRD is None else self.values_SRD[side % len(self.values_SRD)]

    def rows(self, rel_T: Tensor) -> Tensor:
        """Number rows of all sides in one table: those of the edges' relations, side by side, [S T]."""
        assert self.values_SRD is not None
        num_sides, num_rows, _ = self.values_SRD.shape
        return torch.cat([rel_T + side * num_rows for side in range(num_sides)])

    def load(self, relation: int) -> None:
        """Copy a relation's parameters from the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            own_RD.copy_(parameter_RD)

    def write_back(self, relation: int, num_steps: int) -> None:
        """Copy a relation's parameters into the model."""
        for own_RD, parameter_RD in self._pairs(relation):
            parameter_RD.copy_(own_RD)
        for keys in self._keys[relation]:
            for key in keys:
                if key not in self._adagrad.frozen:
                    self._adagrad.steps[key] += num_steps

    def _pairs(self, relation: int) -> Iterator[tuple[Tensor, Tensor]]:
        targets: list[tuple[Tensor | None, Mapping[str, Tensor]]] = [
            (self.values_SRD, self._model.parameters),
            (self.sums_SRD, self._adagrad.sums),
        ]
        for own_SRD, target in targets:
            if own_SRD is None:
                continue
            for own_RD, keys in zip(own_SRD, self._keys[relation], strict=True):
                for key, part_RD in zip(keys, own_RD.chunk(len(keys), dim=1), strict=True):
                    parameter_RD = target[key].view(-1, part_RD.shape[1])
                    yield part_RD[relation : relation + len(parameter_RD)], parameter_RD


def operator_rows(config: Config, model: Model, adagrad: Adagrad) -> list[OperatorRows]:
    """Make the parameters of all relations: for each relation its rows, which it may share."""
    kinds = [(relation.operator, config.entity_dimension(relation.rhs)) for relation in config.relations]
    rows = {
        kind: OperatorRows(model, adagrad, [n for n, other in enumerate(kinds) if other == kind])
        for kind in set(kinds)
    }
    return [rows[kind] for kind in kinds]


class FusedStep:
    """Trains on a group's edges, batch by batch.

    Attributes:
        sums: StepFigures so far, float64 [4].
        clock_F: Clock of the next step.
        rates_2: its learning rates of entities and of relations, float64.
        operators: the parameters of each relation; to be loaded before steps, and written back after them.
        is_deterministic: whether the gradients of a row are summed, in an order that is always the same.
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
        settings = config.train
        self.config, self.model, self.adagrad, self.device = config, model, adagrad, device
        self.dtype = torch.bfloat16 if config.half_precision else dtype
        self.exact = settings.exact_products
        self.kernels: ModuleType = reference
        if device.type == "cuda":
            from train.gpu import kernels  # Triton comes with torch's builds for CUDA

            self.kernels = kernels
        self.is_deterministic = settings.deterministic
        self.clock_F = torch.zeros(len(KernelClock._fields), dtype=torch.int64, device=device)
        self.operators = operator_rows(config, model, adagrad)
        self.branch = Branch(device)
        self.sums = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=device)
        # StepFigures of loss, cost and violators, each of lhs and of rhs
        figure_of = torch.eye(len(StepFigures._fields), dtype=torch.float64)[:, [0, 0, 1, 1, 2, 3]]
        self._figure_of = figure_of.to(device)
        self.frozen = Frozen.of(config)
        self.rates_2 = torch.tensor([config.lr, adagrad.lr], dtype=torch.float64, device=device)

    def __call__(self, edges: KernelEdges, shape: Shape, tables: Sides) -> None:
        """Take one step at the clock's position."""
        first, again = in_batch_negatives(self.config.num_batch_negs, shape.positives)
        drawn = self.config.num_uniform_negs
        counts = (shape.chunks, shape.positives, again, drawn)
        sample = self.kernels.sample(edges, self.clock_F, counts)
        parameters = self.operators[shape.relation]
        rows_SCK, like = sample.rows_SCK, tables[0].embeddings_ND
        with self.branch.forked():
            touched = self._touched(shape, rows_SCK, tables)
            related: Runs | None = None  # the rows of relations that move, if any do
            if parameters.values_SRD is not None and shape.relation not in self.frozen.relations:
                related = self.kernels.runs(parameters.rows(sample.rel_CP.flatten()))
        gradient_SCKD = like.new_empty(*rows_SCK.shape, like.shape[1])
        related_SCPD = like.new_empty(2, shape.chunks, shape.positives, like.shape[1], dtype=self.dtype)
        sources = [self._source(side, shape, sample, parameters, tables) for side in range(2)]
        staged = [
            self.kernels.stage(table.embeddings_ND, rows_CK, shape.positives, self.dtype)
            for table, rows_CK in zip(tables, rows_SCK, strict=True)
        ]
        # A query for one side is made of the other side's entities.
        queries = [self.kernels.query(source, staged[1 - side]) for side, source in enumerate(sources)]
        compared: list[Compared] = []
        for side, query_CPD in enumerate(queries):
            comparison = KernelComparison(
                loss=self.config.loss_fn,
                margin=self.config.margin,
                query_CPD=query_CPD,
                candidate_CKD=staged[side],
                rows_CK=rows_SCK[side],
                first=first,
                weight_CP=sample.weight_CP,
                exact=self.exact,
            )
            compared.append(self.kernels.query_gradients(comparison))
            # The gradients of negatives are written; those of positives are added by `backward`.
            self.kernels.candidate_gradients(comparison, compared[side].saved, gradient_SCKD[side])
        costs = []
        for side, source in enumerate(sources):
            other = 1 - side
            positive = Positive(queries[other], compared[other].pull_CP, is_negative=not first)
            cost_CP = self.kernels.backward(
                source,
                compared[side].gradient_CPD,
                positive,
                self._regularization(side),
                gradient_SCKD[other],
                related_SCPD[side],
            )
            costs.append(cost_CP)
        self.branch.join()
        with self.branch.forked():
            lhs, rhs = compared
            parts = [lhs.loss_CP, rhs.loss_CP, *costs, lhs.violators_CP, rhs.violators_CP]
            # As a product, which adds in the same order every time.
            self.sums.addmv_(self._figure_of, torch.stack(parts).sum((1, 2), dtype=torch.float64))
            if related is not None:
                self._update_relations(parameters, related, related_SCPD)
        for of_table in touched:
            self._update_touched(of_table, gradient_SCKD)
        self.branch.join()

    def _touched(self, shape: Shape, rows_SCK: Tensor, tables: Sides) -> list[_Touched]:
        parts = [slice(0, 2)] if tables[0] is tables[1] else [slice(0, 1), slice(1, 2)]
        frozen = self.frozen.sides(self.config, shape.relation)
        touched = []
        for side, table, part in zip(Side, tables, parts, strict=False):
            if side not in frozen:
                rows_T = rows_SCK[part].flatten()
                runs = self.kernels.runs(rows_T) if self.is_deterministic else None
                touched.append(_Touched(table, part, rows_T, runs))
        return touched

    def _source(
        self, side: int, shape: Shape, sample: KernelSample, own: OperatorRows, tables: Sides
    ) -> KernelSource:
        """Describe the queries for one side: entities of the other side, and their relations."""
        return KernelSource(
            operator=self.config.relations[shape.relation].operator,
            adjoint=not self.model.two_sided and side == 1,
            table_ND=tables[1 - side].embeddings_ND,
            rows_CP=sample.rows_SCK[1 - side, :, : shape.positives],
            parameters_RD=own.of_queries(side),
            rel_CP=sample.rel_CP,
        )

    def _regularization(self, side: int) -> tuple[float, float]:
        """Coefficients of N3 on the query's entity and on its relation; as in train/step/plain.py."""
        once = self.config.regularization_coef
        if self.model.two_sided:
            return 2 * once, once
        return once, once if side else 0.0

    def _update_touched(self, touched: _Touched, gradient_SCKD: Tensor) -> None:
        table, gradient_TD = touched.table, gradient_SCKD[touched.part].flatten(0, 2)
        arguments = (gradient_TD, self.rates_2[0])
        if touched.runs is not None:
            self.kernels.update_rows(table.embeddings_ND, table.sums, touched.runs, *arguments)
        else:
            self.kernels.update_rows_fast(table.embeddings_ND, table.sums, touched.rows_T, *arguments)

    def _update_relations(self, own: OperatorRows, related: Runs, gradient_SCPD: Tensor) -> None:
        assert own.values_SRD is not None
        assert own.sums_SRD is not None
        gradient_TD = gradient_SCPD.flatten(0, 2)
        if len(own.values_SRD) == 1:  # both sides' gradients are for the same parameters
            gradient_TD = (gradient_SCPD[0] + gradient_SCPD[1]).flatten(0, 1)
        tables = (own.values_SRD.flatten(0, 1), own.sums_SRD.flatten(0, 1))
        self.kernels.update_rows(*tables, related, gradient_TD, self.rates_2[1])
