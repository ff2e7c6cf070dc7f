"""Files of lines, which text and JSON share: compression, and cuts into ranges of bytes.

A line belongs to the range that holds the line's first byte.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa

from etl.tables.formats.base import Cut, FileRange, reading
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


def read_sample(uri: str) -> bytes:
    """Read the beginning of a file, decompressed."""
    with _open(uri) as stream, reading(uri):
        sample: bytes = stream.read(SAMPLE_BYTES)
    return sample


@contextmanager
def open_lines(file_range: FileRange) -> Iterator[pa.NativeFile | None]:
    """Open the lines that begin in a range, decompressed; None: no line begins there."""
    with _open(file_range.uri) as stream:
        if file_range.cut is None:
            yield stream
            return
        start, stop = (_line_start(stream, offset) for offset in file_range.cut)
        yield stream.get_stream(start, stop - start) if stop > start else None


@contextmanager
def _open(uri: str) -> Iterator[pa.NativeFile]:
    codec = suffixes_of(uri)[1]
    with storage.open_input(uri) as stream:
        yield pa.CompressedInputStream(stream, CODECS[codec]) if codec else stream


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
    uri: str, sample: bytes, head_bytes: int, chunk_rows: int, *, cuttable: bool
) -> list[tuple[int, int, Cut]]:
    """Cut a file of lines whose rows begin at byte `head_bytes`; `sample` is the file's beginning."""
    line_bytes = len(sample) / max(sample.count(b"\n"), 1)
    status = storage.status(uri)
    num_bytes = status.size_bytes if status else 0
    if suffixes_of(uri)[1]:
        return [(0, int(num_bytes * _TYPICAL_COMPRESSION / line_bytes), None)]
    if not cuttable:
        return [(0, int(num_bytes / line_bytes), None)]
    # Nine tenths: where lines get shorter, a range does not end with a small chunk.
    range_bytes = max(int(line_bytes * chunk_rows * 0.9), MIN_RANGE_BYTES)
    starts = [*range(head_bytes, num_bytes, range_bytes), num_bytes]
    return [(0, int((stop - start) / line_bytes), (start, stop)) for start, stop in pairwise(starts)]
