"""JSON, one object per line: cut into ranges of bytes."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pajson

from etl.config import FilesConfig
from etl.tables.formats.base import FileRange, Head, SkipRow, TableFormat, reading
from etl.tables.formats.lines import cut_lines, open_lines, read_sample

_BLOCK_BYTES = 8 << 20  # a line must fit
_OPTIONS = pajson.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    sample = read_sample(uri)
    lines = sample[: sample.rfind(b"\n") + 1] or sample
    if not lines.strip():
        return Head([], [])
    with reading(uri):
        schema = pajson.read_json(pa.BufferReader(lines), _OPTIONS).schema
    types = {name: _type_to_read(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    cuts = cut_lines(uri, sample, 0, chunk_rows, cuttable=True)
    return Head(schema.names, cuts, types)


def _type_to_read(found: pa.DataType) -> pa.DataType:
    """Return the type to read a column as: never a time, which pyarrow guesses and JSON does not have."""
    if pa.types.is_list(found):
        return pa.list_(_type_to_read(found.value_type))
    if pa.types.is_struct(found):
        return pa.struct([(field.name, _type_to_read(field.type)) for field in found])
    return found if pa.types.is_integer(found) or pa.types.is_floating(found) else pa.string()


def _read(file_range: FileRange, skip_row: SkipRow | None) -> Iterator[pa.RecordBatch]:
    with open_lines(file_range) as stream:
        if stream is None:
            return
        parsing = pajson.ParseOptions(
            explicit_schema=pa.schema(file_range.types), unexpected_field_behavior="ignore"
        )
        yield from pajson.open_json(stream, _OPTIONS, parsing)


FORMAT = TableFormat((".json", ".jsonl", ".ndjson"), "byte", _read_head, _read)
