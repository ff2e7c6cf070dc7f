"""What a table of strings does: it numbers strings, keeps one of equal ones, and puts them in order.

Strings come a block of rows at a time, and may be of several kinds (entity types): equal strings of two
kinds are two strings. The rows themselves need not stay. Two tables do this, with the same result:

    compiled_table    a hash table in C++: 35 to 45 ns a string where pyarrow takes 150
    plain_table       pyarrow alone: where there is no compiler, and what the other is tested against

Shapes: N strings of a block, D distinct ones.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.strings.hashing import Hashes

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Distinct:
    """Distinct strings of one kind."""

    strings: pa.Array
    """[D] large_string, by (hash, UTF-8 bytes)."""
    hashes: Hashes
    """[D] ascending."""

    def __len__(self) -> int:
        return len(self.hashes)


class StringTable(Protocol):
    """A table of strings."""

    def number(self, strings: pa.Array, kind_N: Int32) -> Int32:
        """A number for each of N strings; one number is only ever given to equal strings of a kind.

        Args:
            strings: string or large_string, no nulls.
            kind_N: 0 <= kind < 2**16.
        """

    def in_order(self, num_kinds: int) -> tuple[list[Distinct], Int32]:
        """The distinct strings kind by kind, in their order; and the place of each number in all of that."""
