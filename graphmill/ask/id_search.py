"""Search for raw ids among many others, which come in batches: by sorted hashes, then by comparison.

Shapes: Q ids that are held, N ids of a batch.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.formats.murmur import hash_strings

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_SEED = 0


class IdSearch:
    """Ids (string [Q]), some of which may be the same; 16 bytes each beside the ids.

    The time of a batch grows with its ids and with the held ids between its least and its greatest hash. It
    is shortest where hashes ascend, as in a partition that the stage etl has written at once.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._ids = ids
        self._hash_Q, self._order_Q = _ascending(hash_strings(ids, _SEED))

    def __len__(self) -> int:
        return len(self._ids)

    def among(self, batch: pa.Array) -> tuple[Numbers, Numbers]:
        """Find held ids in a batch (string [N]): their places among those held; their rows, ascending."""
        hash_N, order_N = _ascending(hash_strings(batch, _SEED))
        start = np.searchsorted(self._hash_Q, hash_N[:1]).sum()
        stop = np.searchsorted(self._hash_Q, hash_N[-1:], side="right").sum()
        hash_Q = self._hash_Q[start:stop]
        if len(hash_Q) < len(hash_N):
            at_Q, at_N = _equal(hash_Q, hash_N)
        else:
            at_N, at_Q = _equal(hash_N, hash_Q)
        places, rows = self._order_Q[start + at_Q], order_N[at_N]
        is_same = pc.equal(self._ids.take(pa.array(places)), batch.take(pa.array(rows)))
        same = np.flatnonzero(is_same)
        same = same[np.argsort(rows[same], kind="stable")]
        return places[same], rows[same]


def _ascending(hashes: Hashes) -> tuple[Hashes, Numbers]:
    """Sort hashes; where they were before comes with them."""
    if (hashes[1:] >= hashes[:-1]).all():
        return hashes, np.arange(len(hashes))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def _equal(few: Hashes, many: Hashes) -> tuple[Numbers, Numbers]:
    """Places of all pairs of equal values of two ascending arrays."""
    if not len(many):
        return np.arange(0), np.arange(0)
    first = np.searchsorted(many, few)
    has_any = np.flatnonzero(many[np.minimum(first, len(many) - 1)] == few)
    first = first[has_any]
    num = np.searchsorted(many, few[has_any], side="right") - first
    pairs = np.arange(num.sum())
    return np.repeat(has_any, num), pairs + np.repeat(first - np.cumsum(num) + num, num)
