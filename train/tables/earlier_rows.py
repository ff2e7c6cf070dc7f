"""Rows that the tables of a run take from an earlier run: they are the first ones, in the order of that run.

They are all rows of the earlier run, unless etl has left out ids that were gone (`etl.forget_after`): the
entity index then says which row an id had (docs/formats/entity_index.md).

Shapes: R rows of a partition in the earlier run, K of them that this run has too.
"""

import numpy as np
import numpy.typing as npt

from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.vocab import Partition

Rows = npt.NDArray[np.int64]


class EarlierRows:
    """Finds the rows of an earlier run that a run has too."""

    def __init__(self, entity_path: str) -> None:
        self._entity_path = entity_path
        try:
            self._num_previous = entity_index.read_manifest(entity_path).num_previous
        except NotFoundError:  # entities that etl has not written
            self._num_previous = None

    def kept(self, entity_type: str, partition: Partition, num_earlier: int, uri: str) -> Rows:
        """Find the rows [K] of a partition, ascending, of `num_earlier` rows in the earlier run's `uri`."""
        counts = (self._num_previous or {}).get(entity_type)
        if counts is None:
            return np.arange(num_earlier)
        if counts[partition] != num_earlier:
            raise FormatError(
                f"{uri}: expected {counts[partition]} rows, as the entities have that {self._entity_path} "
                f"follows (etl.previous_entity_path), found {num_earlier}; set init_path to the checkpoint "
                "of that run, or start without init_path"
            )
        num_ids = entity_counts.read_count(self._entity_path, entity_type, partition)
        place = (self._entity_path, entity_type, partition)
        return entity_index.read_previous_index(*place, num_ids, num_earlier)
