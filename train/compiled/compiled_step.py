"""Training step in compiled code, which gets the addresses of a batch's tensors and moves tables in place.

A call releases the GIL, and has a workspace of its own: threads may step on one table together (Hogwild).
Shapes: as in train/edges/negative_sampling.py.
"""

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from ctypes import c_double, c_int, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config import Config
from graphmill.errors import TrainingError
from graphmill.machine import native
from graphmill.model.built_in import COMPARATORS
from graphmill.model.parameters import global_key
from graphmill.vocab import Side
from train.edges.negative_sampling import Batch, Block, Sampling
from train.model import regularizers
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.step.step import SideTables, Step, StepFigures, Table

SOURCE = native.KERNELS / "step.cpp"
# Result and arguments.
library = native.loader(
    SOURCE,
    {
        "workspace": (c_void_p, []),
        "free": (None, [c_void_p]),
        "bytes_of_real": (c_int, []),
        "has_half": (c_int, []),
        "step": (c_int, [*[c_void_p] * 5, c_int, c_int, c_void_p]),
        "queries": (c_int, [c_void_p] * 6),
        "update": (c_int, [*[c_void_p] * 4, c_int64, c_int64, c_void_p]),
        "move_rows": (c_int, [*[c_void_p] * 3, c_int64, *[c_void_p] * 2]),
    },
    name="training",
    instead="torch does the steps",
)
_OPERATORS = {"none": 0, "diagonal": 1, "translation": 2, "complex_diagonal": 3}
_COMPARATORS = {"dot": 0, "cos": 0, "l2": 1, "squared_l2": 2}
_LOSSES = {"ranking": 0, "logistic": 1, "softmax": 2}


# The structures of graphmill/kernels/interface.h. Array types are made once, since making them is slow.
class _Table(ctypes.Structure):
    _fields_ = (
        ("embeddings", c_void_p),
        ("sums", c_void_p),
        ("element_wise", c_int64),
        ("global_value", c_void_p),
        ("global_sum", c_void_p),
    )


class _Relations(ctypes.Structure):
    _fields_ = (("values", c_void_p * 2), ("sums", c_void_p * 2))


class _Block(ctypes.Structure):
    _fields_ = (
        ("num_chunks", c_int64),
        ("num_positives", c_int64),
        ("rows", c_void_p * 2),
        ("num_candidates", c_int64 * 2),
        ("first_negative", c_int64 * 2),
        ("relations", c_void_p),
        ("weights", c_void_p),
    )


_Tables, _BothRelations, _Blocks = _Table * 2, _Relations * 2, _Block * 2


class _Settings(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("dimension", "op", "comparator", "cosine", "loss", "two_sided")),
        *((name, c_int32) for name in ("half", "same_table")),
        ("unregularized", c_int64),
        *((name, c_double) for name in ("margin", "lr", "relation_lr", "max_norm")),
        *((name, c_double) for name in ("regularization", "entity_regularization")),
    )


class _Figures(ctypes.Structure):
    _fields_ = (("loss", c_double), ("reg", c_double), ("violators", c_int64 * 2))


def obstacle(config: Config) -> str | None:
    """Name the part of this configuration that the compiled step cannot train; None for no such part."""
    for relation in config.relations:
        if relation.operator not in _OPERATORS:
            return f"operator {relation.operator!r} of relation {relation.name!r}"
    if config.comparator not in _COMPARATORS:
        return f"comparator {config.comparator!r}"
    if config.loss_fn not in _LOSSES:
        return f"loss_fn {config.loss_fn!r}"
    if regularizers.is_plug_in(config):
        return f"regularizer {config.regularizer!r}"
    if config.train.relation_prediction:
        return "train.relation_prediction"
    return "bias" if config.bias else None


