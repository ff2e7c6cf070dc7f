"""Training step on queries in compiled code.

It has its own operators, and compares with drawn candidates or with all rows of a small table. PyTorch does
the rest, but for the move of the rows.

Shapes: as in train/edges/one_vs_all.py; K touched rows with repetitions.
"""

import ctypes
import math
from ctypes import c_double, c_int64, c_void_p
from functools import partial
from itertools import count

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.model import comparators
from graphmill.model.parameters import global_key
from graphmill.vocab import Side
from train.compiled import compiled_step
from train.compiled.compiled_step import Kernel, kept
from train.edges.one_vs_all import QueryBatch
from train.model.optimizer import Adagrad, Rate
from train.step.queries import Ends, Moved, QueryStep
from train.step.step import SideTables, StepFigures, Table

MOST_ROWS = 1 << 13  # of a table that is compared as a whole; threads of PyTorch share a batch of more


class _Queries(ctypes.Structure):
    """The structure of graphmill/kernels/interface.h."""

    _fields_ = (
        ("side", c_int64),
        *((f"num_{name}", c_int64) for name in ("queries", "answers", "others", "candidates")),
        ("own_start", c_int64),
        ("own_stop", c_int64),
        ("log_own", c_double),
        *((name, c_void_p) for name in ("entities", "relations", "counts", "weights")),
        *((name, c_void_p) for name in ("query_of_answer", "answers", "weight_of_answer")),
        *((name, c_void_p) for name in ("query_of_other", "others")),
        *((name, c_void_p) for name in ("candidates", "log_weights", "mass")),
    )


def most_rows(config: Config) -> int:
    """Count the rows of the largest table that is compared as a whole; 0 if PyTorch does all steps."""
    is_ours = comparators.is_dot(config.comparator, config.bias) and compiled_step.obstacle(config) is None
    return MOST_ROWS if is_ours else 0


class CompiledQueryStep(QueryStep):
    """Trains on one batch of queries after another, with the results of its base class."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad, library: ctypes.CDLL) -> None:
        super().__init__(config, model, adagrad)
        self.kernel = Kernel(config, model, adagrad, library)
        self.most_rows = most_rows(config)

    def moves_all_rows(self, batch: QueryBatch, tables: SideTables) -> bool:
        """Tell whether a batch moves all rows of a table that is too large for compiled code."""
        return super().moves_all_rows(batch, tables) and len(tables[batch.side]) > self.most_rows

    def begin(self, batch: QueryBatch, tables: SideTables, lr_scale: Rate, num_parts: int = 1) -> Ends:
        """Score, loss, gradient; what it returns updates, in `num_parts`."""
        candidate_C, log_weight_C = batch.candidate_C, batch.log_weight_C
        if not self.most_rows or self.moves_all_rows(batch, tables):
            return super().begin(batch, tables, lr_scale, num_parts)
        if candidate_C is None or log_weight_C is None:
            num_rows = len(tables[batch.side])
            candidate_C, log_weight_C = torch.arange(num_rows), torch.zeros(num_rows)
        keep: list[Tensor] = []  # tensors whose addresses go into the queries
        real, coefficient = self.kernel.dtype, self.config.regularization_coef * self._share
        queries, mass_C = _queries(batch, candidate_C, log_weight_C, real, keep)
        arguments = self.kernel.arguments(
            batch.relation,
            tables,
            float(lr_scale),
            regularization=coefficient,
            entity_regularization=coefficient,
            unregularized=int(self.config.train.popularity),
        )
        workspace = self.kernel.take_workspace()
        call = self.kernel.library.graphmill_queries
        figures = workspace.call(call, *arguments, ctypes.byref(queries))
        if batch.mass_C is not None:
            batch.mass_C.add_(mass_C)
        ended = count(1)

        def end(part: int) -> Moved:
            update = self.kernel.library.graphmill_update
            moved = workspace.call(update, *arguments, num_parts, part)
            if next(ended) == num_parts:
                self.kernel.give_back(workspace)
            return (moved, []) if part else (StepFigures(*map(torch.add, figures, moved)), self._moved(batch))

        return [partial(end, part) for part in range(num_parts)]

    def _moved(self, batch: QueryBatch) -> list[str]:
        """List the keys of the parameters that a batch moves."""
        side = batch.side.other if self.model.two_sided else Side.RHS
        keys = list(self.model.operator_keys(batch.relation, side))
        if self.config.global_emb:
            types = map(self.config.relations[batch.relation].entity_type, Side)
            keys += dict.fromkeys(map(global_key, types))
        return [key for key in keys if key not in self.adagrad.frozen]

    def _update_rows(
        self, table: Table, rows_K: Tensor, gradient_KD: Tensor, lr: Rate, max_norm: float | None
    ) -> None:
        """Take the step in one pass over the touched rows."""
        own = rows_K.long(), gradient_KD.to(self.kernel.dtype).contiguous()
        self.kernel.move_rows(table, *own, float(lr), max_norm or 0.0)


def _queries(
    batch: QueryBatch, candidate_C: Tensor, log_weight_C: Tensor, real: torch.dtype, keep: list[Tensor]
) -> tuple[_Queries, Tensor]:
    """Make the structure of a batch, and the mass of its candidates, which a step fills in."""
    query_O, other_O, _ = batch.others or (None, None, None)
    mass_C = torch.empty(len(candidate_C), dtype=real)
    numbers: dict[str, Tensor | None] = {
        "entities": batch.entity_Q,
        "relations": batch.rel_Q,
        "query_of_answer": batch.query_A,
        "answers": batch.answer_A,
        "query_of_other": query_O,
        "others": other_O,
        "candidates": candidate_C,
    }
    reals = {
        "counts": batch.count_Q,
        "weights": batch.weight_Q,
        "weight_of_answer": batch.weight_A,
        "log_weights": log_weight_C,
    }
    columns = {name: column.long() for name, column in numbers.items() if column is not None}
    columns |= {name: column.to(real) for name, column in reals.items()}
    queries = _Queries(
        side=list(Side).index(batch.side),
        num_queries=len(batch.entity_Q),
        num_answers=len(batch.answer_A),
        num_others=0 if other_O is None else len(other_O),
        num_candidates=len(candidate_C),
        own_start=batch.own.start,
        own_stop=batch.own.stop,
        log_own=math.log(batch.own.weight),
        mass=kept(mass_C, keep),
        **{name: kept(column.contiguous(), keep) for name, column in columns.items()},
    )
    return queries, mass_C
