"""Files of lines, opened: compression by the suffix, encodings, and ranges of bytes.

A line belongs to the range that holds the line's first byte.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from graphmill import storage
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.formats.raw_tables.encoded import Utf8Stream

Cut = tuple[int, int] | None

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
SAMPLE_BYTES = 1 << 20
_OTHER_CODECS = (".deflate", ".snappy", ".lzo", ".lzo_deflate", ".xz", ".zip")
_LZ4_FRAME = b"\x04\x22\x4d\x18"  # Hadoop's own files of this suffix have none


def suffixes_of(uri: str) -> tuple[str, str]:
    """Return the suffix of the format, and the suffix of the compression (`""`: none)."""
    stem, codec = _split_suffix(storage.name(uri))
    if codec not in CODECS:
        return codec, ""
    return _split_suffix(stem)[1], codec


def _split_suffix(name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix.lower()) if dot else (name, "")


def first_bytes(uri: str) -> bytes:
    """Read the beginning of a file, decompressed, as it is."""
    with _open(uri, None) as stream, reading(uri):
        content: bytes = stream.read(SAMPLE_BYTES)
    return content


@contextmanager
def open_text(uri: str, encoding: str = "utf-8", cut: Cut = None) -> Iterator[Utf8Stream]:
    """Open the lines of a file that begin in a range, decompressed and as UTF-8."""
    with _open(uri, cut) as stream:
        yield Utf8Stream(stream, uri, encoding, is_start=cut is None or cut[0] == 0)


@contextmanager
def _open(uri: str, cut: Cut) -> Iterator[pa.NativeFile]:
    suffix, codec = suffixes_of(uri)
    with storage.open_input(uri) as stream:
        is_foreign = codec == ".lz4" and stream.size() and stream.read_at(4, 0) != _LZ4_FRAME
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
