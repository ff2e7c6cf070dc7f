"""Files of lines, opened: compression by the suffix, ranges of bytes, text of any encoding as UTF-8 without a
byte-order mark; formats by the first bytes of a file.

A line belongs to the range that holds the line's first byte.
"""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pyarrow as pa

from graphmill import storage
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading

Cut = tuple[int, int] | None

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
SAMPLE_BYTES = 1 << 20
_OTHER_CODECS = (".deflate", ".snappy", ".lzo", ".lzo_deflate", ".xz", ".zip")
_LZ4_FRAME = b"\x04\x22\x4d\x18"  # Hadoop's own files of this suffix have none

# UTF-32 first: its mark in little-endian order begins like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MARK_BYTES = 4
# By which of the first bytes are not null:
_WITHOUT_MARK = {
    b"\1\0\1\0": "utf-16-le",
    b"\0\1\0\1": "utf-16-be",
    b"\1\0\0\0": "utf-32-le",
    b"\0\0\0\1": "utf-32-be",
}
BinaryFormat = Literal["parquet", "orc"]
_FORMATS: dict[bytes, BinaryFormat] = {b"PAR1": "parquet", b"ORC": "orc"}
_SUFFIXES = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\x04\x22\x4d\x18": ".lz4"}


def is_utf8(encoding: str) -> bool:
    """Tell whether a file of this encoding is read as it is."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def has_lines_of_bytes(encoding: str) -> bool:
    """Tell whether the byte of a newline is one wherever it stands: such a file can be cut there."""
    characters = bytes(range(256)).decode(encoding, "replace")
    return len(characters) == 256 and characters[0x0A] == "\n" and characters.count("\n") == 1


def encoding_by_bytes(content: bytes) -> str | None:
    """Return the encoding that the first bytes of a text tell; None: UTF-8, or one of single bytes."""
    named = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    return named or _WITHOUT_MARK.get(bytes(map(bool, content[:_MARK_BYTES])))


class Utf8Stream:
    """A stream of bytes of an encoding as UTF-8; at the file's start, it may have a byte-order mark."""

    def __init__(self, stream: pa.NativeFile, uri: str, encoding: str, *, is_start: bool) -> None:
        self._stream, self.uri, self._encoding, self._is_start = stream, uri, encoding, is_start
        self._decoder = None if is_utf8(encoding) else codecs.getincrementaldecoder(encoding)()
        self._num_bytes, self._mark = 0, b""

    def read(self, num_bytes: int) -> bytes:
        """Read some bytes, about `num_bytes`; none at the end."""
        while True:
            content = self._content(num_bytes)
            text = content if self._decoder is None else self._decoded(self._decoder, content)
            if text or not content:
                return text

    def raw(self, head: bytes) -> bytes:
        """Return the beginning of the text as it is in the file, unpacked."""
        return self._mark + head if self._decoder is None else head.decode().encode(self._encoding, "replace")

    def _content(self, num_bytes: int) -> bytes:
        content: bytes = self._stream.read(num_bytes)
        if self._is_start:
            self._is_start = False
            while len(content) < _MARK_BYTES and (more := self._stream.read(_MARK_BYTES)):
                content += more
            refuse_binary(self.uri, content)
            if self._decoder is None:
                if named := encoding_by_bytes(content):
                    raise RawTableError(
                        f"{self.uri}: expected text in {self._encoding}, found the first bytes of {named}; "
                        f"set the table's encoding: {named}"
                    )
                if content.startswith(codecs.BOM_UTF8):
                    self._mark, content = content[:3], content[3:]
                return content or self._content(num_bytes)
        return content

    def _decoded(self, decoder: codecs.IncrementalDecoder, content: bytes) -> bytes:
        is_first = not self._num_bytes
        self._num_bytes += len(content)
        try:
            text = decoder.decode(content, final=not content)
            return (text.removeprefix("\ufeff") if is_first else text).encode()
        except UnicodeError as error:
            at = ""
            if isinstance(error, UnicodeDecodeError):
                at = f" at byte {self._num_bytes - len(error.object) + error.start}"
            raise RawTableError(
                f"{self.uri}: expected text in {self._encoding}, found other bytes{at}: {error}; correct "
                "the table's encoding"
            ) from error


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
    if content.startswith(b"PK\3\4"):
        raise RawTableError(f"{uri}: expected text, found a zip file, as .xlsx is; save the table as CSV")


def suffixes_of(uri: str) -> tuple[str, str]:
    """Return the suffix of the format, and the suffix of the compression (`""`: none)."""
    stem, codec = _split_suffix(storage.name(uri))
    return (_split_suffix(stem)[1], codec) if codec in CODECS else (codec, "")


def _split_suffix(name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix.lower()) if dot else (name, "")


def first_bytes(uri: str) -> bytes:
    """Read the beginning of a file, decompressed, as it is."""
    with _open(uri, None) as stream, reading(uri):
        return bytes(stream.read(SAMPLE_BYTES))


@contextmanager
def open_text(uri: str, encoding: str = "utf-8", cut: Cut = None) -> Iterator[Utf8Stream]:
    """Open the lines of a file that begin in a range, decompressed and as UTF-8."""
    with _open(uri, cut) as stream:
        yield Utf8Stream(stream, uri, encoding, is_start=cut is None or cut[0] == 0)


@contextmanager
def _open(uri: str, cut: Cut) -> Iterator[pa.NativeFile]:
    suffix, codec = suffixes_of(uri)
    with storage.open_input(uri) as stream:
        is_foreign = codec == ".lz4" and stream.read(len(_LZ4_FRAME)) not in (b"", _LZ4_FRAME)
        stream.seek(0)
        if suffix in _OTHER_CODECS or is_foreign:
            raise RawTableError(
                f"{uri}: {'its form of .lz4' if is_foreign else suffix} cannot be unpacked; write the text "
                f"again without compression, or with {', '.join(CODECS)} (Spark: compression gzip or zstd)"
            )
        if cut is not None:
            start, stop = (_line_start(stream, offset) for offset in cut)
            stream = stream.get_stream(start, stop - start)
        elif codec and stream.size():
            stream = pa.CompressedInputStream(stream, CODECS[codec])
        yield stream


def _line_start(stream: pa.NativeFile, offset: int) -> int:
    if offset == 0:
        return 0
    at = offset - 1
    while True:
        content: bytes = stream.read_at(1 << 16, at)
        end = content.find(b"\n")
        if end >= 0:
            return at + end + 1
        if not content:
            return at
        at += len(content)
