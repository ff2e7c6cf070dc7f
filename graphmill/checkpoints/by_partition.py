"""What checkpoints have in common whose files are one a partition."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint


class PartitionFilesCheckpoint(Checkpoint):
    """A checkpoint that knows its partitions by their files; `_num_partitions` is set by its `__init__`."""

    _num_partitions: dict[str, int]

    @cached_property
    def _shapes(self) -> dict[str, list[tuple[int, int]]]:
        shapes: dict[str, list[tuple[int, int]]] = {}
        for entity_type, num_partitions in self._num_partitions.items():
            for partition in range(num_partitions):
                with self.open_rows(entity_type, partition) as rows:
                    shapes.setdefault(entity_type, []).append(rows.shape)
        return shapes

    @property
    def num_partitions(self) -> dict[str, int]:
        """As the configuration or the names of the files say."""
        return self._num_partitions

    @property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """As the files say."""
        return {name: [count for count, _ in shapes] for name, shapes in self._shapes.items()}

    @property
    def dimensions(self) -> Mapping[str, int]:
        """As the files say; the partitions of a type must agree."""
        return states.common_dimensions(self._shapes, self.uri)
