"""Many raw ids: lookup by number, in tables larger than a processor's caches, and search: for duplicates, and
for ids among others that come in batches.

The search for duplicates takes 8 bytes of memory per id: equal ids have equal hashes, and a second pass
compares the ids whose hashes come twice. Loops are those of gather.cpp, built into the wheel or compiled at
the first use. Without either, pyarrow does the same work more slowly.

Shapes: Q ids that are held, N ids of a batch.
"""

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import c_bool, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.formats.murmur import Hashes, hash_strings
from graphmill.machine import native
from graphmill.machine.native import address
from graphmill.sorted_arrays import contains, distinct, ranges

SOURCE = Path(__file__).with_name("gather.cpp")

# Result and arguments; an argument without another type is a pointer.
library = native.loader(
    SOURCE,
    {
        "locate": (c_int64, [c_void_p, c_bool, c_void_p, c_int64, *[c_void_p] * 3]),
        "hash": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
        "copy": (None, [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    },
    name="remap",
    instead="pyarrow looks the ids up",
)

Numbers = npt.NDArray[np.int64]

_SLACK_BYTES = 32  # copies of short strings include the bytes behind them
_TAKE_ROWS = 1 << 15  # rows that pyarrow gathers at once: they fit in the processor's cache
MAX_BYTES = (1 << 31) - 1 - _SLACK_BYTES  # of an Arrow string array
_SEED = 0  # of the hashes that ids are searched by


class Texts:
    """Strings in one buffer (`chars` uint8, `offsets` int64), and the row of each number.

    `place` [N], uint32 or uint64, has 1 + the row of each number.
    """

    def __init__(self, place: npt.NDArray[Any], offsets: Numbers, chars: npt.NDArray[np.uint8]) -> None:
        self._place, self._offsets, self._chars = place, offsets, chars

    def take(self, numbers: Numbers) -> pa.ChunkedArray:
        """Look up the strings of `numbers` [n]; every number must have a string."""
        numbers, compiled = np.ascontiguousarray(numbers, np.int64), library()
        strings = self._plain(numbers) if compiled is None else self._compiled(compiled, numbers)
        return pa.chunked_array(strings, pa.string())

    def _compiled(self, compiled: ctypes.CDLL, numbers: Numbers) -> Iterator[pa.Array]:
        num = len(numbers)
        starts, ends = np.empty(num, np.int64), np.empty(num, np.int64)
        num_bytes = compiled.graphmill_locate(
            *(address(self._place), self._place.itemsize == 8, address(numbers), num),
            *map(address, (self._offsets, starts, ends)),
        )
        if num_bytes > MAX_BYTES and num > 1:
            yield from self._compiled(compiled, numbers[: num // 2])
            yield from self._compiled(compiled, numbers[num // 2 :])
            return
        copies = pa.allocate_buffer(num_bytes + _SLACK_BYTES)
        offsets = pa.allocate_buffer(4 * (num + 1))
        compiled.graphmill_copy(
            *(address(self._chars), len(self._chars), address(starts), address(ends), num),
            *(copies.address, offsets.address),
        )
        yield pa.StringArray.from_buffers(num, offsets, copies)

    def _plain(self, numbers: Numbers) -> Iterator[pa.Array]:
        strings = pa.LargeStringArray.from_buffers(
            max(len(self._offsets) - 1, 0), pa.py_buffer(self._offsets), pa.py_buffer(self._chars)
        )
        for start in range(0, len(numbers), _TAKE_ROWS):
            rows = np.take(self._place, numbers[start : start + _TAKE_ROWS]) - 1
            yield strings.take(pa.array(rows)).cast(pa.string())


def hashes_of(ids: pa.Array) -> Hashes:
    """Hash ids, strings or integers [n]; the hash of an integer is the integer, or its bits."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)).view(np.uint64)
    compiled = library()
    if compiled is None:
        return hash_strings(ids, _SEED)
    _, offsets_buffer, chars_buffer = ids.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[ids.offset :]
    chars = np.frombuffer(chars_buffer or b"", np.uint8)
    hashes = np.empty(len(ids), np.uint64)
    compiled.graphmill_hash(address(chars), address(offsets), len(ids), address(hashes))
    return hashes


def repeated(hashes: Hashes) -> Hashes:
    """Return the hashes that come more than once, sorted; sorts `hashes` in place."""
    hashes.sort()
    return distinct(hashes[1:][hashes[1:] == hashes[:-1]])


def suspected(ids: pa.Array, suspects: Hashes) -> Iterator[tuple[int, Any]]:
    """Yield the positions of ids with a hash among `suspects`, and these ids."""
    for row in np.flatnonzero(contains(suspects, hashes_of(ids))).tolist():
        yield row, ids[row].as_py()


def first_repeated(batches: Iterable[pa.Array], suspects: Hashes) -> tuple[Any, int, int] | None:
    """Find the first repeated id with a hash among `suspects`, and both its rows; None without any."""
    seen: dict[Any, int] = {}
    first_row = 0
    for ids in batches:
        for row, raw_id in suspected(ids, suspects):
            earlier = seen.setdefault(raw_id, first_row + row)
            if earlier != first_row + row:
                return raw_id, earlier, first_row + row
        first_row += len(ids)
    return None


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
    return np.repeat(has_any, num), ranges(first, num)
