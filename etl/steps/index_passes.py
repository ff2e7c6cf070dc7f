"""The ids of a shard in several passes, where all of them at once are too many for the memory.

Ids that share a hash cannot be told apart by slots of hashes, however fine. A pass is a range of what ids are
ordered by, (hash, raw id); each reads the shard's ids once more.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.strings import hashing
from etl.strings.hashing import Hashes

MIN_PASS_BYTES = 1 << 20
_SAMPLED = 1000  # one id of so many tells where passes begin


class Key(NamedTuple):
    """A place in the order of ids."""

    hash: int
    raw_id: str


class KeyRange(NamedTuple):
    """The ids of one pass."""

    first: Key | None = None
    stop: Key | None = None

    @property
    def is_all(self) -> bool:
        """Whether no id lies outside."""
        return self.first is None and self.stop is None

    def holds(self, ids: pa.Array, seed: int) -> npt.NDArray[np.bool_]:
        """[N] which of the ids lie in the range."""
        hashes = hashing.hash_strings(ids, seed)
        inside = np.ones(len(ids), bool)
        if self.first is not None:
            inside &= _from(self.first, ids, hashes)
        if self.stop is not None:
            inside &= ~_from(self.stop, ids, hashes)
        return inside


def num_passes(cost_bytes: int, budget_bytes: int) -> int:
    """Passes over ids that take `cost_bytes` at once."""
    return -(-cost_bytes // max(budget_bytes, MIN_PASS_BYTES))


def key_ranges(blocks: Iterable[pa.Array], count: int, seed: int) -> list[KeyRange]:
    """Ranges with about as many of the ids each, at most `count` of them; `blocks` are all of the ids."""
    if count <= 1:
        return [KeyRange()]
    sample = pa.concat_arrays([pa.array([], pa.string()), *(_sampled(block) for block in blocks)])
    sample = sample.dictionary_encode().dictionary
    table = pa.table({"hash": hashing.hash_strings(sample, seed), "id": sample})
    order = pc.sort_indices(table, [("hash", "ascending"), ("id", "ascending")]).to_numpy()
    at = order[np.unique(len(order) * np.arange(1, count) // count)] if len(order) else order
    keys = [Key(int(table["hash"][int(row)].as_py()), str(sample[int(row)])) for row in at]
    return [KeyRange(*each) for each in pairwise([None, *keys, None])]


def _sampled(ids: pa.Array) -> pa.Array:
    return ids.take(pa.array(np.arange(0, len(ids), _SAMPLED)))


def _from(key: Key, ids: pa.Array, hashes: Hashes) -> npt.NDArray[np.bool_]:
    after: npt.NDArray[np.bool_] = hashes > np.uint64(key.hash)
    same: npt.NDArray[np.bool_] = hashes == np.uint64(key.hash)
    after |= same & pc.greater_equal(ids, key.raw_id).to_numpy(zero_copy_only=False)
    return after
