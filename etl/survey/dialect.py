"""Finds how the files of a table are written: format, encoding, comments, delimiter, quotes, header.

Each way that may be is tried by the stage's own reader, on the first rows of a file.
"""

import codecs
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.survey.sample import first_rows
from etl.survey.words import is_known
from etl.tables.data_file import DataFile
from etl.tables.formats import FORMATS, BadLine, format_by_suffix, format_of
from etl.tables.formats.text import default_delimiter
from etl.tables.ranges import find_ranges
from graphmill.config import validated
from graphmill.config.sections.etl import FilesConfig, WholeTableConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables.opened import (
    encoding_by_bytes,
    first_bytes,
    format_by_bytes,
    refuse_binary,
    suffixes_of,
)

_DELIMITERS = ("\t", ",", ";", "|", " ", ":")  # MovieLens has `::`
_COMMENTS = ("#", "%", "//")
_TRIED_ROWS = 10_000
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_SURE, _OFTEN = 3.0, 0.02


@dataclass(frozen=True)
class Dialect:
    """Rules by which the files of a table are read."""

    options: FilesConfig
    doubts: tuple[str, ...] = ()
    """Sentences about what may be otherwise."""


def dialect_of(path: str, file: DataFile) -> Dialect:
    """Find out how to read a file of the table at `path`."""
    content = first_bytes(file.uri)
    given: dict[str, Any] = {"path": path}
    kind = format_by_bytes(content) or format_by_suffix(file.uri)
    if kind is None:
        kind = "json" if content.lstrip().startswith(b"{") else "csv"
    if kind != format_by_suffix(file.uri):
        given["format"] = kind
    if "encoding" in FORMATS[kind].ignores:  # no text
        return Dialect(validated(FilesConfig, given))
    refuse_binary(file.uri, content)
    encoding = _encoding(content)
    if encoding != "utf-8":
        given["encoding"] = encoding
    doubts = [f"encoding {encoding}: the bytes fit others too"] if encoding in ("cp1252", "latin-1") else []
    if kind == "json":
        return Dialect(validated(FilesConfig, given), tuple(doubts))
    lines = content.decode(encoding, errors="replace").removeprefix("\ufeff").splitlines()[:_TRIED_ROWS]
    return _of_text(given, file, [line for line in lines if line.strip()], doubts)


def _encoding(content: bytes) -> str:
    if named := encoding_by_bytes(content):
        return named
    for encoding in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(encoding)().decode(content)  # a character may be cut off
            return encoding
        except UnicodeDecodeError:
            pass
    return "latin-1"


@dataclass(frozen=True)
class _Trial:
    given: dict[str, Any]
    rows: pa.Table
    """The first rows, the first line included."""
    lengths: Counter[int]
    """Number of lines by number of fields."""

    @property
    def width(self) -> int:
        return self.lengths.most_common(1)[0][0]

    @property
    def evenness(self) -> float:
        """Share of the lines with the most frequent number of fields; half, if the first has another."""
        share = 1.0 if self.rows.num_columns == self.width else 0.5
        return share * self.lengths[self.width] / self.lengths.total() if self.width > 1 else 0.0


def _of_text(given: dict[str, Any], file: DataFile, lines: Sequence[str], doubts: list[str]) -> Dialect:
    if not lines:
        raise RawTableError(f"{file.uri}: expected rows, found an empty file")
    comment, num_comments = _comment(lines)
    first = "".join(lines[num_comments:][:2])
    suffix, default = suffixes_of(file.uri)[0], default_delimiter(file.uri)
    trials: list[_Trial] = []
    for delimiter in _DELIMITERS:
        if delimiter == default or (delimiter in first and (delimiter != ":" or first.count("::") > 3)):
            tried = given | ({} if delimiter == default else {"delimiter": delimiter})
            trials += filter(None, [_tried(tried | ({"comment": comment} if comment else {}), file)])
    best = max(trials, key=lambda trial: _rank(trial, suffix, default), default=None)
    if best is None:
        raise RawTableError(f"{file.uri}: cannot be read as text, whatever divides its fields")
    values = [pc.drop_null(column) for column in best.rows.columns]
    quoted = (pc.match_substring_regex(column, r'^".*"$') for column in values if len(column) > 1)
    if best.given.get("delimiter", default) == "\t" and any(pc.all(column).as_py() for column in quoted):
        best = _tried(best.given | {"quoting": True}, file) or best
    if best.rows.num_columns != best.width:
        raise RawTableError(
            f"{file.uri}: expected {best.width} fields in its first row, as in the others, found "
            f"{best.rows.num_columns}: R's write.table needs row.names = FALSE; remove a count of rows"
        )
    score = _header_score(best.rows)
    if abs(score) < _SURE:
        doubts.append(f"the first row {'names the columns' if score > 0 else 'is an edge'}; see `header`")
    options = best.given | ({} if score > 0 else {"header": False})
    return Dialect(validated(FilesConfig, options), tuple(doubts))


