"""Files of ids and of pairs that the user gives, read in parts and cut into pieces for the tasks.

    FILE.parquet, a folder of them      ids: the column `id`, else the first column of strings
    FILE.csv, FILE.csv.gz, ...          the same, with a header row; without a column `id` the first line is
                                        read as an id too: who knows the ids tells (`may_have_header`)
    any other name                      ids alone: one on each line

Pairs are the columns `lhs` and `rhs`, and maybe `relation`. Ids are of the types that etl takes.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import raw_tables
from graphmill.formats.parquet import column_type, files_at, iter_columns, open_parquet
from graphmill.formats.raw_ids import is_text, may_be_ids, strings_of
from graphmill.formats.raw_tables.columns import CSV, LINES, column_names, iter_strings
from graphmill.formats.raw_tables.opened import suffixes_of

READ_ROWS = 1 << 16


def iter_ids(uri: str) -> Iterator[pa.Table]:
    """Read ids: tables of one column `id`, string. The first may be a header: see `may_have_header`."""
    for file in files(uri):
        is_lines = not (file.endswith(".parquet") or _is_csv(file))
        fields = pa.schema([]) if is_lines else _fields(file)
        if is_lines or (may_have_header(file) and fields.names):
            for firsts in iter_strings(file, [0], LINES if is_lines else CSV, has_header=False):
                yield pa.table(firsts, ["id"])
            continue
        listed = ", ".join(fields.names) or "none"
        strings = [field.name for field in fields if is_text(field.type)]
        column = "id" if "id" in fields.names else next(iter(strings), None)
        if column is None:
            raise FormatError(f"{file}: expected a column of strings, found {listed}")
        for table in _columns(file, fields, [column]):
            yield table.rename_columns(["id"])


def may_have_header(uri: str) -> bool:
    """Tell whether the first of the ids may be the name of their column: in CSV without a column `id`."""
    return _is_csv(uri) and "id" not in _fields(uri).names


def iter_pairs(uri: str) -> Iterator[pa.Table]:
    """Read pairs: tables of the columns lhs, rhs and, where the file has it, relation; all are strings."""
    expected: list[str] = []
    for file in files(uri):
        if not (file.endswith(".parquet") or _is_csv(file)):
            raise FormatError(f"{file}: expected pairs in FILE.parquet or FILE.csv")
        fields = _fields(file)
        listed = ", ".join(fields.names) or "none"
        if not {"lhs", "rhs"} <= set(fields.names):
            raise FormatError(f"{file}: expected the columns lhs and rhs, found {listed}")
        chosen = [name for name in ("lhs", "relation", "rhs") if name in fields.names]
        expected = expected or chosen
        if chosen != expected:
            raise FormatError(f"{file}: expected the columns {', '.join(expected)}, as files before it have")
        yield from _columns(file, fields, chosen)


def cut(tables: Iterable[pa.Table], folder: str, rows: int, most_bytes: int) -> list[str]:
    """Write tables of one schema into files of at most so many rows; return the files."""
    uris: list[str] = []
    for piece in raw_tables.cut(tables, rows, most_bytes):
        uris.append(storage.join(folder, f"piece-{len(uris):05d}.parquet"))
        with storage.atomic_output(uris[-1]) as stream:
            pq.write_table(piece, stream, compression="zstd")
    return uris


def read_piece(uri: str) -> pa.Table:
    """Read a file of `cut`."""
    with open_parquet(uri) as parquet:
        return parquet.read()


def files(uri: str, option: str = "") -> list[str]:
    """List the files that a path of the user names, which must be there; of a folder, its parquet files."""
    if not (uris := files_at(uri)):
        place = f"{option} {uri}".lstrip()
        raise NotFoundError(f"{place}: expected a file, or a folder with *.parquet, found no such file")
    return uris


def _is_csv(uri: str) -> bool:
    return suffixes_of(uri)[0] == ".csv"


def _fields(uri: str) -> pa.Schema:
    if uri.endswith(".parquet"):
        with open_parquet(uri) as parquet:
            return parquet.schema_arrow
    return pa.schema([(name, pa.string()) for name in column_names(uri)])


def _columns(uri: str, fields: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    for name in columns:
        kind = column_type(fields, name, uri)
        if not may_be_ids(kind) or pa.types.is_null(kind):
            raise FormatError(f"{uri}: column {name!r}: expected strings or integers, found {kind}")
    as_strings = pa.schema([(name, pa.string()) for name in columns])
    if _is_csv(uri):
        for texts in iter_strings(uri, [fields.names.index(name) for name in columns]):
            yield pa.table(texts, schema=as_strings)
        return
    with open_parquet(uri, storage.manifest_of_table(uri)) as parquet:
        for _, arrays in iter_columns(parquet, uri, columns, READ_ROWS):
            try:
                strings = list(map(strings_of, arrays))
            except pa.ArrowInvalid as error:
                raise FormatError(f"{uri}: expected ids in UTF-8: {error}") from error
            yield pa.table(strings, schema=as_strings)
