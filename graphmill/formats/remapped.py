"""Embeddings by raw id: the result of the pipeline.

    embeddings/
        {type}/part-{partition:05d}.parquet     one row per entity, in the order of the partition's rows
            id          string
            type        dictionary<string>
            embedding   fixed_size_list<float32>[D]
        _checksums.xxh128                       compared by whoever reads a part

Source: docs/formats/embeddings.md.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.config.sections.remap import Compression
from graphmill.errors import FormatError
from graphmill.formats.parquet import bounds, check_schema, column_type, iter_columns, open_parquet
from graphmill.formats.parquet.vectors import ParquetTable, new_table
from graphmill.storage import Checksums

Floats = npt.NDArray[np.float32]

_VALUES = "embedding.list.element"
_PART = re.compile(r"^part-[0-9]{5,}\.parquet$")

# Measured with 200,000 rows of 128 trained floats on one core. Floats do not compress: PLAIN without
# compression is the fastest (2 GB/s; 510 MB/s by pyarrow), and every reader knows it. PLAIN with zstd saves
# 5 %, with lz4 or snappy nothing. BYTE_STREAM_SPLIT with zstd 1 saves 13 % at 310 MB/s (zstd 3 saves no
# more, at 155 MB/s). Statistics of floats help no reader.
_WRITER_OPTIONS: dict[Compression, dict[str, Any]] = {
    "none": {"compression": "zstd"},  # of the other columns
    "zstd": {
        "compression": "zstd",
        "compression_level": 1,
        "column_encoding": {_VALUES: "BYTE_STREAM_SPLIT"},
    },
}


def part_uri(embedding_path: str, entity_type: str, partition: int) -> str:
    """Place of the embeddings of one partition."""
    return storage.join(embedding_path, entity_type, f"part-{partition:05d}.parquet")


def is_part(uri: str) -> bool:
    """Tell whether a file has the name of a part."""
    return bool(_PART.match(storage.name(uri)))


def schema(dimension: int, more: Sequence[pa.Field] = ()) -> pa.Schema:
    """Columns of a part with embeddings of `dimension` coordinates, and maybe more columns after them."""
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("type", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("embedding", pa.list_(pa.float32(), dimension), nullable=False),
            *more,
        ]
    )


class PartWriter:
    """Appends rows to a new part."""

    def __init__(self, table: ParquetTable, uri: str, entity_type: str, dimension: int):
        self._table = table
        self._uri = uri
        self._types = pa.array([entity_type])
        self._dimension = dimension

    def append(self, ids: pa.Array, embeddings_ND: Floats, *more: pa.Array) -> None:
        """Write rows as one row group: ids (string [N]), float32 [N, D], and the columns after them."""
        if embeddings_ND.shape != (len(ids), self._dimension):
            raise FormatError(
                f"{self._uri}: expected embeddings of shape {(len(ids), self._dimension)}, "
                f"found {embeddings_ND.shape}"
            )
        if len(ids):
            types = pa.DictionaryArray.from_arrays(np.zeros(len(ids), np.int32), self._types)
            self._table.append([ids.cast(pa.string()), types, embeddings_ND, *more])


@contextmanager
def new_part(
    embedding_path: str,
    entity_type: str,
    partition: int,
    dimension: int,
    compression: Compression = "none",
    more: Sequence[pa.Field] = (),
    checksums: Checksums | None = None,
) -> Iterator[PartWriter]:
    """Open a new part, for appending within the block, maybe with `more` columns; atomic.

    Adds its checksum to `checksums`. Memory: one append.
    """
    uri = part_uri(embedding_path, entity_type, partition)
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        new_table(
            stream,
            schema(dimension, more),
            is_plain=compression == "none",
            use_dictionary=["type"],
            write_statistics=["id", "type", *(field.name for field in more)],
            **_WRITER_OPTIONS[compression],
        ) as table,
    ):
        yield PartWriter(table, uri, entity_type, dimension)


def shape_of(embedding_path: str, entity_type: str, partition: int) -> tuple[int, int]:
    """(rows, D) of one part, from its footer."""
    uri = part_uri(embedding_path, entity_type, partition)
    with open_parquet(uri) as parquet:
        return int(parquet.metadata.num_rows), _dimension(parquet, uri)


def read_part(embedding_path: str, entity_type: str, partition: int) -> pa.Table:
    """All rows of one part, with the columns of `schema`."""
    uri = part_uri(embedding_path, entity_type, partition)
    with open_parquet(uri, storage.manifest_of_table(uri)) as parquet:
        bounds.check_whole(parquet, uri)
        return parquet.read(columns=schema(_dimension(parquet, uri)).names)


def read_ids(embedding_path: str, entity_type: str, partition: int) -> pa.ChunkedArray:
    """The raw ids of one part in order, string [N], without its embeddings."""
    uri = part_uri(embedding_path, entity_type, partition)
    with open_parquet(uri) as parquet:
        _dimension(parquet, uri)
        batches = [ids for _, (ids,) in iter_columns(parquet, uri, ["id"], 65536)]
    return pa.chunked_array(batches, pa.string())


def iter_part(
    embedding_path: str, entity_type: str, partition: int, batch_rows: int = 65536
) -> Iterator[tuple[pa.Array, Floats]]:
    """The rows of one part in order: ids (string [N]) and float32 [N, D], N at most `batch_rows`."""
    uri = part_uri(embedding_path, entity_type, partition)
    with open_parquet(uri, storage.manifest_of_table(uri)) as parquet:
        dimension = _dimension(parquet, uri)
        for _, (ids, embeddings) in iter_columns(parquet, uri, ["id", "embedding"], batch_rows):
            values = embeddings.flatten()
            if values.null_count:
                raise FormatError(f"{uri}: expected no nulls, found one in an embedding")
            yield ids, values.to_numpy().reshape(-1, dimension)


def _dimension(parquet: pq.ParquetFile, uri: str) -> int:
    kind = column_type(parquet.schema_arrow, "embedding", uri)
    dimension = int(kind.list_size) if kind is not None and pa.types.is_fixed_size_list(kind) else 0
    check_schema(parquet, {field.name: (field.type,) for field in schema(dimension)}, uri)
    return dimension
