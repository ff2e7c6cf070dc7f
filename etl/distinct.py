"""The distinct strings of a column, ordered by (hash, UTF-8 bytes), and each row's place among them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl import hashing
from etl.hashing import Hashes
from etl.string_table import number_strings
from etl.text import text_of


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct strings of a column."""

    strings: pa.Array
    """[D] by (hash, UTF-8 bytes)."""
    hashes: Hashes
    """[D] ascending."""
    code_N: npt.NDArray[np.int32]
    """[N] position of each row's string in `strings`."""


def distinct(column: pa.ChunkedArray, seed: int) -> Distinct:
    """The distinct strings of a column of N strings, none of them null."""
    strings = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    text = text_of(strings)
    hashes = hashing.hash_text(text, seed)
    code_N, first_D = number_strings(text, hashes)
    order = _order(strings, hashes, first_D)
    position_of = np.empty(len(order), np.int32)
    position_of[order] = np.arange(len(order), dtype=np.int32)
    first_D = first_D[order]
    return Distinct(strings.take(pa.array(first_D)), hashes[first_D], position_of[code_N])


def _order(strings: pa.Array, hashes: Hashes, rows_D: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The permutation that sorts the distinct strings at `rows_D` by (hash, UTF-8 bytes)."""
    order, ordered = _sorted(hashes[rows_D])
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    if equal.size:
        # The few that share their hash with a neighbour: by hash still, and then by string.
        shared = np.union1d(equal, equal + 1)
        rows = rows_D[order[shared]].tolist()
        keys = zip(ordered[shared].tolist(), (strings[row].as_py().encode() for row in rows), strict=True)
        order[shared] = [at for _, at in sorted(zip(keys, order[shared].tolist(), strict=True))]
    return order


def _sorted(hashes: Hashes) -> tuple[npt.NDArray[np.int64], Hashes]:
    """The permutation that sorts the hashes, equals in the order of their rows, and the sorted ones."""
    # By the upper half, sixteen bits at a time, which numpy sorts by radix; by the lower half only where
    # upper halves are equal, which are few. That is twice as quick as sorting 64-bit integers.
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    order = order[np.argsort((hashes >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
    ordered = hashes[order]
    torn = np.flatnonzero(ordered[1:] < ordered[:-1])
    if torn.size:
        upper = ordered >> np.uint64(32)
        places = np.flatnonzero(np.isin(upper, upper[torn]))
        rows = order[places]
        order[places] = rows[np.argsort(hashes[rows], kind="stable")]
        ordered = hashes[order]
    return order, ordered
