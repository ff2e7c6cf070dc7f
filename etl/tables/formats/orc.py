"""ORC: cut into stripes."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.orc as paorc

from etl.config import FilesConfig
from etl.tables.formats.base import FileRange, Head, OnBadLine, TableFormat, cut_groups, reading
from graphmill import storage


def _read_head(uri: str, table: FilesConfig, chunk_rows: int) -> Head:
    with storage.open_input(uri) as stream, reading(uri):
        orc = paorc.ORCFile(stream)
        schema, num_rows, num_stripes = orc.schema, orc.nrows, orc.nstripes
    # The file has no row counts per stripe: assume equal stripes.
    each = num_rows // max(num_stripes, 1)
    cuts = [(0, num, cut) for _, num, cut in cut_groups([each] * num_stripes, chunk_rows)]
    return Head(schema.names, cuts, dict(zip(schema.names, schema.types, strict=True)))


def _read(file_range: FileRange, on_bad_line: OnBadLine) -> Iterator[pa.RecordBatch]:
    with storage.open_input(file_range.uri) as stream:
        orc = paorc.ORCFile(stream)
        whole_columns = [name for field, name in file_range.columns.items() if field not in file_range.nested]
        # ORC takes every dot for a path: a column with a dot in its name can only be read with all others.
        is_dotted = any("." in name for name in whole_columns)
        names = None if is_dotted else file_range.names
        for stripe in range(*(file_range.cut or (0, orc.nstripes))):
            yield orc.read_stripe(stripe, names)


FORMAT = TableFormat((".orc",), "stripe", _read_head, _read)
