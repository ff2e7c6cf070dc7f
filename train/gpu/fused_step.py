"""One step on whole tables by kernels, or by their reference: train/step/step.py for most configurations.

    sample edges and candidates from counters
    for each side: query, stage, attend, spread, backward      (reference.py says what each is)
    Adagrad on the rows and relations that were touched

Nothing in a step waits for the host, or depends on it: what changes from step to step is the clock, which
the step itself moves on. So a step can be captured once and replayed.

Shapes: as in reference.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from graphmill.config import Config
from graphmill.vocab import Side
from train.config import TrainConfig
from train.gpu import reference
from train.gpu.reference import Edges, Operator
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.step import StepFigures, Table

SIDES = (Side.LHS, Side.RHS)
MAX_DIMENSION = 1024  # of which a tile of rows and its sums fit in a block's registers
Sides = tuple[Table, Table]  # the tables of lhs and rhs
UpdateRows = Callable[[Tensor, Tensor, Tensor, Tensor, float], None]


class Group(NamedTuple):
    """Edges that one kind of step can train: of one relation, or of any where relations are dynamic."""

    relation: int
    first: int
    size: int


class Shape(NamedTuple):
    """What a step works on: chunks x positives, of one group."""

    group: Group
    chunks: int
    positives: int

    @property
    def num_edges(self) -> int:
        """Edges of a step."""
        return self.chunks * self.positives


def chunk_size(config: Config, num_edges: int) -> int:
    """Edges of a chunk, where there are `num_edges`."""
    size = config.num_batch_negs or config.num_uniform_negs or config.batch_size
    size = max(size, config.section(TrainConfig).chunk_edges)
    return min(size, config.batch_size, num_edges)


def num_in_batch(config: Config, positives: int) -> tuple[int, int]:
    """The first candidate that is a negative, and how many positives of a chunk come again as such.

    As train/edges/negatives.py has it: all of a chunk's edges are each other's negatives, or the first ones.
    """
    if config.num_batch_negs >= positives:
        return 0, 0
    return positives, config.num_batch_negs


def obstacle(config: Config) -> str | None:
    """Why the kernels cannot train this configuration, or None if they can."""
    known = get_args(Operator)
    for relation in config.relations:
        if relation.operator not in known:
            return f"operator {relation.operator!r} of relation {relation.name!r}"
        if relation.all_negs:
            return f"all_negs of relation {relation.name!r}"
    settings = config.section(TrainConfig)
    two_sided = config.dynamic_relations or settings.reciprocal_relations
    refused = {
        f"comparator {config.comparator!r}": config.comparator != "dot",
        "translations of static relations": not two_sided
        and any(relation.operator == "translation" for relation in config.relations),
        "bias": config.bias,
        "train.optimizer adagrad": settings.optimizer == "adagrad",
        "train.negative_power": settings.negative_power > 0,
        "global_emb": config.global_emb,
        "max_norm": config.max_norm is not None,
        f"a dimension above {MAX_DIMENSION}": any(
            config.entity_dimension(name) > MAX_DIMENSION for name in config.entities
        ),
        "disable_lhs_negs or disable_rhs_negs": config.disable_lhs_negs or config.disable_rhs_negs,
        "featurized entities": any(entity.featurized for entity in config.entities.values()),
    }
    return next((what for what, holds in refused.items() if holds), None)


@dataclass(eq=False)
class Related:
    """The parameters of a group's operator on one side: a row a relation, as the kernels read them."""

    keys: tuple[str, ...]
    values_RD: Tensor | None
    sums_RD: Tensor | None

    @classmethod
    def gather(cls, model: Model, adagrad: Adagrad, keys: tuple[str, ...]) -> "Related":
        """Copies of the model's."""
        if not keys:
            return cls(keys, None, None)

        def rows(values: dict[str, Tensor]) -> Tensor:
            joined = torch.cat([values[key] for key in keys], dim=-1)
            return joined.view(-1, joined.shape[-1])

        return cls(keys, rows(model.parameters), rows(adagrad.sums))

    def put_back(self, model: Model, adagrad: Adagrad, num_steps: int) -> None:
        """Into the model."""
        for own, target in ((self.values_RD, model.parameters), (self.sums_RD, adagrad.sums)):
            if own is not None:
                for key, part in zip(self.keys, own.chunk(len(self.keys), dim=-1), strict=True):
                    target[key].copy_(part.reshape(target[key].shape))
        for key in self.keys:
            adagrad.steps[key] += num_steps


