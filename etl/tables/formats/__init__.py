"""Formats of raw tables (parquet, ORC, JSON lines, text): one module per format, listed here and in
`FileFormat` of the section `etl`.
"""

from etl.tables.formats import json_lines, orc, parquet, text
from etl.tables.formats.base import BadLine, FileRange, Head, TableFormat
from graphmill.config.sections.etl import FileFormat, FilesConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables.opened import CODECS, suffixes_of

FORMATS: dict[FileFormat, TableFormat] = {
    "parquet": parquet.FORMAT,
    "orc": orc.FORMAT,
    "csv": text.FORMAT,
    "json": json_lines.FORMAT,
}


def format_of(uri: str, table: FilesConfig, snapshot: str = "") -> TableFormat:
    """Return the file's format: as configured, else by its suffix; files of a snapshot are parquet."""
    if snapshot or table.format == "delta" or table.format == "iceberg":
        return parquet.FORMAT
    name = table.format if table.format != "auto" else format_by_suffix(uri)
    if name is None:
        known = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
        raise RawTableError(
            f"{uri}: no format has this suffix (known: {known}, text and JSON also "
            f"with {', '.join(CODECS)}); set the table's format: {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def format_by_suffix(uri: str) -> FileFormat | None:
    """Return the name of the format that a file's suffix stands for; None: no format has it."""
    suffix, *_ = suffixes_of(uri)
    return next((name for name, kind in FORMATS.items() if suffix in kind.suffixes), None)
