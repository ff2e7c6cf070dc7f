"""Text and JSON that others write comes back row by row, however it is cut, and the quotes that spoil it."""

import csv
import gzip
import io
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.tables.data_file import plain_file
from etl.tables.formats import base as line_files
from etl.tables.ranges import balanced, find_ranges
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import rows as text_rows
from graphmill.formats.raw_tables.rows import Fault, Syntax
from tests.etl.tables.test_read_tables import rows_of_ranges, table_of
from tests.etl.tables.test_text import quarantined, read

FIELD = st.text("ab\"',;|\t\r\n #\\é€\U0001f600", min_size=1, max_size=9)
PLAIN = st.text("ab\"',;| #\\é€\U0001f600", min_size=1, max_size=9)
Writer = Literal["csv", "pandas"]


def write(path: Path, writer: Writer, rows: list[tuple[str, ...]], form: dict[str, Any]) -> None:
    """Write rows of two columns and one that nobody asks for."""
    if writer == "pandas":
        frame = pd.DataFrame(rows, columns=["l", "r", "z"])
        frame.to_csv(path, index=False, header=form["header"], sep=form["sep"], lineterminator=form["end"],
                     quoting=form["quoting"], compression="infer", encoding=form["encoding"])  # fmt: skip
        return
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding=form["encoding"], newline="") as file:
        lines = csv.writer(file, delimiter=form["sep"], lineterminator=form["end"], quoting=form["quoting"])
        lines.writerows([("l", "r", "z")] * form["header"] + rows)


