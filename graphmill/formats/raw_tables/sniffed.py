"""Recognises formats and compression by the first bytes of a file."""

from typing import Literal

from graphmill.errors import RawTableError

BinaryFormat = Literal["parquet", "orc"]
_FORMATS: dict[bytes, BinaryFormat] = {b"PAR1": "parquet", b"ORC": "orc"}
_SUFFIXES = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\x04\x22\x4d\x18": ".lz4"}


def format_by_bytes(content: bytes) -> BinaryFormat | None:
    """Return the format that has these first bytes; None: text, or another one."""
    return next((name for magic, name in _FORMATS.items() if content.startswith(magic)), None)


def refuse_binary(uri: str, content: bytes) -> None:
    """Refuse a file that is to be read as text, and has the first bytes of another format."""
    if kind := format_by_bytes(content):
        raise RawTableError(
            f"{uri}: expected text, found the first bytes of {kind}; set the table's format: {kind}"
        )
    if suffix := next((name for magic, name in _SUFFIXES.items() if content.startswith(magic)), None):
        raise RawTableError(
            f"{uri}: expected text, found compressed bytes; give the file a name that ends with {suffix}"
        )
