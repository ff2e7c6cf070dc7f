"""Encodes the values of a journal that JSON has no type for; pickles nothing."""

import base64
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class AsJson:
    """Marks, within `Annotated`, an array, a range or an Arrow type."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic."""
        read, write = _HOW.get(source, (_read_array, _write_array))
        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


def _write_array(values: npt.NDArray[Any]) -> list[Any]:
    packed = zlib.compress(np.ascontiguousarray(values).tobytes(), 1)
    return [values.dtype.str, list(values.shape), base64.b64encode(packed).decode()]


def _read_array(found: Any) -> npt.NDArray[Any]:
    dtype, shape, packed = found
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(packed), num_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"not an array: {error}") from error
    if len(content) != num_bytes:
        raise ValueError(f"expected {num_bytes} bytes of an array, found others")
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy()


def _write_range(values: range) -> list[int]:
    return [values.start, values.stop]


def _read_range(found: Any) -> range:
    start, stop = found
    return range(start, stop)


def _write_type(kind: pa.DataType) -> str:
    return base64.b64encode(pa.schema([("", kind)]).serialize().to_pybytes()).decode()


def _read_type(found: Any) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found))).field(0).type


_HOW: dict[Any, Any] = {range: (_read_range, _write_range), pa.DataType: (_read_type, _write_type)}
