"""The interface of checkpoints of every format.

Rows belong to the partitions of an entity type, in the order of their indices. A format without partitions
numbers the rows of a type: integer id = number of rows in the partitions before + index.

Shapes: N rows of a partition, D dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.checkpoints import states
from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError
from graphmill.model.parameters import global_key, in_order, shapes_by
from graphmill.vocab import Partition

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]

BATCH_BYTES = 8 << 20


def rows_of_batch(dimension: int) -> int:
    """Rows [., D] in a batch of some megabytes."""
    return max(1, BATCH_BYTES // (4 * max(dimension, 1)))


class Rows(NamedTuple):
    """Rows [N, D], of which a function reads those from start to stop, float32."""

    shape: tuple[int, int]
    read: Callable[[int, int], Floats]

    def batches(self, places: range, batch_rows: int | None = None) -> Iterator[Floats]:
        """Read the rows at consecutive places, `batch_rows` (default: some megabytes) at a time."""
        step = batch_rows or rows_of_batch(self.shape[1])
        for start in places[::step]:
            yield self.read(start, min(start + step, places.stop))


@dataclass(frozen=True)
class ModelState:
    """Parameters that belong to no entity: operators of relations, global embeddings."""

    parameters: "dict[str, Tensor]"
    """By PBG v1's state_dict_key: `rhs_operators.0.real`, `global_embs.emb_user`; float32."""
    optimizer_state: dict[str, Any] | None
    """The state_dict() of torch.optim.Adagrad; it numbers parameters in the order of `parameters`."""


