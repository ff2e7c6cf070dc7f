"""Output table of ids and vectors, or ids and numbers, written batch by batch as parquet or CSV.

Values [n, D] become a column of lists, values [n] a column of numbers. In CSV a list is `a;b;c`.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from graphmill import storage
from graphmill.formats.parquet import open_parquet
from graphmill.formats.parquet.vectors import Column, ParquetTable, as_arrow, new_table
from graphmill.storage import Checksums

Codec = Literal["none", "snappy", "lz4", "zstd"]

CSV_BLOCK_BYTES = 16 << 20
_CSV_SPECIAL = r'["\r\n\x{:02x}]|^\s|\s$|^$'
_OTHER_NAMES = {"bfloat16": pa.float32(), "bool": pa.bool_()}


@dataclass(frozen=True)
class TableOptions:
    """Format and compression of tables."""

    output_format: Literal["parquet", "csv"] = "parquet"
    output_delimiter: str = ","
    compression: Codec = "snappy"
    value_compression: Codec = "none"
    fixed_size_list: bool = False


def values_type(dtype: str, shape: Sequence[int], options: TableOptions) -> pa.DataType:
    """Return the Arrow type of values; bfloat16, which parquet has not, becomes float32: no digit is lost."""
    scalar = _OTHER_NAMES.get(dtype) or pa.from_numpy_dtype(np.dtype(dtype))
    if len(shape) == 1:
        return scalar
    if options.fixed_size_list:
        return pa.list_(scalar, shape[1])
    return pa.list_(pa.field("element", scalar))


@contextmanager
def open_table(
    uri: str, schema: pa.Schema, options: TableOptions, checksums: Checksums | None = None
) -> Iterator[ParquetTable]:
    """Open a new table for writing within the block; atomic. Adds its checksum to `checksums`."""
    with storage.atomic_output(uri, is_large=True, checksums=checksums) as stream:
        if options.output_format == "csv":
            yield _Csv(stream, schema, options.output_delimiter)
            return
        lists = {field.name for field in schema if pa.types.is_nested(field.type)}
        codecs = {
            f"{name}.list.element" if name in lists else name: (
                options.value_compression if name in lists else options.compression
            )
            for name in schema.names
        }
        with new_table(
            stream,
            schema,
            is_plain=options.value_compression == "none",
            use_dictionary=False,  # values rarely repeat
            write_statistics=False,  # rows have no order: no reader can skip any
            compression=codecs,
        ) as table:
            yield table


def count_rows(uri: str, options: TableOptions) -> int:
    """Count the rows of a finished table, from parquet's footer or the lines of CSV."""
    if options.output_format == "parquet":
        with open_parquet(uri) as parquet:
            return int(parquet.metadata.num_rows)
    with storage.open_input(uri) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        names = next(csv.reader(text, delimiter=options.output_delimiter), [])
        text.detach().seek(0)
        reader = pacsv.open_csv(
            stream,
            read_options=pacsv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
            parse_options=pacsv.ParseOptions(delimiter=options.output_delimiter, newlines_in_values=True),
            # Without types, pyarrow infers numbers from the first block and then refuses texts.
            convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary())),
        )
        with reader:
            return sum(len(batch) for batch in reader)


class _Csv:
    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, delimiter: str) -> None:
        self._stream, self._delimiter = stream, delimiter
        self._special = _CSV_SPECIAL.format(ord(delimiter))
        self._schema = schema
        header = pa.table({name: pa.array([], pa.string()) for name in schema.names})
        quoting = "needed" if self._needs_quotes(pa.array(schema.names)) else "none"
        pacsv.write_csv(header, stream, pacsv.WriteOptions(delimiter=delimiter, quoting_header=quoting))

    def append(self, columns: Sequence[Column]) -> None:
        texts = [_as_text(column) for column in as_arrow(columns, self._schema)]
        is_special = any(self._needs_quotes(text) for text in texts if pa.types.is_string(text.type))
        pacsv.write_csv(
            pa.Table.from_arrays(texts, self._schema.names),
            self._stream,
            pacsv.WriteOptions(
                include_header=False,
                delimiter=self._delimiter,
                quoting_style="needed" if is_special else "none",
            ),
        )

    def _needs_quotes(self, texts: pa.Array) -> bool:
        return bool(pc.any(pc.match_substring_regex(texts, self._special)).as_py())


def _as_text(column: pa.Array) -> pa.Array:
    """Format vectors as `a;b;c`, and numbers with the digits of a double, like GraphStorm's tool."""
    if not pa.types.is_nested(column.type):
        return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column
    values = column.flatten()
    texts = (values.cast(pa.float64()) if pa.types.is_floating(values.type) else values).cast(pa.string())
    width = len(values) // max(len(column), 1)
    offsets = pa.array(np.arange(len(column) + 1, dtype=np.int32) * width)
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ";")
