"""Limit of the rows of a parquet file that are in memory at once, from the pages' headers.

A good file may be far smaller than its rows, because a value that all rows share is stored once. So the
memory is bounded, not the ratio. Three things could take any amount of memory:

    a page that unpacks to gigabytes        refused, if its column has only a few megabytes in the row group
    a list of billions of equal elements    refused under the same condition
    a long string that many rows share      read in smaller batches, by the longest string of the dictionary
"""

import io
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats.parquet import thrift

BATCH_BYTES = 256 << 20
"""Limit of the strings of a column in a batch."""

_SMALL_BYTES = 4 << 20  # the largest page, 2 GiB, is not far more than a larger column chunk
_PAGE_BYTES = 128 << 20
_LIST_VALUES = 1 << 24
_BUFFER_BYTES = 1 << 16
WHOLE_BYTES = 1 << 30
_FEW_VALUES = 4096
_MOST_ROWS, _ROWS_A_BYTE = 1 << 24, 4096  # numbers that count up take a thousandth of a byte
_USUAL_RATIO = 16
_DICTIONARY_PAGE = 2  # type of a page
_HEADERS = (5, 7, 8)  # fields of a page's header: of data pages, of dictionaries, of newer data pages


class _Page(NamedTuple):
    kind: int
    unpacked_bytes: int
    packed_bytes: int
    first_byte: int
    num_values: int


