"""Sorts the ids of a shard in several passes, if they do not fit the memory at once.

Slots of hashes, however fine, cannot separate ids that share a hash. A pass is a range of the sort key (hash,
raw id); each pass reads the shard's ids once more.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.strings import hashing
from etl.strings.table import distinct

MIN_PASS_BYTES = 1 << 20
_SAMPLED = 1000  # one id in 1000 is sampled to choose the ranges


class Key(NamedTuple):
    """Sort key of an id."""

    hash: int
    raw_id: str


class KeyRange(NamedTuple):
    """Range of keys of one pass: [first, stop)."""

    first: Key | None = None
    stop: Key | None = None

    @property
    def is_all(self) -> bool:
        """Whether the range holds every id."""
        return self.first is None and self.stop is None

    def holds(self, ids: pa.Array, seed: int) -> npt.NDArray[np.bool_]:
        """Return a mask [N] of the ids in the range."""
        hashes = hashing.hash_strings(ids, seed)
        inside = np.ones(len(ids), bool)
        for key, is_first in ((self.first, True), (self.stop, False)):
            if key is not None:
                same = hashes == np.uint64(key.hash)
                after = same & pc.greater_equal(ids, key.raw_id).to_numpy(zero_copy_only=False)
                after |= hashes > np.uint64(key.hash)
                inside &= after if is_first else ~after
        return inside


def num_passes(cost_bytes: int, budget_bytes: int) -> int:
    """Number of passes over ids that would take `cost_bytes` in one pass."""
    return -(-cost_bytes // max(budget_bytes, MIN_PASS_BYTES))


def key_ranges(blocks: Iterable[pa.Array], count: int, seed: int) -> list[KeyRange]:
    """Cut all ids, given in blocks, into at most `count` ranges with about equal numbers of ids."""
    if count <= 1:
        return [KeyRange()]
    samples = [block.take(pa.array(np.arange(0, len(block), _SAMPLED))) for block in blocks]
    sample, _ = distinct(pa.chunked_array(samples, pa.string()), seed)
    rows = np.unique(len(sample) * np.arange(1, count) // count)[: len(sample)].tolist()
    keys = [Key(int(sample.hashes[row]), sample.strings[row].as_py()) for row in rows]
    return [KeyRange(*ends) for ends in pairwise([None, *keys, None])]