@pytest.mark.slow
@given(
    files=st.lists(st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=12), min_size=1, max_size=3),
    writer=st.sampled_from(Writer.__args__),
    compression=st.sampled_from(["", ".gz"]),
    sep=st.sampled_from([",", ";", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    header=st.booleans(),
    chunk_bytes=st.integers(1, 50) | st.just(1 << 20),
    chunk_rows=st.integers(1, 9),
)
def test_quoted_text(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[str, str, str]]], writer: Writer,
    compression: str, sep: str, end: str, quoting: int, encoding: str, header: bool,
    chunk_bytes: int, chunk_rows: int,
) -> None:  # fmt: skip
    if end != "\r\n" and any(
        set(field) & {"\r", "\n"} for rows in files for row in rows for field in row
    ):  # `csv` quotes only the line end that it writes
        quoting = csv.QUOTE_ALL
    folder = tmp_path_factory.getbasetemp()
    form = {"sep": sep, "end": end, "quoting": quoting, "header": header, "encoding": encoding}
    found: Counter[Any] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        for number, rows in enumerate(files):
            path = folder / f"{number}.csv{compression}"
            write(path, writer, rows, form)
            columns = {"lhs": "l", "rhs": "r"} if header else {}
            table = table_of(path, delimiter=sep, quoting=True, header=header, encoding=encoding, **columns)
            found.update(
                rows_of_ranges(find_ranges("t", table, plain_file(str(path)), chunk_rows), chunk_rows)
            )
    assert found == Counter(row[:2] for rows in files for row in rows)


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(PLAIN, PLAIN, PLAIN), max_size=30),
    compression=st.sampled_from(["", ".gz"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16-le"]),
    header=st.booleans(),
    range_bytes=st.integers(1, 50),
    chunk_bytes=st.integers(1, 50) | st.just(1 << 20),
    num_workers=st.integers(1, 5),
)
def test_plain_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], compression: str, end: str,
    encoding: str, header: bool, range_bytes: int, chunk_bytes: int, num_workers: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.getbasetemp() / f"plain.tsv{compression}"
    lines = [("l", "r", "z")] * header + rows
    content = "".join("\t".join(line) + end for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(content) if compression else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(line_files, "MIN_RANGE_BYTES", range_bytes)
        patch.setattr("etl.tables.ranges.MIN_BALANCED_BYTES", range_bytes)
        found = find_ranges("t", table_of(path, header=header, encoding=encoding), plain_file(str(path)), 1)
        assert rows_of_ranges(balanced(found, num_workers)) == [row[:2] for row in rows]


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_no_byte_is_lost_at_any_border(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line end in a quoted field, walked over by the border of the blocks that are read."""
    content = f'l,r{end}"x\r\ny","""\r\n"{end}"x\ny","\r"{end}"x\ry","\n""\r\n"{end}'.encode()
    expected = [("x\r\ny", '"\r\n'), ("x\ny", "\r"), ("x\ry", '\n"\r\n')]
    for chunk_bytes in range(1, len(content) + 1):
        monkeypatch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        assert read(tmp_path / "t.csv", content) == expected


def pieces_of(content: bytes, chunk_bytes: int, syntax: Syntax) -> tuple[bytes, list[Fault]]:
    """All rows of a text, and its faulty lines."""
    stream = io.BytesIO(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        found = list(text_rows.RawRows(stream.read, syntax, "t").blocks())
    faults = [each for each in found if isinstance(each, Fault)]
    return b"".join(each for each in found if isinstance(each, bytes)), faults


SPOILT = st.text('""a,\r\n#', max_size=40)


@given(text=SPOILT, chunk_bytes=st.integers(1, 20), comment=st.sampled_from([None, "#"]))
@settings(max_examples=4 * settings().max_examples)
def test_faults_do_not_depend_on_blocks(text: str, chunk_bytes: int, comment: str | None) -> None:
    syntax = Syntax(has_quotes=True, comment=comment, max_field_lines=3)
    content = text.encode()
    whole = pieces_of(content, 1 << 20, syntax)
    assert pieces_of(content, chunk_bytes, syntax) == whole
    lines = content.splitlines()
    assert all(fault.text.rstrip(b"\r\n") in lines for fault in whole[1])


@given(text=SPOILT, chunk_bytes=st.integers(1, 20))
@settings(max_examples=4 * settings().max_examples)
def test_faults_are_those_of_a_strict_parser(text: str, chunk_bytes: int) -> None:
    rows, faults = pieces_of(text.encode(), chunk_bytes, Syntax(has_quotes=True))
    try:
        expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        assert faults
    else:
        assert not faults
        assert list(csv.reader(io.StringIO(rows.decode(), newline=""), strict=True)) == expected


GOOD = [(f"a{n}", f"b{n}") for n in range(40)]


def table_with(spoilt: dict[int, str], *, end: str = "\n") -> bytes:
    """Forty rows of two columns and one that nobody asks for, some of them replaced."""
    lines = ["l,r,z", *(spoilt.get(n, f"{lhs},{rhs},z") for n, (lhs, rhs) in enumerate(GOOD))]
    return end.join([*lines, ""]).encode()


@pytest.mark.parametrize(
    ("end", "compression", "chunk_bytes"), [("\n", "", 1 << 20), ("\r\n", "", 64), ("\n", ".gz", 64)]
)
def test_a_quote_that_nothing_closes(
    tmp_path: Path, end: str, compression: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error with its line; or, in the quarantine, that line alone."""
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / f"t.csv{compression}"
    cases: list[tuple[dict[int, str], int, str]] = [
        ({39: 'a39,b39,"z'}, 41, "never closed"),
        ({5: 'a5,b5,"z', 8: 'a8,b8,"z"'}, 7, "goes on after its closing quote"),
        ({5: 'a5,b5,"say \\"z\\" "'}, 7, "goes on after its closing quote"),
        ({5: '"a"5,b5,z'}, 7, "goes on after its closing quote"),
        ({5: 'a5,b5,"z', 20: 'a20,b20,z"'}, 7, "more than 10 lines"),
    ]
    for spoilt, line, problem in cases:
        content = table_with(spoilt, end=end)
        content = gzip.compress(content) if compression else content
        message = rf"t\.csv.*: row {line - 1} .*: line {line}: .*{problem}.*etl\.on_bad_row"
        with pytest.raises(RawTableError, match=message):
            read(path, content, max_field_lines=10)
        rows, bad = quarantined(path, content, max_field_lines=10)
        first = min(spoilt)
        assert bad == [(line - 1, "quotes", spoilt[first])]
        assert rows == [row for number, row in enumerate(GOOD) if number != first]


def test_quotes_in_the_header_and_within_fields(tmp_path: Path) -> None:
    with pytest.raises(RawTableError, match=r"t\.csv: line 2: .*never closed"):
        quarantined(tmp_path / "t.csv", b'\nl,"r\na,b\n')
    rows, bad = quarantined(tmp_path / "t.csv", b'\nl,"r\na,b\n', header=False)
    assert (rows, bad) == ([("a", "b")], [(1, "quotes", 'l,"r')])
    content = b'l,r\n5" disk,a""b\n"7"" disk",x"\n'
    assert read(tmp_path / "t.csv", content) == [('5" disk', 'a""b'), ('7" disk', 'x"')]


def test_long_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and headers that are longer than a block; and none without an end in memory."""
    wide = "z" * 1_400_000
    for name, sep in (("t.csv", ","), ("t.tsv", "\t")):
        path = tmp_path / name
        assert read(path, f"l{sep}r{sep}{wide}\na{sep}b{sep}c\n".encode()) == [("a", "b")]
        long = f"l{sep}r{sep}z\na{sep}b{sep}{wide}\nc{sep}{wide}{sep}\n"
        assert read(path, long.encode()) == [("a", "b"), ("c", wide)]
    monkeypatch.setattr(text_rows, "ROW_BYTES", 1 << 20)
    with pytest.raises(RawTableError, match="a row takes more than 1 MiB"):
        read(path, long.encode())
    half = wide[:600_000]
    rows, bad = quarantined(tmp_path / "t.csv", f'l,r,z\na,b,"{half}\n{half}"\nc,d,\n'.encode())
    assert (rows, [each[:2] for each in bad]) == ([("c", "d")], [(1, "quotes"), (2, "number of fields")])
