"""Arrow IPC: one file for each partition, {type}/part-{partition:05d}.arrow; readers map it into memory.

Encoded vectors are the column `embedding`, or the columns `code` and `scale`; parquet has them too.
"""

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.ask.export.codecs import Array, Codec, EncodedVectors
from graphmill.ask.export.source import Source
from graphmill.storage import Checksums

ID = pa.field("id", pa.string(), nullable=False)


def write(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition; return the checksum of its file."""
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, f"part-{partition:05d}.arrow")
    schema = pa.schema([ID, *fields(source.codec, as_arrow=True)])
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        pa.ipc.new_file(stream, schema) as file,
    ):
        for ids, encoded in source.batches(partition):
            rows = [ids.cast(pa.string()), *columns(encoded, schema)]
            file.write_batch(pa.record_batch(rows, schema=schema))
    return checksums


def fields(codec: Codec, *, as_arrow: bool) -> list[pa.Field]:
    """The columns of a codec: as Arrow has them, or as every reader of parquet reads them.

    Spark and Hive do not read float16 and uint8 in parquet. So a column of floats holds the numbers of
    float16, and a binary column the codes.
    """
    if codec.precision == "pq":
        kind = pa.list_(pa.uint8(), codec.width) if as_arrow else pa.binary()
        scale = [pa.field("scale", pa.float16() if as_arrow else pa.float32(), nullable=False)]
        return [pa.field("code", kind, nullable=False), *(scale if codec.has_scale else [])]
    number = pa.int8() if codec.precision == "int8" else pa.float32()
    number = pa.float16() if codec.precision == "float16" and as_arrow else number
    return [pa.field("embedding", pa.list_(number, codec.width), nullable=False)]


def columns(encoded: EncodedVectors, schema: pa.Schema) -> list[pa.Array]:
    """The columns of encoded vectors, as `schema` has them after the id."""
    names = schema.names[1:]
    first = _vectors(encoded.values_NW, schema.field(names[0]).type)
    if encoded.scale_N is None:
        return [first]
    return [first, pa.array(encoded.scale_N).cast(schema.field(names[1]).type)]


def _vectors(values_NW: Array, kind: pa.DataType) -> pa.Array:
    flat_NW = np.ascontiguousarray(values_NW)
    if pa.types.is_binary(kind):
        num_rows, width = flat_NW.shape
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), num_rows, [None, pa.py_buffer(flat_NW)]
        )
        return fixed.cast(kind)
    numbers = pa.array(flat_NW.reshape(-1)).cast(kind.value_type)
    return pa.FixedSizeListArray.from_arrays(numbers, type=kind)