class Workspace:
    """Buffers of one step at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.address: int | None = library.graphmill_workspace()
        if not self.address:
            raise TrainingError("out of memory for the buffers of a training step")
        weakref.finalize(self, library.graphmill_free, self.address)

    def call(self, function: Callable[..., int], *arguments: Any) -> StepFigures:
        """Call a function of the compiled code, and take over its figures."""
        figures = _Figures()
        _check(function(self.address, *arguments, ctypes.byref(figures)))
        sums = [figures.loss, figures.reg, *figures.violators]
        return StepFigures(*torch.tensor(sums, dtype=torch.float64).unbind())


class Kernel:
    """The compiled code, and what it takes of a run."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad, library: ctypes.CDLL) -> None:
        self.config, self.model, self.adagrad, self.library = config, model, adagrad, library
        self.dtype = torch.float64 if library.graphmill_bytes_of_real() == 8 else torch.float32
        self._half = config.half_precision and bool(library.graphmill_has_half())
        self._frozen = Frozen.of(config)
        self._free: deque[Workspace] = deque()

    def take_workspace(self) -> Workspace:
        """Take a workspace that no other step has until `give_back` gets it."""
        try:
            return self._free.pop()
        except IndexError:
            return Workspace(self.library)

    def give_back(self, workspace: Workspace) -> None:
        """Let other steps take the workspace."""
        self._free.append(workspace)

    def arguments(
        self, relation: int, tables: SideTables, lr_scale: float, **settings: float
    ) -> tuple[Any, ...]:
        """Make the first arguments of a call for a batch of the relation; `settings` replace the run's."""
        return (
            ctypes.byref(self._settings(relation, tables, lr_scale, settings)),
            _Tables(*(self._table(relation, side, tables[side]) for side in Side)),
            _BothRelations(*(self._relations(relation, side) for side in Side)),
        )

    def move_rows(
        self, table: Table, rows_K: Tensor, gradient_KD: Tensor, lr: float, max_norm: float
    ) -> None:
        """Take one Adagrad step on rows, int64, which may repeat: their gradients add up."""
        own = _Tables(_Table(_address(table.embeddings_ND), _address(table.sums), table.sums.dim() == 2))
        settings = _Settings(dimension=gradient_KD.shape[1], lr=lr, max_norm=max_norm)
        given = ctypes.byref(settings), own, len(rows_K), _address(rows_K), _address(gradient_KD)
        workspace = self.take_workspace()
        _check(self.library.graphmill_move_rows(workspace.address, *given))
        self.give_back(workspace)

    def _settings(
        self, relation: int, tables: SideTables, lr_scale: float, more: Mapping[str, float]
    ) -> _Settings:
        config = self.config
        lhs, rhs = tables[Side.LHS], tables[Side.RHS]
        usual = {
            "regularization": config.regularization_coef,
            # With an operator for each side an edge is scored in two ways, each an example of its own.
            "entity_regularization": config.regularization_coef * (2 if self.model.two_sided else 1),
        }
        return _Settings(
            dimension=lhs.embeddings_ND.shape[1],
            op=_OPERATORS[config.relations[relation].operator],
            comparator=_COMPARATORS[config.comparator],
            cosine=COMPARATORS[config.comparator].is_unit,
            loss=_LOSSES[config.loss_fn],
            two_sided=self.model.two_sided,
            half=self._half,
            same_table=lhs is rhs,
            margin=config.margin,
            lr=config.lr * lr_scale,
            relation_lr=self.adagrad.lr * lr_scale,
            max_norm=config.max_norm or 0.0,
            **{**usual, **more},
        )

    def _table(self, relation: int, side: Side, table: Table) -> _Table:
        if table.embeddings_ND.dtype is not self.dtype:
            raise TrainingError(f"the compiled step takes {self.dtype}, the table has others")
        entity_type = self.config.relations[relation].entity_type(side)
        is_frozen, key = entity_type in self._frozen.types, global_key(entity_type)
        value, sums = self.model.parameters.get(key), self.adagrad.sums.get(key)
        return _Table(
            embeddings=_address(table.embeddings_ND),
            sums=None if is_frozen else _address(table.sums),
            element_wise=table.sums.dim() == 2,
            global_value=None if value is None else _address(value),
            global_sum=None if sums is None or is_frozen else _address(sums),
        )

    def _relations(self, relation: int, side: Side) -> _Relations:
        relations = _Relations()
        for number, key in enumerate(self.model.operator_keys(relation, side)):
            relations.values[number] = _address(self.model.parameters[key])
            if key not in self.adagrad.frozen:
                relations.sums[number] = _address(self.adagrad.sums[key])
        return relations


class CompiledStep(Step[Batch]):
    """Trains on one batch of edges after another, with the results of train.step.plain.PlainStep."""

    def __init__(self, config: Config, model: Model, adagrad: Adagrad, library: ctypes.CDLL) -> None:
        super().__init__(config, model, adagrad)
        self.kernel = Kernel(config, model, adagrad, library)
        self.sampling = Sampling.of_training(config)

    def __call__(self, batch: Batch, tables: SideTables, generator: torch.Generator) -> StepFigures:
        """Draw negatives, and move the rows and parameters that the batch touches."""
        keep: list[Tensor] = []  # tensors whose addresses go into the blocks
        drawn = self.sampling.drawing(self.share_of_negatives).blocks(batch, tables, generator)
        blocks = [_block(block, self.kernel.dtype, keep) for block in drawn]
        workspace = self.kernel.take_workspace()
        own = self.kernel.arguments(batch.relation, tables, self.lr_scale)
        given = *own, _Blocks(*blocks), len(blocks), batch.num_steps
        figures = workspace.call(self.kernel.library.graphmill_step, *given)
        self.kernel.give_back(workspace)
        for key in self.model.keys_of(batch.relation):
            if key not in self.adagrad.frozen:
                self.adagrad.steps[key] += batch.num_steps
        return figures


def _check(failed: int) -> None:
    if failed:
        raise TrainingError(
            "out of memory for a batch and its negatives; lower batch_size, num_batch_negs or "
            "num_uniform_negs"
        )


def _block(block: Block, dtype: torch.dtype, keep: list[Tensor]) -> _Block:
    fields = _Block(*block.weight_CP.shape)
    # The edges of a whole graph (train/run/reading.py) come in 32 bits, compiled code reads 64.
    for number, side in enumerate(Side):
        rows_CK = block.rows[side]
        fields.rows[number] = kept(rows_CK.long().contiguous(), keep)
        fields.num_candidates[number] = rows_CK.shape[1]
        fields.first_negative[number] = block.first_negative[side]
    if block.rel_CP is not None:
        fields.relations = kept(block.rel_CP.long().contiguous(), keep)
    fields.weights = kept(block.weight_CP.to(dtype).contiguous(), keep)
    return fields


def kept(tensor: Tensor, keep: list[Tensor]) -> int:
    """Return the address of a tensor, which stays as long as `keep`."""
    keep.append(tensor)
    return tensor.data_ptr()


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise TrainingError("a table is not contiguous in memory; this is a defect of GraphMill")
    return tensor.data_ptr()