class FusedStep:
    """Trains on a group's edges, batch by batch.

    Attributes:
        sums: StepFigures so far, float64 [4].
        clock_2: key and position of the next step's edges, int64.
        lr_scale: multiplies both learning rates.
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
        self.config, self.model, self.adagrad = config, model, adagrad
        self.device = device
        self.dtype = torch.bfloat16 if config.half_precision else dtype
        self.kernels = _kernels(device, exact=settings.exact_products)
        self.update_rows = (
            self.kernels.update_rows if settings.deterministic else self.kernels.update_rows_fast
        )
        self.clock_2 = torch.zeros(2, dtype=torch.int64, device=device)
        self.sums = torch.zeros(len(StepFigures._fields), dtype=torch.float64, device=device)
        self.lr_scale = 1.0

    def related(self, relation: int) -> tuple[Related, Related]:
        """The parameters that make the queries for lhs and for rhs: the same ones, or one for each."""
        gathered = {
            side: Related.gather(self.model, self.adagrad, self.model.operator_keys(relation, side))
            for side in SIDES
        }
        if self.model.two_sided:
            # the query for one side is made of the other's entities, by the other's operator
            return gathered[Side.RHS], gathered[Side.LHS]
        return gathered[Side.RHS], gathered[Side.RHS]

    def __call__(self, edges: Edges, shape: Shape, related: tuple[Related, Related], tables: Sides) -> None:
        """One step at the clock's position; the clock moves on."""
        config, kernels = self.config, self.kernels
        first, again = num_in_batch(self.config, shape.positives)
        num_candidates = shape.positives + again + config.num_uniform_negs
        sample = kernels.sample(
            edges,
            (shape.group.first, shape.group.size),
            self.clock_2,
            (len(tables[0]), len(tables[1])),
            (shape.chunks, shape.positives, again, config.num_uniform_negs),
        )
        # a static relation's parameters are a table of one row
        rel_CP = sample.rel_CP if config.dynamic_relations else torch.zeros_like(sample.rel_CP)
        touched = _Touched(shape, num_candidates, tables)
        pulls = [
            self._side(number, shape, first, sample, rel_CP, related, tables, touched) for number in range(2)
        ]
        touched.update(self.update_rows, sample, config.lr * self.lr_scale)
        self._update_related(related, pulls, rel_CP.flatten())
        self.clock_2[1] += shape.num_edges

    def _side(
        self,
        number: int,
        shape: Shape,
        first: int,
        sample: reference.Sample,
        rel_CP: Tensor,
        related: tuple[Related, Related],
        tables: Sides,
        touched: "_Touched",
    ) -> Tensor | None:
        """Compare the edges with the candidates of one side; the gradients of their relations [C, P, D]."""
        config, kernels = self.config, self.kernels
        adjoint = not self.model.two_sided and number == 1
        others_CP = sample.rows[1 - number][:, : shape.positives]
        other_ND = tables[1 - number].embeddings_ND
        operator = config.relations[shape.group.relation].operator
        made_of = (operator, adjoint, other_ND, others_CP, related[number].values_RD, rel_CP)
        query_CPD = kernels.query(*made_of, self.dtype)
        candidate_CKD = kernels.stage(tables[number].embeddings_ND, sample.rows[number], self.dtype)
        operands = (query_CPD, candidate_CKD, sample.rows[number], first, sample.weight_CP)
        attended = kernels.attend(config.loss_fn, config.margin, *operands)
        kernels.spread(config.loss_fn, config.margin, *operands, attended, touched.candidates(number))
        pull_CPD: Tensor | None
        pull_CPD, cost_CP = kernels.backward(
            *made_of, attended.gradient_CPD, self._regularization(number), touched.positives(1 - number)
        )
        self.sums[0] += attended.loss_CP.sum(dtype=torch.float64)
        self.sums[1] += cost_CP.sum(dtype=torch.float64)
        self.sums[2 + number] += attended.violators_CP.sum(dtype=torch.float64)
        return pull_CPD

    def _regularization(self, number: int) -> tuple[float, float]:
        """Coefficients of N3 on the query's entity and on its relation; as in train/step/step.py."""
        once = self.config.regularization_coef
        if self.model.two_sided:
            return 2 * once, once
        return once, once if number else 0.0

    def _update_related(
        self, related: tuple[Related, Related], pulls: list[Tensor | None], rel_T: Tensor
    ) -> None:
        lr = self.adagrad.lr * self.lr_scale
        first, second = pulls
        if first is None or second is None:  # the operator has no parameters
            return
        shared = related[0] is related[1]
        for own, pull_CPD in (
            ((related[0], first + second),) if shared else zip(related, (first, second), strict=True)
        ):
            self.kernels.update_parameters(own.values_RD, own.sums_RD, rel_T, pull_CPD.flatten(0, 1), lr)


class _Touched:
    """Gradients of all rows that a step touches, written in place by the kernels, and their update."""

    def __init__(self, shape: Shape, num_candidates: int, tables: Sides) -> None:
        self.shape, self.tables = shape, tables
        self.same = tables[0] is tables[1]
        counts = (num_candidates, shape.positives)  # of each side: as candidates, and as queries' entities
        self.sizes = [shape.chunks * count for count in counts]
        self.counts = counts
        dimension = tables[0].embeddings_ND.shape[1]
        like = tables[0].embeddings_ND
        self.gradient_TD = like.new_empty(2 * sum(self.sizes), dimension)

    def candidates(self, number: int) -> Tensor:
        """Where the gradients of a side's candidates go: [C, K, D]."""
        return self._part(number, 0)

    def positives(self, number: int) -> Tensor:
        """Where the gradients of a side's entities go that made queries: [C, P, D]."""
        return self._part(number, 1)

    def update(self, update_rows: UpdateRows, sample: reference.Sample, lr: float) -> None:
        """Adagrad on every touched row."""
        rows_T = torch.cat(
            [
                rows.flatten()
                for side in (0, 1)
                for rows in (sample.rows[side], sample.rows[side][:, : self.shape.positives])
            ]
        )
        half = len(rows_T) // 2
        parts = [slice(0, None)] if self.same else [slice(0, half), slice(half, None)]
        for table, part in zip(self.tables, parts, strict=False):
            update_rows(table.embeddings_ND, table.sums, rows_T[part], self.gradient_TD[part], lr)

    def _part(self, number: int, which: int) -> Tensor:
        start = number * sum(self.sizes) + which * self.sizes[0]
        return self.gradient_TD[start : start + self.sizes[which]].view(
            self.shape.chunks, self.counts[which], -1
        )


def _kernels(device: torch.device, *, exact: bool) -> ModuleType:
    """The kernels on a GPU (or where Triton interprets them), else their reference."""
    if device.type != "cuda":
        return reference
    from train.gpu import kernels

    kernels.set_exact(exact)
    return kernels
