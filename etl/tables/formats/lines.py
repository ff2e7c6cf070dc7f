"""Cuts files of lines, which text and JSON share, into ranges of bytes."""

from itertools import pairwise

from graphmill import storage
from graphmill.config.sections.etl import FilesConfig
from graphmill.formats.raw_tables.encoded import has_lines_of_bytes
from graphmill.formats.raw_tables.opened import Cut, suffixes_of

MIN_RANGE_BYTES = 1 << 20
_TYPICAL_COMPRESSION = 5


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
