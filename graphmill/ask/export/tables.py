"""Tables of ids and vectors, one file for each partition: parquet, Arrow IPC, and arrays of numpy.

{type}/part-{partition:05d}.parquet         columns id, and embedding, or code and scale
{type}/part-{partition:05d}.arrow           the same; readers map it into memory
{type}/part-{partition:05d}.npy             [N, D] of the precision, or codes uint8 [N, M];
                                            `numpy.load(mmap_mode="r")` maps it
{type}/part-{partition:05d}.scale.npy       float16 [N], with codes
{type}/part-{partition:05d}.ids.parquet     column id: the ids of the rows of .npy
"""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill import storage
from graphmill.ask.export.codecs import Codec, EncodedVectors
from graphmill.ask.export.fitting import Source
from graphmill.formats.parquet import new_file
from graphmill.formats.parquet.vectors import Column, as_arrow, new_table
from graphmill.storage import Checksums

ID = pa.field("id", pa.string(), nullable=False)
IDS = pa.schema([ID])
_LIST = "embedding.list.element"


def write_parquet(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition as parquet; return the checksum of its file.

    Numbers of float16 and int8 are dictionary encoded: a page holds places in a dictionary of at most 65536
    numbers, 16 or 8 bits each. So a file has half or a quarter of the bytes, and every reader knows the
    types: float and tinyint. Files of float32 are like those of remap.
    """
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, f"part-{partition:05d}.parquet")
    codec = source.codec
    schema = pa.schema([ID, *fields(codec, as_arrow=False)])
    small = {"float16": [_LIST], "int8": [_LIST], "pq": ["scale"]}.get(codec.precision, [])
    is_plain = codec.precision == "float32"
    leaves = [_LIST if name == "embedding" else name for name in schema.names[1:]]
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        new_table(
            stream,
            schema,
            is_plain=is_plain,
            use_dictionary=small or False,
            write_statistics=["id"],
            compression="zstd" if is_plain else {"id": "zstd", **dict.fromkeys(leaves, "none")},
        ) as table,
    ):
        for ids, encoded in source.batches(partition):
            table.append(columns(ids, encoded))
    return checksums


def write_arrow(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition; return the checksum of its file."""
    checksums: Checksums = {}
    uri = storage.join(folder, source.entity_type, f"part-{partition:05d}.arrow")
    schema = pa.schema([ID, *fields(source.codec, as_arrow=True)])
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        pa.ipc.new_file(stream, schema) as file,
    ):
        for ids, encoded in source.batches(partition):
            file.write_batch(pa.record_batch(as_arrow(columns(ids, encoded), schema), schema=schema))
    return checksums


def write_npy(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition; return the checksums of its files."""
    checksums: Checksums = {}
    stem = storage.join(folder, source.entity_type, f"part-{partition:05d}")
    num_rows, codec = source.table.parts[partition].num_rows, source.codec
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        f"{stem}.npy": (codec.dtype, (num_rows, codec.width))
    }
    if codec.has_scale:
        arrays[f"{stem}.scale.npy"] = np.dtype(np.float16), (num_rows,)
    ids_uri = f"{stem}.ids.parquet"
    with ExitStack() as stack:
        streams = [
            stack.enter_context(storage.atomic_output(uri, is_large=True, checksums=checksums))
            for uri in arrays
        ]
        for stream, (dtype, shape) in zip(streams, arrays.values(), strict=True):
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
        ids_file = new_file(ids_uri, IDS, checksums, is_large=True, compression="zstd")
        ids_table = stack.enter_context(ids_file)
        for ids, encoded in source.batches(partition):
            ids_table.write_table(pa.table([ids.cast(pa.string())], schema=IDS))
            for stream, values in zip(streams, (encoded.values_NW, encoded.scale_N), strict=False):
                stream.write(np.ascontiguousarray(values))
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


def columns(ids: pa.Array, encoded: EncodedVectors) -> list[Column]:
    """The columns of ids and their encoded vectors."""
    scale = [] if encoded.scale_N is None else [encoded.scale_N]
    return [ids.cast(pa.string()), encoded.values_NW, *scale]