def _comment(lines: Sequence[str]) -> tuple[str | None, int]:
    """Find the beginning of comments, which stand above the rows, and the number of such lines."""
    if re.fullmatch("sep=.", lines[0]):  # Excel's line, which names the delimiter
        return "sep=", 1
    for mark in _COMMENTS:
        num = next((at for at, line in enumerate(lines) if not line.startswith(mark)), 0)
        others = [line for line in lines[num:] if line.startswith(mark)]
        is_header = num == 1 and any(
            lines[0].count(delimiter) == lines[1].count(delimiter) > 0
            for delimiter in _DELIMITERS
            if delimiter != " "
        )
        if num and not others and not is_header:
            return mark, num
    return None, 0


def _tried(given: dict[str, Any], file: DataFile) -> _Trial | None:
    """Read the first rows one way; None: that is not how they are written."""
    options = validated(FilesConfig, given | {"header": False})
    lengths: Counter[int] = Counter()

    def count(line: BadLine) -> None:
        lengths[line.num_fields] += 1

    rows = pa.table({})
    try:
        head = format_of(file.uri, options).read_head(file.uri, options, _TRIED_ROWS)
        table = WholeTableConfig(**dict(options) | {"names": tuple(head.names)})
        for file_range in find_ranges(table, file, _TRIED_ROWS)[:1]:
            rows = first_rows(file_range, count, _TRIED_ROWS).rename_columns(head.names)
    except RawTableError:
        pass
    if not rows.num_rows:
        has_quotes = given.get("quoting") is None and given.get("delimiter") != "\t"
        return _tried(given | {"quoting": False}, file) if has_quotes else None
    lengths[rows.num_columns] += rows.num_rows
    return _Trial(given, rows, lengths)


def _rank(trial: _Trial, suffix: str, default: str) -> tuple[float, bool, int, bool, int, bool]:
    """Rank a trial: by its rows, then by its fields, then by the delimiters that are usual."""
    delimiter = trial.given.get("delimiter", default)
    is_default = delimiter == default
    evenness = round(trial.evenness, 2)
    if delimiter == " " and suffix == ".csv" and not _are_codes(trial.rows):
        evenness = 0.0
    rarity = {" ": -1, ":": -2}.get(delimiter, 0)
    fields = [cell or "" for row in trial.rows.slice(0, 100).to_pylist() for cell in row.values()]
    closes_brackets = all(field.count(a) == field.count(b) for field in fields for a, b in ("[]", "{}"))
    return evenness, closes_brackets, rarity, is_default and default == "\t", trial.width, is_default


def _are_codes(rows: pa.Table) -> bool:
    """Tell whether fields are codes, not words: most fields of each column have more than letters."""
    words = r"^[\pL'.,-]*$"
    return all(
        (pc.mean(pc.match_substring_regex(column, words)).as_py() or 0) < 0.5 for column in rows.columns
    )


def _header_score(rows: pa.Table) -> float:
    """Weigh whether the first row names the columns: positive, if it differs from what stands below it."""
    first, below = rows.slice(0, 1), rows.slice(1)
    names = [column[0].as_py() for column in first.columns]
    known = [name for name in names if name]
    score = -4.0 * (len(set(known)) < len(known))
    for number, name in enumerate(names):
        score += _cell_score(name, pc.drop_null(below.column(number)).to_pylist())
    return score


def _cell_score(name: str | None, below: list[str]) -> float:
    numbers = [value for value in below if re.match(_NUMBER, value)]
    if name is None:
        return 8.0 if below[:2] in (["0", "1"], ["1", "2"]) else 0.0  # the index of pandas, row names of R
    if re.match(_NUMBER, name):
        return -3.0
    is_name = is_known(name)
    if len(name) > 64 or not below:
        return 3.0 * is_name - 2.0 * (len(name) > 64)
    if len(numbers) == len(below):
        return 5.0
    shapes = [_shape(value) for value in below]
    again = below.count(name) / len(below)
    score = -3.0 * (1 + (again > _OFTEN)) if again else _surprise(below)
    if not again and _shape(name) not in shapes:
        score += _surprise(shapes)
    if re.search(r"[^\w .:~()\[\]#@-]", name) and _shape(name) in shapes:
        score -= 3.0
    return min(score, 2.0) + 3.0 * is_name


def _surprise(values: list[str]) -> float:
    """Estimate, in bits, how rare a new value is, by how many values occur once."""
    once = sum(count == 1 for count in Counter(values).values())
    return -math.log2(min((once + 1) / len(values), 1.0))


def _shape(text: str) -> str:
    """Outline of a text: letters are `a`, digits `0`, each run of them one character."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text))
