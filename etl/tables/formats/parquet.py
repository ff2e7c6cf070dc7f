"""Parquet: cut into row groups."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.tables import blocks
from etl.tables.formats.base import OF_TEXT, FileRange, Head, OnBadLine, TableFormat, cut_groups
from graphmill import storage
from graphmill.config.sections.etl import FilesConfig
from graphmill.formats.parquet import bounds
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.opened import Cut

_UNIT = "us"  # int96, the time of Hive and Impala, holds years that nanoseconds do not reach: 9999-12-31


@contextmanager
def _open(uri: str, dictionary_column: str | None = None) -> Iterator[pq.ParquetFile]:
    columns = [dictionary_column] if dictionary_column else None
    with (
        storage.open_input(uri) as stream,
        reading(uri),
        pq.ParquetFile(stream, read_dictionary=columns, coerce_int96_timestamp_unit=_UNIT) as parquet,
    ):
        yield parquet


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with _open(uri) as parquet:
        schema = parquet.schema_arrow
        sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    types = dict(zip(schema.names, schema.types, strict=True))
    return Head(schema.names, cut_groups(sizes, chunk_rows), types, schema)


def _select(uri: str, chunk_rows: int, wanted: pc.Expression) -> Sequence[tuple[int, int, Cut]]:
    import pyarrow.dataset as ds  # imports pandas

    with storage.open_input(uri) as stream, reading(uri):
        options = ds.ParquetReadOptions(coerce_int96_timestamp_unit=_UNIT)
        fragment = ds.ParquetFileFormat(options).make_fragment(stream)
        sizes = [group.num_rows for group in fragment.row_groups]
        try:
            kept = fragment.subset(wanted, schema=fragment.physical_schema).row_groups
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the rows tell better what does not fit
            kept = fragment.row_groups
    return cut_groups(sizes, chunk_rows, {group.id for group in kept})


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    # Names of relations repeat: reading them as a dictionary takes half the time.
    path = file_range.paths.get("relation")
    relation = ".".join(path) if path else None
    if relation and pa.types.is_nested(file_range.types.get(relation, pa.string())):
        relation = None  # no name, as the check of the rows says
    with _open(file_range.uri, relation) as parquet:
        groups = range(*(file_range.cut or (0, parquet.num_row_groups)))
        names = file_range.names
        rows = bounds.batch_rows(
            parquet, file_range.uri, names, blocks.BLOCK_ROWS, groups=groups, dictionary_column=relation
        )
        yield from parquet.iter_batches(rows, groups, names, use_threads=False)


FORMAT = TableFormat((".parquet", ".pq"), "", _read_head, _read, _select, OF_TEXT)
