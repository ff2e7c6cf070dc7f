"""The raw ids and vectors of one partition, written row by row into one parquet file.

At most `batch_rows` rows are in memory; of PyTorch-BigGraph's JSON list of names, all raw ids.

A custom layout of a partition: CSV, lists, other column names, selected ids, several files.

embeddings/{type}/part-{partition:05d}.parquet              or, with rows_per_file,
embeddings/{type}/part-{partition:05d}_{number:05d}.parquet
"""

import json
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.entities import MeasuredPartition, checked_rows
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import Floats
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import FormatError
from graphmill.formats import remapped
from graphmill.formats.parquet import bounds, open_parquet
from graphmill.run import record
from graphmill.storage import Checksums
from remap.output.tables import TableOptions, count_rows, open_table, values_type

Rows = tuple[pa.Array, Floats]


def write_custom(
    batches: Iterator[Rows], part: MeasuredPartition, embedding_path: str, settings: RemapConfig
) -> tuple[dict[str, int], Checksums]:
    """Write the files of one partition; return the rows of each, counted after writing, and its checksum."""
    options = TableOptions(
        settings.output_format,
        settings.output_delimiter,
        compression="zstd",
        value_compression=settings.compression,
        fixed_size_list=settings.vectors == "fixed_size_list",
    )
    kind = values_type("float32", (part.num_rows, part.dimension), options)
    schema = pa.schema(list(zip(settings.columns, (pa.string(), pa.string(), kind), strict=True)))
    if settings.ids_path:
        batches = _selected(batches, read_ids(settings.ids_path))
    written: dict[str, int] = {}
    checksums: Checksums = {}
    for number, rows in enumerate(split_into_files(batches, settings.rows_per_file)):
        suffix = f"_{number:05d}" if settings.rows_per_file else ""
        name = f"part-{part.partition:05d}{suffix}.{settings.output_format}"
        uri = storage.join(embedding_path, part.entity_type, name)
        with open_table(uri, schema, options, checksums) as table:
            written[uri] = 0
            for ids, vectors_ND in rows:
                table.append([ids, pa.repeat(part.entity_type, len(ids)), vectors_ND])
                written[uri] += len(ids)
        counted = count_rows(uri, options)
        if counted != written[uri]:
            raise FormatError(f"{uri}: expected {written[uri]} rows as written, found {counted}")
    return written, checksums


def _selected(batches: Iterator[Rows], wanted: pa.Array) -> Iterator[Rows]:
    for ids, vectors_ND in batches:
        rows = np.flatnonzero(pc.is_in(ids, wanted).to_numpy(zero_copy_only=False))
        if len(rows):
            yield ids.take(pa.array(rows)), vectors_ND[rows]


def split_into_files(batches: Iterator[Rows], rows_per_file: int | None) -> Iterator[Iterator[Rows]]:
    """Yield the batches of each file; the caller reads each file to its end before the next file."""
    if rows_per_file is None:
        yield batches
        return
    rest = next(batches, None)

    def one_file(room: int) -> Iterator[Rows]:
        nonlocal rest
        while rest is not None and room:
            ids, vectors_ND = rest
            yield ids[:room], vectors_ND[:room]
            rest = (ids[room:], vectors_ND[room:]) if len(ids) > room else next(batches, None)
            room -= min(room, len(ids))

    while rest is not None:
        yield one_file(rows_per_file)


def read_ids(uri: str) -> pa.Array:
    """Read the raw ids of a file or folder of ids."""
    return _read_ids(uri, json.dumps(record.describe_inputs([uri])))


@lru_cache(maxsize=1)
def _read_ids(uri: str, _files: str) -> pa.Array:
    """Read the ids; the files are a key of the cache because they may change between two runs."""
    for file in given.files(uri):
        if file.endswith(".parquet"):
            with open_parquet(file) as parquet:
                bounds.check_whole(parquet, file)  # all ids are kept
    batches = [batch["id"].combine_chunks() for batch in given.iter_ids(uri)]
    return pa.chunked_array(batches, pa.string()).combine_chunks()


def write_partition(
    trained: TrainedRun,
    part: MeasuredPartition,
    embedding_path: str,
    settings: RemapConfig,
    matrix_DD: Floats | None = None,
) -> tuple[dict[str, int], Checksums]:
    """Write one partition's files and count their rows; return the rows and the checksum of each file.

    With `matrix_DD`, vectors are multiplied by it: a vector x becomes x matrix_DD.
    """
    rows = checked_rows(trained, part, settings.batch_rows)
    if matrix_DD is not None:
        rows = ((ids, vectors_ND @ matrix_DD) for ids, vectors_ND in rows)
    if not settings.is_standard:
        return write_custom(rows, part, embedding_path, settings)
    place, checksums = (embedding_path, part.entity_type, part.partition), Checksums()
    with remapped.new_part(*place, part.dimension, settings.compression, checksums=checksums) as writer:
        for ids, vectors_ND in rows:
            writer.append(ids, vectors_ND)
    written, uri = remapped.shape_of(*place), remapped.part_uri(*place)
    if written != (part.num_rows, part.dimension):
        raise FormatError(f"{uri}: expected {(part.num_rows, part.dimension)} as written, found {written}")
    return {uri: part.num_rows}, checksums
