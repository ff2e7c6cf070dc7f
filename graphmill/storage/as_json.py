"""JSON as a type; types of a journal's values for which JSON has none: arrays, ranges, Arrow types."""

import base64
import math
import zlib
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from graphmill.errors import FormatError
from graphmill.storage.fs import json_in

Kind = TypeVar("Kind")


def read_as(
    kind: TypeAdapter[Kind], text: str | bytes, where: str, expected: str, version: int | None = None
) -> Kind:
    """Return JSON text from the place `where` as a type; with `version`, its format_version must be that."""
    if version is not None and (version_there := json_in(text, where).get("format_version")) != version:
        raise FormatError(f"{where}: format_version is {version_there!r}; this reader knows {version}")
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        raise refusal(error, f"{where}: expected {expected}") from error


def refusal(error: ValidationError, expected: str) -> FormatError:
    """The error that says what was expected, and the first thing that differs."""
    first = error.errors()[0]
    place = "".join(f"{key}: " for key in first["loc"])
    return FormatError(f"{expected}; {place}{first['msg']}, found {first['input']!r:.80}")


def _write_array(values: npt.NDArray[Any]) -> list[Any]:
    packed = zlib.compress(np.ascontiguousarray(values).tobytes(), 1)
    return [values.dtype.str, list(values.shape), base64.b64encode(packed).decode()]


def _read_array(packed_array: Any) -> npt.NDArray[Any]:
    dtype, shape, packed = packed_array
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(packed), num_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"not an array: {error}") from error
    if len(content) != num_bytes:
        raise ValueError(f"expected {num_bytes} bytes of an array, found others")
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy()


Int32 = Annotated[npt.NDArray[np.int32], PlainValidator(_read_array), PlainSerializer(_write_array)]
Int64 = Annotated[npt.NDArray[np.int64], PlainValidator(_read_array), PlainSerializer(_write_array)]
UInt64 = Annotated[npt.NDArray[np.uint64], PlainValidator(_read_array), PlainSerializer(_write_array)]
Range = Annotated[
    range, PlainValidator(lambda ends: range(*ends)), PlainSerializer(lambda ends: [ends.start, ends.stop])
]
ArrowType = Annotated[
    pa.DataType,
    PlainValidator(lambda text: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type),
    PlainSerializer(lambda kind: base64.b64encode(pa.schema([("", kind)]).serialize()).decode()),
]
