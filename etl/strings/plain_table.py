"""The table of strings that needs no compiler."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.strings import hashing
from etl.strings.table import Distinct, Int32

_KIND_BITS = 16
_EMPTY = pa.array([], pa.large_string())


class PlainTable:
    """A `StringTable`: keeps what differs within each block, and finds what is the same at the end."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._num = 0
        self._strings = [_EMPTY]
        self._kinds = [np.zeros(0, np.int64)]

    def number(self, strings: pa.Array, kind_N: Int32) -> Int32:
        """A number for each of N strings."""
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
        """The distinct strings kind by kind, in their order; and the place of each number in all of that."""
        strings, kinds = pa.concat_arrays(self._strings), np.concatenate(self._kinds)
        position_of = np.empty(self._num, np.int32)
        found: list[Distinct] = []
        for kind in range(num_kinds):
            members = np.flatnonzero(kinds == kind)
            encoded = strings.take(pa.array(members)).dictionary_encode()
            texts = encoded.dictionary
            table = pa.table({"hash": hashing.hash_strings(texts, self._seed), "text": texts})
            order = pc.sort_indices(table, [("hash", "ascending"), ("text", "ascending")]).to_numpy()
            place_of = np.empty(len(texts), np.int32)
            place_of[order] = np.arange(len(texts)) + sum(map(len, found))
            position_of[members] = place_of[encoded.indices.to_numpy()]
            found.append(Distinct(texts.take(pa.array(order)), table["hash"].to_numpy()[order]))
        return found, position_of
