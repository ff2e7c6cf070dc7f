"""Tables of strings, which number strings, keep each distinct string once, and sort them.

Strings come one block of rows at a time, and may be of several kinds (entity types): equal strings of two
kinds are two strings. The rows themselves need not stay in memory. Two tables give the same result:

    CompiledTable    a hash table in C++: 35 to 45 ns per string, where pyarrow takes 150
    PlainTable       pyarrow alone: for machines without a compiler, and the reference of the tests

Shapes: N strings of a block, D distinct strings.
"""

import ctypes
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.strings import native
from etl.strings.native import take, text_arguments
from graphmill.formats.murmur import Hashes
from graphmill.machine.native import address
from graphmill.storage.as_json import Int32

_SECRET_BYTES = 32
_KIND_BITS = 16
_EMPTY = pa.array([], pa.large_string())


@dataclass(frozen=True, eq=False)
class Distinct:
    """Distinct strings of one kind."""

    strings: pa.Array
    """[D] large_string, sorted by (hash, UTF-8 bytes)."""
    hashes: Hashes
    """[D] ascending."""

    def __len__(self) -> int:
        return len(self.hashes)


class CompiledTable:
    """A table of strings in C++."""

    def __init__(self, library: ctypes.CDLL, seed: int) -> None:
        self._library = library
        secret = np.frombuffer(secrets.token_bytes(_SECRET_BYTES), np.uint64)
        self._table = library.graphmill_strings(seed, native.MASK, address(secret))
        _check(self._table)
        weakref.finalize(self, library.graphmill_strings_free, self._table)

    def number(self, strings: pa.Array, kind_N: Int32) -> Int32:
        """Return a number for each of N strings; strings with one number are equal, and of one kind.

        Args:
            strings: string or large_string, no nulls.
            kind_N: 0 <= kind < 2**16.
        """
        kind_N = np.ascontiguousarray(kind_N, np.int32)
        code_N = np.empty(len(strings), np.int32)
        arguments = (*text_arguments(strings), address(kind_N), address(code_N))
        _check(self._library.graphmill_strings_number(self._table, *arguments))
        return code_N

    def in_order(self, num_kinds: int) -> tuple[list[Distinct], Int32]:
        """Return the distinct strings of each kind, sorted, and each number's position in all of them."""
        counts, num_bytes = np.zeros(num_kinds, np.int64), np.zeros(num_kinds, np.int64)
        self._library.graphmill_strings_count(self._table, address(counts), address(num_bytes))
        position_of = np.empty(counts.sum(), np.int32)
        by_kind: list[Distinct] = []
        for kind, count in enumerate(counts.tolist()):
            hashes, offsets = np.empty(count, np.uint64), np.empty(count + 1, np.int64)
            text = np.empty(num_bytes[kind], np.uint8)
            arrays: list[Any] = [hashes, offsets, text, position_of]
            first = sum(map(len, by_kind))
            order = self._library.graphmill_strings_order
            _check(order(self._table, kind, first, *map(address, arrays)))
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
            by_kind.append(Distinct(pa.Array.from_buffers(pa.large_string(), count, buffers), hashes))
        return by_kind, position_of


class PlainTable:
    """A table of strings in pyarrow: keeps the distinct strings of each block, and joins them at the end."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._num = 0
        self._strings = [_EMPTY]
        self._kinds = [np.zeros(0, np.int64)]

    def number(self, strings: pa.Array, kind_N: Int32) -> Int32:
        """Return a number for each of N strings."""
        texts = strings.dictionary_encode()
        keys = pa.array(
            (texts.indices.to_numpy().astype(np.int64) << _KIND_BITS) | kind_N
        ).dictionary_encode()
        distinct = keys.dictionary.to_numpy()
        self._strings.append(texts.dictionary.take(pa.array(distinct >> _KIND_BITS)).cast(pa.large_string()))
        self._kinds.append(distinct & ((1 << _KIND_BITS) - 1))
        code_N: Int32 = keys.indices.to_numpy() + np.int32(self._num)
        self._num += len(distinct)
        return code_N

    def in_order(self, num_kinds: int) -> tuple[list[Distinct], Int32]:
        """Return the distinct strings of each kind, sorted, and each number's position in all of them."""
        strings, kinds = pa.concat_arrays(self._strings), np.concatenate(self._kinds)
        position_of = np.empty(self._num, np.int32)
        by_kind: list[Distinct] = []
        for kind in range(num_kinds):
            members = np.flatnonzero(kinds == kind)
            encoded = strings.take(pa.array(members)).dictionary_encode()
            texts = encoded.dictionary
            table = pa.table({"hash": native.hash_strings(texts, self._seed), "text": texts})
            order = pc.sort_indices(table, [("hash", "ascending"), ("text", "ascending")]).to_numpy()
            place_of = np.empty(len(texts), np.int32)
            place_of[order] = np.arange(len(texts)) + sum(map(len, by_kind))
            position_of[members] = place_of[encoded.indices.to_numpy()]
            by_kind.append(Distinct(texts.take(pa.array(order)), table["hash"].to_numpy()[order]))
        return by_kind, position_of


StringTable = CompiledTable | PlainTable


def new_table(seed: int) -> StringTable:
    """Return an empty table: a compiled one if there is a compiler."""
    library = native.library()
    return PlainTable(seed) if library is None else CompiledTable(library, seed)


def number_column(table: StringTable, column: pa.ChunkedArray, kind_N: Int32) -> Int32:
    """Return a number for each of N strings of a column without nulls; see `CompiledTable.number`."""
    codes, start = [np.zeros(0, np.int32)], 0
    for chunk in column.chunks:
        codes.append(table.number(chunk, kind_N[start : start + len(chunk)]))
        start += len(chunk)
    return np.concatenate(codes)


def number_names(column: pa.ChunkedArray, number_of: Callable[[str], int]) -> Int32:
    """Return the number of each name of a column that is not empty, whose chunks have one dictionary."""
    code_N = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
    names: pa.Array = column.chunk(0).dictionary
    # A dictionary may have names that are in no row.
    used = np.flatnonzero(np.bincount(code_N, minlength=len(names)))
    numbers = np.zeros(len(names), np.int32)
    numbers[used] = [number_of(names[at].as_py()) for at in used.tolist()]
    return take(numbers, code_N)


def distinct(column: pa.ChunkedArray, seed: int) -> tuple[Distinct, Int32]:
    """Return the distinct strings of a column of N strings without nulls, and each row's position in them."""
    table = new_table(seed)
    code_N = number_column(table, column, np.broadcast_to(np.int32(0), len(column)))
    (strings,), position_of = table.in_order(1)
    return strings, take(position_of, code_N)


def _check(done: object) -> None:
    if not done:
        raise MemoryError("no memory for the distinct ids of a chunk of rows; lower etl.chunk_rows")
