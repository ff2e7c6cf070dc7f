"""Search for duplicates among many raw ids, with 8 bytes of memory per id.

Equal ids have equal hashes. A second pass compares the ids whose hashes come twice.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.strings import native
from graphmill.machine.native import address
from graphmill.sorted_arrays import contains, distinct

Hashes = npt.NDArray[np.uint64]


def hashes_of(ids: pa.Array) -> Hashes:
    """Hash ids, string or int64 [n]; the hash of an integer is the integer."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.cast(pa.int64()).to_numpy(zero_copy_only=False)).view(np.uint64)
    library = native.library()
    if library is None:
        each = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ids.to_pylist())
        return np.frombuffer(b"".join(each), np.uint64)
    _, offsets_buffer, chars_buffer = ids.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[ids.offset :]
    chars = np.frombuffer(chars_buffer or b"", np.uint8)
    hashes = np.empty(len(ids), np.uint64)
    library.graphmill_hash(address(chars), address(offsets), len(ids), address(hashes))
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
