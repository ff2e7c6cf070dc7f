"""Cuts text into blocks of whole rows, which a parser reads one by one, and finds quotes that nothing closes.

A quote opens a field only at the field's beginning, and is doubled inside it, as in RFC 4180; elsewhere it is
a character of its field. After the quote that closes a field comes a delimiter or the end of the row. Text
that breaks these rules has a quote too many: read on, its row would swallow the rows after it.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from graphmill.errors import RawTableError
from graphmill.storage.as_json import Int64

ROW_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
_COUNTED = 1000  # rows, in 3 ms
_QUOTE, _NEWLINE = b'"\n'
_LINE = re.compile(rb"[^\r\n]*+(?:\r\n?|\n)")
_Kind = Literal["row", "comment", "fault"]


@dataclass(frozen=True)
class Syntax:
    """Rules by which text is cut into rows."""

    delimiter: str = ","
    has_quotes: bool = False
    comment: str | None = None
    """Beginning of lines that are no rows."""
    max_field_lines: int = 1000


@dataclass(frozen=True)
class Fault:
    """A row that breaks the rules of quotes."""

    line: int
    """Number from 1 of the line in which the row begins."""
    text: bytes
    """That line, with its end; the next row begins after it."""
    problem: str


class RawRows:
    """The rows of a text, block by block.

    Args:
        read: reads about that many bytes, and none at the end.
        uri: place of the text, for messages.

    Attributes:
        text: what was read and not yielded.
        is_whole: whether the rest of the text was read.
    """

    def __init__(self, read: Callable[[int], bytes], syntax: Syntax, uri: str) -> None:
        self.text, self.is_whole = b"", False
        self._read, self.syntax, self._uri = read, syntax, uri
        self._comment = (syntax.comment or "").encode()
        self._line = 1
        self._is_end = np.zeros(256, bool)  # of a field
        self._is_end[list(f"{syntax.delimiter}\r\n".encode())] = True
        self._is_beside_quote = self._is_end.copy()  # outside a field, or in one and doubled
        self._is_beside_quote[_QUOTE] = True
        self._delimiter = syntax.delimiter.encode()
        delimiter = re.escape(self._delimiter)
        plain = rb"[^%b\r\n]*+" % delimiter
        quoted = rb'"[^"]*+(?:""[^"]*+)*+"'
        field = rb'(?:%b(?=[%b\r\n])|(?!")%b)' % (quoted, delimiter, plain) if syntax.has_quotes else plain
        self._plain, self._quoted = re.compile(plain), re.compile(quoted)
        self._row = re.compile(rb"(?:%b%b)*+%b(?:\r\n?|\n)" % (field, delimiter, field))

    def first(self, *, is_header: bool) -> tuple[bytes, int]:
        """Read up to the first row that is not blank; return it and the bytes up to its end; `b""`: none."""
        while True:
            for kind, start, end, problem in self._scan():
                if kind == "row" and (row := self.text[start:end].strip(b"\r\n")):
                    return row + b"\n", end
                if kind == "fault" and is_header:
                    line = 1 + self.text.count(b"\n", 0, start)
                    raise RawTableError(f"{self._uri}: line {line}: {problem}")
            if self.is_whole:
                return b"", len(self.text)
            self._fill()

    def are_over(self, start: int) -> bool:
        """Tell whether there are only blank lines from `start` on."""
        while not self.is_whole and not self.text[start:].strip(b"\r\n"):
            self._fill()
        return not self.text[start:].strip(b"\r\n")

    def count(self, start: int) -> tuple[int, int]:
        """Count the first rows that end in the text from `start` on, and tell where they end."""
        if self.syntax.has_quotes and b'"' in self.text:  # a field may have line ends
            first = [(kind != "comment", end) for kind, _, end, _ in islice(self._scan(start), _COUNTED)]
            return sum(is_row for is_row, _ in first), first[-1][1] if first else len(self.text)
        return self.text.count(b"\n", start) or self.text.count(b"\r", start), len(self.text)

    def blocks(self, skipped_bytes: int = 0) -> Iterator[bytes | Fault]:
        """Yield the rows that begin after the first bytes in blocks, without comments; and faulty rows."""
        while len(self.text) < skipped_bytes and not self.is_whole:
            self._fill()
        self._drop(skipped_bytes)
        while self.text or not self.is_whole:
            end = self._end_of_sound_rows()
            if end:
                yield self.text[:end]
                self._drop(end)
            elif not (yield from self._row_by_row()):
                if self.is_whole:
                    return
                self._fill()

    def _fill(self) -> None:
        if len(self.text) >= ROW_BYTES:
            raise RawTableError(
                f"{self._uri}: a row takes more than {ROW_BYTES >> 20} MiB, the most that is read at once; "
                "does the file have line ends?"
            )
        content = self._read(min(CHUNK_BYTES, ROW_BYTES - len(self.text)))
        self.is_whole = not content
        if self.is_whole and self.text and not self.text.endswith(b"\n"):
            content = b"\n"
        self.text += content

    def _drop(self, num_bytes: int) -> None:
        if self.syntax.has_quotes:
            is_newline = np.frombuffer(self.text, np.uint8)[:num_bytes] == _NEWLINE
            self._line += int(np.count_nonzero(is_newline))
        self.text = self.text[num_bytes:]

    def _row_by_row(self) -> Generator[bytes | Fault, None, int]:
        """Yield the whole rows and the faults at the text's beginning; return the number of their bytes."""
        rows: list[bytes] = []
        num_bytes = 0
        for kind, start, end, problem in self._scan():
            if kind == "row":
                rows.append(self.text[start:end])
            elif kind == "fault":
                if rows:
                    yield b"".join(rows)
                    rows = []
                yield Fault(self._line + self.text.count(b"\n", 0, start), self.text[start:end], problem)
            num_bytes = end
        if rows:
            yield b"".join(rows)
        self._drop(num_bytes)
        return num_bytes

    def _scan(self, start: int = 0) -> Iterator[tuple[_Kind, int, int, str]]:
        """Yield kind, start, end and problem of each row and comment that ends in the text."""
        text = self.text
        while start < len(text):
            kind: _Kind = "row"
            row, problem = self._row.match(text, start), ""
            if self._comment and text.startswith(self._comment, start):
                kind = "comment"
            elif row is None or text.count(b"\n", start, row.end()) >= self.syntax.max_field_lines:
                problem = self._problem(start)
                kind = "fault" if problem else "row"
            if kind != "row":
                row = _LINE.match(text, start)
            if row is None or (row.end() == len(text) and text.endswith(b"\r")):  # a newline may follow
                return
            yield kind, start, row.end(), problem
            start = row.end()

    def _problem(self, start: int) -> str:
        if not self.syntax.has_quotes:
            return ""
        text, at = self.text, start
        is_rest = self.is_whole or (start == 0 and len(text) >= ROW_BYTES)
        while True:
            if text.startswith(b'"', at):
                closed = self._quoted.match(text, at)
                end = closed.end() if closed else len(text)
                if text.count(b"\n", at, end) >= self.syntax.max_field_lines:
                    most = self.syntax.max_field_lines
                    return f"a quoted field that begins there has more than {most} lines (max_field_lines)"
                if closed is None:
                    return "the quote of a field that begins there is never closed" if is_rest else ""
                if end < len(text) and not self._is_end[text[end]]:
                    return (
                        "a quoted field that begins there goes on after its closing quote; close it before a "
                        'delimiter or a line end, and double the quotes in it: "" (Spark: escape=\'"\')'
                    )
            else:
                plain = self._plain.match(text, at)
                end = plain.end() if plain else at
            if text[end : end + 1] != self._delimiter:
                return ""
            at = end + 1

    def _end_of_sound_rows(self) -> int | None:
        """End of the last row that ends in the text; None: look row by row."""
        text, comment = self.text, self._comment
        if comment and (text.startswith(comment) or any(end + comment in text for end in (b"\n", b"\r"))):
            return None
        if not self.syntax.has_quotes or b'"' not in text:
            # A `\r` that a newline may follow ends no line.
            return text.rfind(b"\n") + 1 or text.rfind(b"\r", 0, len(text) - 1) + 1
        byte_N = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(byte_N == _QUOTE)
        opens, closes = quotes[0::2], quotes[1::2]
        before = byte_N.take(opens - 1, mode="wrap")
        before[0] = before[0] if opens[0] else _QUOTE
        after = byte_N.take(closes + 1, mode="clip")
        if not (self._is_beside_quote.take(before).all() and self._is_beside_quote.take(after).all()):
            return None
        if self._has_long_field(opens, closes):
            return None
        return self._last_outside(quotes, b"\n", len(text)) or self._last_outside(
            quotes, b"\r", len(text) - 1
        )

    def _has_long_field(self, opens: Int64, closes: Int64) -> bool:
        ends = np.append(closes, len(self.text))[: len(opens)]
        is_new = np.append(True, opens[1:] != ends[:-1] + 1)  # not after the first of a doubled quote
        if not is_new.all():
            opens, ends = opens[is_new], ends[np.append(is_new[1:], True)]
        limit = self.syntax.max_field_lines
        is_large = ends - opens >= limit
        long = np.flatnonzero(is_large) if is_large.any() else ()
        return any(self.text.count(b"\n", int(opens[at]), int(ends[at])) >= limit for at in long)

    def _last_outside(self, quotes: Int64, sign: bytes, stop: int) -> int:
        """End of the last such sign before `stop` that is in no quoted field; 0: there is none."""
        while (at := self.text.rfind(sign, 0, stop)) >= 0:
            num_before = int(np.searchsorted(quotes, at))
            if num_before % 2 == 0:
                return at + 1
            stop = int(quotes[num_before - 1])
        return 0