@dataclass(frozen=True)
class Iteration:
    """The iteration that a version ends, as PBG counts iterations."""

    num_epochs: int
    epoch_idx: int
    num_edge_paths: int
    edge_path_idx: int
    edge_path: str
    num_edge_chunks: int
    edge_chunk_idx: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Numbers that tell it from all others of a run, for generators of random numbers."""
        return self.epoch_idx, self.edge_path_idx, self.edge_chunk_idx

    @property
    def in_epoch(self) -> tuple[int, int]:
        """Position within its epoch, and the number of iterations of an epoch."""
        index = self.edge_path_idx * self.num_edge_chunks + self.edge_chunk_idx
        return index, self.num_edge_paths * self.num_edge_chunks


class Checkpoint(ABC):
    """One version of a checkpoint, opened for reading.

    Attributes:
        format: name of the format, of an opened checkpoint.
        allow_non_finite: whether to read rows, sums and parameters that are NaN or infinite.
        has_added_globals: whether rows of the format include the global embedding of their type.
    """

    format = ""
    has_added_globals: ClassVar[bool] = False
    allow_non_finite = False

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self.version = version

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, Sequence[int]]:
        """Rows of each partition of each entity type."""

    @property
    @abstractmethod
    def dimensions(self) -> Mapping[str, int]:
        """Dimension of each entity type's embeddings."""

    @abstractmethod
    def open_rows(
        self, entity_type: str, partition: Partition, *, whole: bool = False
    ) -> AbstractContextManager[Rows]:
        """Open the unchecked embeddings of one partition, for reading within the block.

        With `whole`, the caller must read all rows, and the file is compared with its checksum, if any.
        """

    @contextmanager
    def open_whole(self, entity_type: str, partition: Partition) -> Iterator[Rows]:
        """Open the embeddings of one partition; the block must read all rows."""
        with self.open_rows(entity_type, partition, whole=True) as rows:
            yield rows if self.allow_non_finite else _checked(rows, self._place(entity_type, partition))

    def read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        """The Adagrad's state_dict() of one partition, row-wise or element-wise, if there is one.

        Raises:
            FormatError: the sums have another shape than the rows, or a sum is not finite.
        """
        if (state := self._read_optimizer_state(entity_type, partition)) is not None:
            shape = self.counts[entity_type][partition], self.dimensions[entity_type]
            states.table_sums(state, shape, f"{self.uri}: {entity_type}_{partition}")
        if not self.allow_non_finite:
            states.check_finite_sums(state, [None], self._place(entity_type, partition))
        return state

    def read_model(self) -> ModelState | None:
        """Parameters that belong to no entity, if the checkpoint has any.

        Raises:
            FormatError: a parameter or its sums have another shape, or a number is not finite.
        """
        model = self._read_model()
        if model is None:
            return None
        self._check({key: value.numpy() for key, value in model.parameters.items()})
        states.check_sums(model.optimizer_state, model.parameters, self.uri)
        if not self.allow_non_finite:
            states.check_finite_sums(model.optimizer_state, list(model.parameters), self.uri)
        return model

    def read_parameters(self) -> dict[str, Floats] | None:
        """The parameters of `read_model`; of formats that need no torch for them, without torch.

        Raises:
            FormatError: a parameter has another shape than configured, or a number is not finite.
        """
        parameters = self._read_parameters()
        self._check(parameters or {})
        return parameters

    @property
    def model_uri(self) -> str:
        """URI of the model, for messages: its file, or the folder of the checkpoint."""
        return self.uri

    def embeddings_uri(self, entity_type: str, partition: Partition) -> str:
        """URI of one partition's embeddings, for messages: their file, or the folder of the checkpoint."""
        return self.uri

    def global_embedding(self, entity_type: str) -> Floats | None:
        """The vector [D] that the model adds to all embeddings of a type, if there is one."""
        return (self.read_parameters() or {}).get(global_key(entity_type))

    # What subclasses read from their files, before the methods above check it.

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        return None

    def _read_model(self) -> ModelState | None:
        return None

    def _read_parameters(self) -> dict[str, Floats] | None:
        model = self._read_model()
        return {key: value.numpy() for key, value in model.parameters.items()} if model else None

    def _check(self, parameters: Mapping[str, Floats]) -> None:
        shapes = shapes_by(self.config or {}) if parameters else {}
        for key, value in parameters.items():
            where, wanted = f"{self.uri}: parameter {key!r}", shapes.get(key, value.shape)
            if ((-1, *value.shape[1:]) if -1 in wanted else value.shape) != wanted:
                raise FormatError(f"{where}: expected the shape {wanted}, found {value.shape}")
            if not self.allow_non_finite:
                check_finite(value, where)

    @property
    def config(self) -> dict[str, Any] | None:
        """PBG's configuration with the keys of v1, if the checkpoint holds one."""
        return None

    @property
    def iteration(self) -> Iteration | None:
        """The iteration that the version ends, if the checkpoint records it."""
        return None

    @property
    def unread(self) -> list[str]:
        """Names of tensors in the files that this interface does not know."""
        return []

    @property
    def left_out(self) -> list[str]:
        """Content of the files that the reader was told to leave out, a line each."""
        return []

    @property
    def num_partitions(self) -> dict[str, int]:
        """Number of partitions of each entity type."""
        return {entity_type: len(counts) for entity_type, counts in self.counts.items()}

    def _in_order(self, keys: Iterable[str]) -> list[str]:
        """The keys of parameters in the order of the model, in which optimizers number them."""
        types = list((self.config or {}).get("entities", self.num_partitions))
        return in_order(list(keys), types, self.config)

    def _place(self, entity_type: str, partition: Partition) -> str:
        return f"{self.uri}: {entity_type!r}, partition {partition}"

    def partitions(self) -> Iterator[tuple[str, Partition, tuple[int, int]]]:
        """Every partition of every entity type, with its shape (N, D)."""
        for entity_type, counts in self.counts.items():
            for partition, count in enumerate(counts):
                yield entity_type, partition, (count, self.dimensions[entity_type])

    def described_config(self) -> dict[str, Any]:
        """PBG's configuration, or the part of it that the files contain."""
        if self.config is not None:
            return self.config
        entities = {
            name: {"num_partitions": count, "featurized": False, "dimension": self.dimensions[name]}
            for name, count in self.num_partitions.items()
        }
        return {"entities": entities, "dimension": max(self.dimensions.values())}

    def iter_embeddings(
        self, entity_type: str, partition: Partition, batch_rows: int | None = None
    ) -> Iterator[Floats]:
        """The embeddings of one partition in order, float32 [<= batch_rows, D] (default: some megabytes)."""
        with self.open_whole(entity_type, partition) as rows:
            yield from rows.batches(range(rows.shape[0]), batch_rows)

    def read_embeddings(self, entity_type: str, partition: Partition) -> Floats:
        """The embeddings of one partition, float32 [N, D]."""
        with self.open_whole(entity_type, partition) as rows:
            return rows.read(0, rows.shape[0])


class PartitionFilesCheckpoint(Checkpoint):
    """A checkpoint with one file per partition; `_num_partitions` is set by `__init__`."""

    _num_partitions: dict[str, int]

    @cached_property
    def _shapes(self) -> dict[str, list[tuple[int, int]]]:
        return {
            name: [self._shape(name, partition) for partition in range(count)]
            for name, count in self._num_partitions.items()
        }

    def _shape(self, entity_type: str, partition: Partition) -> tuple[int, int]:
        with self.open_rows(entity_type, partition) as rows:
            return rows.shape

    @property
    def num_partitions(self) -> dict[str, int]:
        """Number of partitions, by the configuration or the names of the files."""
        return self._num_partitions

    @property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """Rows of each file."""
        return {name: [count for count, _ in shapes] for name, shapes in self._shapes.items()}

    @cached_property
    def dimensions(self) -> Mapping[str, int]:
        """Dimension of each type, which must be the same in all its files."""
        for entity_type, shapes in self._shapes.items():
            if len({dimension for _, dimension in shapes}) > 1:
                raise FormatError(f"{self.uri}: partitions of {entity_type!r} differ in dimension: {shapes}")
        return {entity_type: shapes[0][1] for entity_type, shapes in self._shapes.items()}


def _checked(rows: Rows, where: str) -> Rows:
    def read(start: int, stop: int) -> Floats:
        piece = rows.read(start, stop)
        check_finite(piece, where, start)
        return piece

    return Rows(rows.shape, read)