def batch_rows(
    parquet: pq.ParquetFile,
    uri: str,
    columns: Iterable[str],
    most_rows: int,
    *,
    groups: Iterable[int] | None = None,
    dictionary_column: str | None = None,
    most_bytes: int = BATCH_BYTES,
) -> int:
    """Number of rows for a batch of these columns, at most `most_rows`.

    `columns` are names, or dotted paths of fields in structs. `groups` are the row groups to read; None: all.
    The `dictionary_column` is read as a dictionary, without repeated values. `most_bytes` limits the strings
    of a column.
    """
    wanted, schema, metadata = set(columns), parquet.schema, parquet.metadata
    rows = most_rows
    with storage.open_input(uri) as stream:
        for group in range(metadata.num_row_groups) if groups is None else groups:
            for number in range(metadata.num_columns):
                chunk, leaf = metadata.row_group(group).column(number), schema.column(number)
                names = set(accumulate(chunk.path_in_schema.split("."), "{}.{}".format))
                if wanted.isdisjoint(names):
                    continue
                pages = _pages(stream, chunk)
                where = f"{uri}: row group {group}, column {chunk.path_in_schema!r}"
                for page in pages:
                    _check_page(page, leaf.max_repetition_level > 0, where)
                has_bytes = leaf.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
                if has_bytes and dictionary_column not in names:
                    longest = _longest(stream, chunk, leaf, pages, most_bytes // most_rows)
                    rows = min(rows, max(1, most_bytes // max(longest, 1)))
    return rows


def check_whole(parquet: pq.ParquetFile, uri: str) -> None:
    """Refuse a file whose rows share strings that are too long to read the whole file."""
    check_rows(parquet, uri)
    num_rows, columns = parquet.metadata.num_rows, parquet.schema_arrow.names
    if num_rows and batch_rows(parquet, uri, columns, num_rows, most_bytes=WHOLE_BYTES) < num_rows:
        raise FormatError(f"{uri}: its {num_rows} rows share strings that are too long to read them at once")


def check_rows(parquet: pq.ParquetFile, uri: str) -> None:
    """Refuse a file whose footer counts more rows than a file of its size can have."""
    status = storage.status(uri)
    size_bytes = status.size_bytes if status else 0
    if parquet.metadata.num_rows > _MOST_ROWS + _ROWS_A_BYTE * size_bytes:
        raise FormatError(
            f"{uri}: its footer says {parquet.metadata.num_rows} rows, which {size_bytes} bytes do not hold"
        )


def _check_page(page: _Page, is_list: bool, where: str) -> None:
    if page.unpacked_bytes > _PAGE_BYTES:
        raise FormatError(
            f"{where}: expected pages of {_PAGE_BYTES} bytes at the most, found one that says it unpacks to "
            f"{page.unpacked_bytes}; write the table with smaller pages or row groups"
        )
    if is_list and page.num_values > max(_LIST_VALUES, 8 * page.unpacked_bytes):
        raise FormatError(
            f"{where}: expected lists of what is there, found {page.num_values} elements in a page of "
            f"{page.unpacked_bytes} bytes; write the table with smaller pages or row groups"
        )


def _longest(stream: Any, chunk: Any, leaf: Any, pages: list[_Page], harmless_bytes: int) -> int:
    """Upper bound of the longest value that many rows may share; 0: no value matters."""
    longest = 0
    if "DELTA_BYTE_ARRAY" in chunk.encodings:  # a value may be the one before it, in one bit
        longest = max([BATCH_BYTES >> 12, *(page.unpacked_bytes >> 2 for page in pages)])
    for page in pages:
        if page.kind == _DICTIONARY_PAGE and leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
            longest = max(longest, int(leaf.length))
        elif page.kind == _DICTIONARY_PAGE:
            at_most = page.unpacked_bytes - 4 * page.num_values  # each value has its length before it
            if at_most > harmless_bytes:
                at_most = min(at_most, _longest_of(stream, chunk, page)) if _is_searched(page) else 0
            longest = max(longest, at_most)
    return longest


def _is_searched(page: _Page) -> bool:
    """Tell whether to search the dictionary for its longest value, at about 100 ns per value.

    A dictionary of many values that hardly pack contains ids: then the file itself is large, and Arrow ends
    a batch at 2 GiB.
    """
    return page.num_values <= _FEW_VALUES or page.unpacked_bytes > _USUAL_RATIO * page.packed_bytes


def _longest_of(stream: Any, chunk: Any, page: _Page) -> int:
    packed = stream.read_at(page.packed_bytes, page.first_byte)
    codec = {"LZ4": "lz4_raw"}.get(chunk.compression, chunk.compression.lower())
    try:
        is_plain = codec == "uncompressed"
        content = packed if is_plain else pa.Codec(codec).decompress(packed, page.unpacked_bytes)
    except (pa.ArrowException, OSError):
        return page.unpacked_bytes
    content, position, longest = memoryview(content), 0, 0
    length_at = struct.Struct("<I").unpack_from
    last = len(content) - 4
    while position <= last:
        (length,) = length_at(content, position)
        position += 4 + length
        if length > longest:
            longest = length
            last = len(content) - 4 - longest  # nothing that begins later is longer
    return longest


def _pages(stream: Any, chunk: Any) -> list[_Page]:
    """The pages of a column chunk, or only the dictionary of a large chunk whose values share no more."""
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    is_small, pages, position = size < _SMALL_BYTES, list[_Page](), start
    while position < start + size:
        content = stream.read_at(size if is_small else _BUFFER_BYTES, position)
        if not (found := list(_iter_pages(content, position))):
            break
        if not is_small and "DELTA_BYTE_ARRAY" not in chunk.encodings:
            return found[:1] if found[0].kind == _DICTIONARY_PAGE else []
        pages += found
        position = found[-1].first_byte + max(found[-1].packed_bytes, 0)
    return pages


def _iter_pages(content: bytes, start: int) -> Iterator[_Page]:
    """The pages whose headers are in `content`, which begins at byte `start` of the file."""
    stream, position = io.BytesIO(content), 0
    while position < len(content):
        stream.seek(position)
        try:
            header = thrift.read(stream)
            kind, unpacked_bytes, packed_bytes = (header[field][1] for field in (1, 2, 3))
            of_kind: Any = next((header[field][1] for field in _HEADERS if field in header), {})
            num_values = of_kind[1][1] if of_kind else 0
        except (LookupError, ValueError, TypeError, ArithmeticError, RecursionError):
            return  # cut off, or damaged: pyarrow says what is wrong
        position = stream.tell()
        yield _Page(kind, unpacked_bytes, packed_bytes, start + position, num_values)
        position += max(packed_bytes, 0)
