"""Files of lines, which text and JSON share: compression, encodings, and cuts into ranges of bytes.

A line belongs to the range that holds the line's first byte.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa

from etl.config import FilesConfig
from etl.tables.formats.base import Cut, reading
from etl.tables.formats.encoded import Utf8Stream, has_lines_of_bytes
from graphmill import storage

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
SAMPLE_BYTES = 1 << 20
MIN_RANGE_BYTES = 1 << 20
_TYPICAL_COMPRESSION = 5


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
def open_text(uri: str, table: FilesConfig, cut: Cut = None) -> Iterator[Utf8Stream]:
    """Open the lines of a file that begin in a range, decompressed and as UTF-8."""
    with _open(uri, cut) as stream:
        yield Utf8Stream(stream, uri, table.encoding, is_start=cut is None or cut[0] == 0)


@contextmanager
def _open(uri: str, cut: Cut) -> Iterator[pa.NativeFile]:
    codec = suffixes_of(uri)[1]
    with storage.open_input(uri) as stream:
        if cut is not None:
            start, stop = (_line_start(stream, offset) for offset in cut)
            stream = stream.get_stream(start, stop - start)
        elif codec and stream.size():
            stream = pa.CompressedInputStream(stream, CODECS[codec])
        yield stream


def _line_start(stream: pa.NativeFile, offset: int) -> int:
    """Offset of the first line that begins at `offset` or after it."""
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


def cut_lines(
    uri: str, table: FilesConfig, sample: bytes, head_bytes: int, chunk_rows: int, *, cuttable: bool
) -> list[tuple[int, int, Cut]]:
    """Cut a file of lines whose rows begin at byte `head_bytes`; `sample` is the file's beginning."""
    line_bytes = len(sample) / max(sample.count(b"\n"), 1)
    status = storage.status(uri)
    num_bytes = status.size_bytes if status else 0
    if suffixes_of(uri)[1]:
        return [(0, int(num_bytes * _TYPICAL_COMPRESSION / line_bytes), None)]
    if not (cuttable and has_lines_of_bytes(table.encoding)):
        return [(0, int(num_bytes / line_bytes), None)]
    # Nine tenths: where lines get shorter, a range does not end with a small chunk.
    range_bytes = max(int(line_bytes * chunk_rows * 0.9), MIN_RANGE_BYTES)
    starts = [*range(head_bytes, num_bytes, range_bytes), num_bytes]
    return [(0, int((stop - start) / line_bytes), (start, stop)) for start, stop in pairwise(starts)]
