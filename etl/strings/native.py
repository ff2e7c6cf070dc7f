"""Loops over strings and numbers in C++: strings.cpp, built into the wheel or compiled when first used.

Without either, numpy and pyarrow do the same work, more slowly. The hash that places raw ids need not be
strong: strings that share a hash are ordered by the strings themselves.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.formats import murmur
from graphmill.formats.murmur import Hashes
from graphmill.machine import native
from graphmill.machine.native import address
from graphmill.sorted_arrays import ranges
from graphmill.storage.as_json import Int32, Int64

Value = TypeVar("Value", bound=np.generic)

NOWHERE = -1

MASK = (1 << 64) - 1
"""Bits of the hash that are kept. Tests keep fewer, to get equal hashes."""

SOURCE = Path(__file__).with_name("strings.cpp")

# Types of the result and of the arguments, most of which are pointers.
library = native.loader(
    SOURCE,
    {
        "strings": (c_void_p, [c_uint64, c_uint64, c_void_p]),
        "strings_free": (None, [c_void_p]),
        "strings_number": (c_bool, [c_void_p, c_void_p, c_bool, c_void_p, c_int64, c_void_p, c_void_p]),
        "strings_count": (None, [c_void_p] * 3),
        "strings_order": (c_bool, [c_void_p, c_int32, c_int32, *[c_void_p] * 4]),
        "hash": (None, [c_void_p, c_bool, c_void_p, c_int64, c_uint64, c_void_p]),
        "take_4": (None, [c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
        "take_8": (None, [c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
        "count": (None, [c_void_p, c_int64, c_void_p]),
        "group": (None, [c_void_p, c_int32, c_void_p, c_int64, c_void_p, c_void_p]),
    },
    name="etl",
    instead="numpy and pyarrow do its part",
)


def text_arguments(strings: pa.Array) -> tuple[int, bool, int, int]:
    """Describe [N] string or large_string without nulls: offsets, whether they have 64 bits, text, N."""
    large = pa.types.is_large_string(strings.type)
    _, offsets, text = strings.buffers()
    if not len(strings):
        return 0, large, 0, 0
    start = offsets.address + strings.offset * (8 if large else 4)
    return start, large, text.address if text is not None else 0, len(strings)


def hash_strings(strings: pa.Array, seed: int) -> Hashes:
    """Return the MurmurHash64A of the UTF-8 bytes of each string: see `murmur.hash_strings`."""
    compiled = library()
    if compiled is None or not len(strings):
        return murmur.hash_strings(strings, seed) & np.uint64(MASK)
    hashes = np.empty(len(strings), np.uint64)
    compiled.graphmill_hash(*text_arguments(strings), seed, address(hashes))
    return hashes & np.uint64(MASK)


def take(values: npt.NDArray[Value], at_N: Int32) -> npt.NDArray[Value]:
    """Return the value at each of N places, 0 <= place < len(values); place -1 is the last value.

    Values have 4 or 8 bytes. numpy would first copy the places as int64.
    """
    compiled = library()
    if compiled is None:
        return values[at_N]
    taken = np.empty(len(at_N), values.dtype)
    take_values = {4: compiled.graphmill_take_4, 8: compiled.graphmill_take_8}[values.itemsize]
    take_values(address(values), len(values), address(at_N), len(at_N), address(taken))
    return taken


def count(at_N: Int32, num_places: int) -> Int64:
    """Count the occurrences of each place; `NOWHERE` is no place."""
    counts = np.zeros(num_places, np.int64)
    add_counts(at_N, counts)
    return counts


def add_counts(at_N: Int32, counts: Int64) -> None:
    """Add the occurrences of each place, 0 <= place < len(counts), to `counts`; `NOWHERE` is no place."""
    compiled = library()
    if compiled is None:
        counts += np.bincount(at_N[at_N != NOWHERE], minlength=len(counts))
    else:
        compiled.graphmill_count(address(at_N), len(at_N), address(counts))


def group(
    columns: Sequence[Int32], group_N: Int32, num_groups: int, heads: Int32 | None = None
) -> tuple[Int64, Int32]:
    """Sort the rows of [N] columns by group, equal groups in the given order; leave out group `NOWHERE`.

    `heads` [H, 1 + columns] are records that precede the rows of their groups: a group, and its values. They
    are in the order of their groups.

    Returns:
        starts int64 [num_groups + 1], records int32 [rows, columns]: group g is starts[g] to starts[g + 1].
    """
    starts = np.zeros(num_groups + 1, np.int64)
    num_rows = count(group_N, num_groups)
    num_heads = np.zeros(num_groups, np.int64)
    if heads is not None:
        num_heads = count(heads[:, 0].copy(), num_groups)
    np.cumsum(num_rows + num_heads, out=starts[1:])
    records = np.empty((starts[-1], len(columns)), np.int32)
    if heads is not None:
        records[ranges(starts[:-1], num_heads)] = heads[:, 1:]
    compiled = library()
    if compiled is None:
        order = np.argsort(group_N, kind="stable")[len(group_N) - num_rows.sum() :]  # NOWHERE is the least
        places = ranges(starts[:-1] + num_heads, num_rows)
        for number, column in enumerate(columns):
            records[places, number] = column[order]
    else:
        addresses = (ctypes.c_void_p * len(columns))(*map(address, columns))
        free = starts[:-1] + num_heads  # where the next row of each group goes
        compiled.graphmill_group(
            addresses, len(columns), address(group_N), len(group_N), address(free), address(records)
        )
    return starts, records
