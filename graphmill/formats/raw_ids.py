"""Raw ids of users' tables as text: one rule for all stages and commands.

text, also as a dictionary or a view     unchanged
integers, decimals without a fraction    their digits
UUIDs                                    123e4567-e89b-12d3-a456-426614174000
bytes, also of a fixed size              the UTF-8 that they are
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.display.readable import quoted
from graphmill.errors import BadInputError

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def may_be_ids(kind: pa.DataType) -> bool:
    """Tell whether values of a type can be raw ids."""
    kind = _plain(kind)
    is_other = kind in (*TEXTS, *BYTES, pa.null(), pa.uuid()) or pa.types.is_fixed_size_binary(kind)
    return is_other or holds_whole_numbers(kind)


def holds_whole_numbers(kind: pa.DataType) -> bool:
    """Tell whether all values of a type are whole numbers: integers, and decimals without a fraction."""
    kind = _plain(kind)
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0))


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings, also as a dictionary or a view."""
    return _plain(kind) in TEXTS


def texts_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return raw ids, of a type that `may_be_ids`, as text; bytes stay bytes, which may not be UTF-8."""
    column = column.cast(_plain(column.type))
    kind = column.type
    if pa.types.is_decimal(kind) and kind.scale < 0:
        column = column.cast(pa.decimal256(kind.precision - kind.scale, 0))
    if holds_whole_numbers(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if kind == pa.uuid():
        return pa.chunked_array(map(_uuid_texts, column.chunks), pa.string())
    return column.cast(pa.binary()) if pa.types.is_fixed_size_binary(kind) else column


def strings_of(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return raw ids, of a type that `may_be_ids`, as strings."""
    column = ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])
    column.validate(full=True)  # by default Arrow accepts any bytes as UTF-8
    return texts_of(column).cast(pa.string()).combine_chunks()


def strings_given(ids: Iterable[Any] | pa.Array, where: str) -> pa.Array:
    """Return ids that a call in Python gives, as strings; `where` begins the message about other values."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise BadInputError(f"{where}: expected several, in a list or a column, found {quoted([ids])}")
    try:
        if not isinstance(ids, pa.Array | pa.ChunkedArray):
            ids = ids if hasattr(ids, "__array__") else list(ids)
            try:
                ids = pa.array(ids, from_pandas=True)
            except OverflowError:  # an integer of more than 64 bits
                ids = pa.array(ids, pa.decimal256(76, 0), from_pandas=True)
        if may_be_ids(ids.type) or not len(ids):
            return strings_of(ids)
    except (ValueError, TypeError) as error:  # pyarrow's are among them
        raise BadInputError(f"{where}: expected strings or integers of one kind in UTF-8: {error}") from error
    raise BadInputError(f"{where}: expected strings or integers, found {ids.type}")


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _uuid_texts(chunk: pa.Array) -> pa.Array:
    num, storage = len(chunk), chunk.storage.fill_null(bytes(16))
    all_bytes = np.frombuffer(storage.buffers()[1], np.uint8)
    byte_N16 = all_bytes[16 * storage.offset :][: 16 * num].reshape(num, 16)
    digit_N32 = _HEX[byte_N16].view(np.uint8)
    text_N36 = np.full((num, 36), ord("-"), np.uint8)
    for start, digits in zip((0, 9, 14, 19, 24), np.split(digit_N32, (8, 12, 16, 20), axis=1), strict=True):
        text_N36[:, start : start + digits.shape[1]] = digits
    ends = pa.py_buffer(np.arange(0, 36 * num + 1, 36, dtype=np.int32))
    texts = pa.StringArray.from_buffers(num, ends, pa.py_buffer(text_N36))
    return pc.if_else(chunk.is_valid(), texts, None)
