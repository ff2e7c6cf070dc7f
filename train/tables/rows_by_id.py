"""The rows of the raw ids of a partition, found in memory.

Shapes: n ids that are looked up.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.formats import entity_index
from graphmill.formats.murmur import hash_strings

Numbers = npt.NDArray[np.int64]


class Found(NamedTuple):
    """Ids that are in the partition: their rows, and their places among those that were looked up."""

    rows: Numbers
    at: Numbers


class RowsById:
    """The rows of the raw ids of a partition; holds the ids."""

    def __init__(self, entity_path: str, entity_type: str, partition: int, seed: int) -> None:
        self._ids = entity_index.read_part(entity_path, entity_type, partition)
        self._seed = seed
        hashes = hash_strings(self._ids, seed)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, ids: pa.Array) -> Found:
        """Find ids (string [n]); those that the partition lacks are left out."""
        hashes = hash_strings(ids, self._seed)
        place, left = np.searchsorted(self._hashes, hashes), np.arange(len(ids))
        rows = np.full(len(ids), -1, np.int64)
        texts = ids.cast(pa.large_string())
        while len(left):  # more than once only where different ids have one hash
            place, left = _inside(self._hashes, hashes, place, left)
            candidates = self._order[place]
            is_equal = pc.equal(self._ids.take(pa.array(candidates)), texts.take(pa.array(left)))
            is_same = is_equal.to_numpy(zero_copy_only=False).astype(bool)
            rows[left[is_same]] = candidates[is_same]
            place, left = place[~is_same] + 1, left[~is_same]
        at = np.flatnonzero(rows >= 0)
        return Found(rows[at], at)


def _inside(ascending: Any, hashes: Any, place: Numbers, left: Numbers) -> tuple[Numbers, Numbers]:
    """Keep the places whose hash is the wanted one."""
    is_inside = place < len(ascending)
    place, left = place[is_inside], left[is_inside]
    is_right = ascending[place] == hashes[left]
    return place[is_right], left[is_right]
