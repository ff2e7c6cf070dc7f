"""Numpy: the array of each partition, which `numpy.load(mmap_mode="r")` maps, and the ids of its rows.

{type}/part-{partition:05d}.npy             [N, D] of the precision, or codes uint8 [N, M]
{type}/part-{partition:05d}.scale.npy       float16 [N], with codes
{type}/part-{partition:05d}.ids.parquet     column id
"""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.ask.export.formats.arrow import ID
from graphmill.ask.export.source import Source
from graphmill.storage import Checksums

IDS = pa.schema([ID])


def write(source: Source, partition: int, folder: str) -> Checksums:
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
        ids_file = stack.enter_context(storage.atomic_output(ids_uri, is_large=True, checksums=checksums))
        ids_table = stack.enter_context(
            pq.ParquetWriter(ids_file, IDS, compression="zstd", write_page_checksum=True)
        )
        for ids, encoded in source.batches(partition):
            ids_table.write_table(pa.table([ids.cast(pa.string())], schema=IDS))
            for stream, values in zip(streams, (encoded.values_NW, encoded.scale_N), strict=False):
                stream.write(np.ascontiguousarray(values))
    return checksums
