"""Distinct strings in their order: by (hash, UTF-8 bytes)."""

import numpy as np
import pyarrow as pa

from etl.strings import native
from etl.strings.compiled_table import CompiledTable
from etl.strings.gather import taken
from etl.strings.plain_table import PlainTable
from etl.strings.table import Distinct, Int32, StringTable


def new_table(seed: int) -> StringTable:
    """An empty table, the quickest that can be had here."""
    library = native.library()
    return PlainTable(seed) if library is None else CompiledTable(library, seed)


def distinct(column: pa.ChunkedArray, seed: int) -> tuple[Distinct, Int32]:
    """The distinct strings of a column of N strings, none of them null, and each row's place among them."""
    table = new_table(seed)
    codes = [np.zeros(0, np.int32)]
    codes += [table.number(chunk, np.zeros(len(chunk), np.int32)) for chunk in column.chunks]
    (found,), position_of = table.in_order(1)
    return found, taken(position_of, np.concatenate(codes))
