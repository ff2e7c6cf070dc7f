"""The entities of one type, over all partitions: vectors and raw ids by number.

The number of an entity counts through all partitions: rows of the partitions before, plus its row.

Shapes: N rows of a block, Q wanted rows, D dimension.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.id_search import IdSearch
from graphmill.ask.inputs import Inputs
from graphmill.ask.partition import (
    MeasuredPartition,
    check_partitions,
    gather_vectors,
    iter_ids,
    iter_vectors,
    measure_partition,
)
from graphmill.checkpoints import Floats
from graphmill.config import Config

ID_ROWS = 1 << 16
UNKNOWN = -1

Numbers = npt.NDArray[np.int64]
RunTasks = Callable[[Callable[..., MeasuredPartition], list[tuple[Any, ...]]], list[MeasuredPartition]]


def read_tables(
    config: Config, inputs: Inputs, types: Sequence[str], run: RunTasks | None = None
) -> dict[str, "EntityTable"]:
    """Measure all partitions of some types; `run` measures several at a time.

    Raises:
        NotFoundError: a partition is missing.
        FormatError: checkpoint, counts and raw ids do not fit each other, or the configuration.
    """
    num_partitions = {name: config.entities[name].num_partitions for name in types}
    check_partitions(inputs, num_partitions)
    keys = [
        (inputs, name, partition, config.entity_dimension(name))
        for name, num in num_partitions.items()
        for partition in range(num)
    ]
    parts = run(measure_partition, keys) if run else [measure_partition(*key) for key in keys]
    return {
        name: EntityTable(inputs, tuple(part for part in parts if part.entity_type == name)) for name in types
    }


@dataclass(frozen=True)
class EntityTable:
    """Vectors and raw ids of a type; small, because every task receives it."""

    inputs: Inputs
    parts: tuple[MeasuredPartition, ...]

    @property
    def entity_type(self) -> str:
        """The type."""
        return self.parts[0].entity_type

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self.parts[0].dimension

    @cached_property
    def first(self) -> Numbers:
        """Number of the first entity of each partition, and the number of all entities."""
        return np.cumsum([0, *(part.num_rows for part in self.parts)])

    @property
    def num_entities(self) -> int:
        """Entities of the type."""
        return int(self.first[-1])

    def blocks(self, partition: int, rows: int) -> Iterator[tuple[int, Floats]]:
        """Read a partition: the first row and the vectors [N, D] of each block of at most `rows`."""
        first = 0
        for vectors_ND in iter_vectors(self.inputs, self.parts[partition], rows):
            yield first, vectors_ND
            first += len(vectors_ND)

    def gather(self, numbers: Numbers) -> Floats:
        """Read the vectors [Q, D] of some entities, in any order; those of UNKNOWN are zero."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        vectors = np.zeros((len(distinct), self.dimension), np.float32)
        for part, here in self._by_partition(distinct):
            vectors[here] = gather_vectors(self.inputs, part, distinct[here] - self.first[part.partition])
        return vectors[inverse]

    def names(self, numbers: Numbers) -> pa.ChunkedArray:
        """Read the raw ids of some entities, whose numbers ascend."""
        found: list[pa.Array] = []
        for part, here in self._by_partition(numbers):
            first, wanted = int(self.first[part.partition]), numbers[here]
            for ids in iter_ids(self.inputs, part, ID_ROWS):
                start, stop = np.searchsorted(wanted, [first, first + len(ids)])
                found.append(ids.take(pa.array(wanted[start:stop] - first)))
                first += len(ids)
                if stop == len(wanted):
                    break
        return pa.chunked_array(found, pa.string())

    def find(self, ids: pa.Array) -> Numbers:
        """Find the numbers of raw ids (string [Q]); UNKNOWN for an id that the type does not have."""
        numbers = np.full(len(ids), UNKNOWN, np.int64)
        search = IdSearch(ids)
        for part, first in zip(self.parts, self.first.tolist(), strict=False):
            for batch in iter_ids(self.inputs, part, ID_ROWS):
                places, rows = search.among(batch)
                numbers[places] = rows + first
                first += len(batch)
        return numbers

    def _by_partition(self, numbers: Numbers) -> Iterator[tuple[MeasuredPartition, slice]]:
        """The partitions of ascending numbers, each with its range of `numbers`."""
        bounds = np.searchsorted(numbers, self.first).tolist()
        for part, start, stop in zip(self.parts, bounds, bounds[1:], strict=False):
            if start < stop:
                yield part, slice(start, stop)
