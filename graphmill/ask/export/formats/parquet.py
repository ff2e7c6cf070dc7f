"""Parquet: one file of ids and vectors for each partition, {type}/part-{partition:05d}.parquet.

Numbers of float16 and int8 are dictionary encoded: a page holds places in a dictionary of at most 65536
numbers, 16 or 8 bits each. So a file has half or a quarter of the bytes, and every reader knows the types:
float and tinyint. Files of float32 are like those of remap.
"""

import pyarrow as pa

from graphmill import storage
from graphmill.ask.export.formats.arrow import ID, columns, fields
from graphmill.ask.export.source import Source
from graphmill.formats.parquet.vectors import new_table
from graphmill.storage import Checksums

_LIST = "embedding.list.element"


def write(source: Source, partition: int, folder: str) -> Checksums:
    """Write a partition; return the checksum of its file."""
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
            values = encoded.values_NW if is_plain else None
            table.append([ids.cast(pa.string()), *([values] if is_plain else columns(encoded, schema))])
    return checksums
