"""Text and JSON lines as others write them: encodings, quotes that nothing closes, structs; cut anywhere."""

import bz2
import codecs
import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from etl.survey.sample import first_rows
from etl.tables.check_rows import Rules
from etl.tables.data_file import plain_file
from etl.tables.formats import FORMATS
from etl.tables.formats import base as line_files
from etl.tables.ranges import balanced, find_ranges
from etl.tables.read import read_blocks, read_whole
from graphmill.config.sections.etl import EntityTableConfig, WholeTableConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import rows as text_rows
from graphmill.formats.raw_tables.rows import Fault, Syntax
from tests.etl.graphs import write_table
from tests.etl.tables.test_read_tables import cut, rows_of, rows_of_ranges, table_of
from tests.pairs import pairs

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda content: bytes(pa.compress(content, "zstd", asbytes=True)),
    ".lz4": lambda content: bytes(pa.compress(content, "lz4", asbytes=True)),
    ".bz2": bz2.compress,
}
PAIRS = [("é", "x"), ("ß,;|", "y\n1"), ("ü", "z")]
ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "cp500", "utf-7"]
UNQUOTED = "l\tr\né\tx\nü\ty\n"


def read(path: Path, content: bytes, **settings: Any) -> list[tuple[Any, ...]]:
    path.write_bytes(content)
    return rows_of(path, **settings)


def quarantined(path: Path, content: bytes, **settings: Any) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Rows, and row number, reason and text of the bad ones."""
    path.write_bytes(content)
    good, bad = [], []
    for source in cut(path, 1000, **settings):
        for block, found in read_blocks(source, 1000, Rules(quarantines=True)):
            good += [tuple(row.values()) for row in block.to_pylist()]
            for rows in found:
                texts = rows.block.to_pydict().get("text", [None] * len(rows.rows))
                bad += [(int(row), rows.reason, text) for row, text in zip(rows.rows, texts, strict=True)]
    return good, bad


@pytest.mark.parametrize(
    ("compression", "encoding", "range_bytes"), pairs([*COMPRESS], ENCODINGS, [1, 1 << 20])
)
def test_encodings(tmp_path, encoding, compression, range_bytes, monkeypatch):
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", 3 if range_bytes == 1 else 1 << 20)
    quoted = "l,r\n" + "".join(f'"{lhs}","{rhs}"\n' for lhs, rhs in PAIRS)
    for suffix, text, expected in (
        ("csv", quoted, PAIRS),
        ("tsv", UNQUOTED, [("é", "x"), ("ü", "y")]),
        ("jsonl", '{"l": "é", "r": "x"}\n{"l": "ü", "r": "y"}\n', [("é", "x"), ("ü", "y")]),
    ):
        content = COMPRESS[compression](text.encode(encoding))
        path = tmp_path / f"t.{suffix}{compression}"
        assert read(path, content, encoding=encoding, lhs="l", rhs="r") == expected


@pytest.mark.parametrize(
    ("settings", "compression", "is_cut"),
    [
        *(({"encoding": each}, "", True) for each in ("utf-8", "latin-1", "cp1252")),
        *(({"encoding": each}, "", False) for each in ("utf-16", "shift_jisx0213", "cp500")),
        ({"quoting": True}, "", False),
        *(({}, each, False) for each in COMPRESS if each),
    ],
)
def test_text_is_cut_where_any_byte_tells_a_line_end(tmp_path, settings, compression, is_cut, monkeypatch):
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", 1)
    path = tmp_path / f"t.tsv{compression}"
    content = ("é\tr\n" + "é\tü\n" * 100).encode(settings.get("encoding", "utf-8"))
    path.write_bytes(COMPRESS[compression](content))
    found = cut(path, 5, **settings)
    assert rows_of_ranges(found) == [("é", "ü")] * 100
    assert len(found) > 9 if is_cut else len(found) == 1


@pytest.mark.parametrize("row", ["a{0},b{1}\n", '"a\n\n{0}","b{1}"\n', "a{0},b{1}\r"])
@pytest.mark.parametrize("compression", COMPRESS)
def test_rows_are_estimated(tmp_path: Path, rng: Generator, compression: str, row: str) -> None:
    path = tmp_path / f"t.csv{compression}"
    num_rows = 120_000 if compression == ".bz2" else 30_000  # bz2 has blocks of 900 kB
    content = "l,r\n" + "".join(row.format(*ids) for ids in rng.integers(0, 9999, (num_rows, 2)).tolist())
    path.write_bytes(COMPRESS[compression](content.encode()))
    ranges = cut(path, 1 << 20)
    assert sum(part.num_rows for part in ranges) == pytest.approx(num_rows, rel=0.15)


def test_text_that_is_not_of_the_encoding(tmp_path: Path) -> None:
    with pytest.raises(RawTableError, match=r"edges\.xlsx: expected text, found a zip file, as \.xlsx is"):
        read(tmp_path / "edges.xlsx", b"PK\3\4" + bytes(99), format="csv")
    for encoding, name in product(["utf-16", "utf-32", "utf-16-le", "utf-16-be"], ["csv", "tsv", "jsonl"]):
        message = rf"first bytes of {encoding}; set the table's encoding: {encoding}$"
        with pytest.raises(RawTableError, match=message):
            read(tmp_path / f"t.{name}", UNQUOTED.encode(encoding), header=name != "tsv")
    for encoding, content, message in (
        ("utf-8", "l\té\na\tb\n".encode("latin-1"), r"column names in utf-8, found b'.*xe9'.* latin-1"),
        ("utf-8", "l\tr\na\té\n".encode("latin-1"), r"row 1 .*not UTF-8: b'.xe9'; .*encoding, .*latin-1"),
        ("ascii", "l\tr\na\té\n".encode(), r"expected text in ascii, found other bytes at byte 6: "),
        ("utf-16", "l\tr\na\té\n".encode("utf-16")[:-1], r"in utf-16, found other bytes at byte 16: "),
    ):
        with pytest.raises(RawTableError, match=message):
            read(tmp_path / "t.tsv", content, encoding=encoding)


@pytest.mark.parametrize(
    ("compression", "range_bytes", "chunk_bytes"), pairs([*COMPRESS], [1, 1 << 20], [1, 7, 1 << 20])
)
def test_comments(tmp_path, compression, range_bytes, chunk_bytes, monkeypatch):
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
    lines = ["# of SNAP", "# From\tTo", "l\tr", "a\tb", '#"a\tc', " #d\te", "#", "f\t#g"]
    for end in ("\n", "\r\n"):
        for header in (True, False):
            path = tmp_path / f"t.tsv{compression}"
            content = end.join(lines[: 2 + header] + lines[3:]).encode()
            rows = read(path, COMPRESS[compression](content), comment="#", header=header)
            assert rows == [("a", "b"), (" #d", "e"), ("f", "#g")]
        content = f'l,r{end}#"{end}"a{end}#b","c""{end}#"{end}#d,"{end}//,e{end}'.encode()
        rows = read(tmp_path / f"t.csv{compression}", COMPRESS[compression](content), comment="#")
        assert rows == [(f"a{end}#b", f'c"{end}#'), ("//", "e")]
    content = COMPRESS[compression](b'//x\n{"l": "a", "r": "//"}\n// {\n{"l": "1", "r": "c"}\n')
    path = tmp_path / f"t.jsonl{compression}"
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", 1 << 20)
    assert read(path, content, comment="//", lhs="l", rhs="r") == [("a", "//"), ("1", "c")]


@pytest.mark.parametrize("suffix", [".deflate", ".SNAPPY", ".lzo", ".lzo_deflate", ".xz", ".zip", ".lz4"])
def test_text_of_codecs_that_are_not_read_is_refused(tmp_path: Path, suffix: str) -> None:
    """With a format, such bytes were lines of text; Hadoop's .lz4 has blocks of its own, without frames."""
    for name, kind in ((f"part-00000{suffix}", "csv"), (f"t.json{suffix}", "json")):
        with pytest.raises(RawTableError, match=rf"{name}: .*{suffix.lower()} cannot be unpacked; .*\.gz"):
            read(tmp_path / name, bytes(4) + b"\x00\x06\nl\tr\na\tb\n", format=kind)


@pytest.mark.parametrize(
    ("name", "compression", "header"),
    pairs(
        ["part.csv", "part.tsv", "part.jsonl"],
        [*COMPRESS, "no bytes.gz", "no bytes.zst", "no bytes.bz2"],
        [True, False],
    ),
)
def test_a_part_without_rows(tmp_path: Path, name: str, compression: str, header: bool) -> None:
    """Hive and Spark write such files for empty partitions, with a header or not."""
    path = tmp_path / f"{name}{compression.removeprefix('no bytes')}"
    for content in (b"", b"\n", b"\r\n\r\n", codecs.BOM_UTF8, codecs.BOM_UTF8 + b"\n", b"#\n", b"# x"):
        compressed = COMPRESS.get(compression, lambda _: b"")(content)
        assert read(path, compressed, header=header, comment="#") == []
    if not name.endswith(".jsonl"):
        for head in (b"l,r", b"l,r\n", b"l,r\n\n") if header and compression in COMPRESS else ():
            assert read(path, COMPRESS[compression](head), delimiter=",") == []
        content = codecs.BOM_UTF16_LE + "\n".encode("utf-16-le")
        compressed = COMPRESS.get(compression, lambda _: b"")(content)
        assert read(path, compressed, header=header, encoding="utf-16") == []


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [("t.csv", "a", "number of fields"), ("t.csv", '"a"b,c', "quotes"), ("t.jsonl", "[1]", "JSON")],
)
def test_lines_that_are_no_rows_do_not_gather_in_memory(tmp_path, name, line, reason, monkeypatch):
    """Blocks end where many of them wait, whatever is between them; and so does a look at the table."""
    monkeypatch.setattr("etl.tables.blocks.BLOCK_ROWS", 16)
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", 64)
    good, empty = ("a,b", ",b") if name == "t.csv" else ('{"f0": "a", "f1": "b"}', '{"f0": "", "f1": "b"}')
    lines = [good, *(empty if n % 90 == 0 else good if n % 50 == 0 else line for n in range(2, 401))]
    (tmp_path / name).write_text("".join(f"{each}\n" for each in lines))
    columns = {} if name == "t.csv" else {"lhs": "f0", "rhs": "f1"}
    (source,) = cut(tmp_path / name, 1000, header=False, **columns)
    found = [
        [(int(row), rows.reason) for rows in bad for row in rows.rows]
        for _, bad in read_blocks(source, 1000, Rules(quarantines=True))
    ]
    reasons = {good: None, empty: "lhs: empty", line: reason}
    expected = [(row, reasons[each]) for row, each in enumerate(lines, 1) if each != good]
    assert sorted(each for block in found for each in block) == expected
    assert max(map(len, found)) < 60
    seen: list[object] = []
    first_rows(source, seen.append, 20)
    assert len(seen) < 60


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_fields_that_stand_for_null(tmp_path: Path, name: str) -> None:
    sep = "," if name == "t.csv" else "\t"
    content = "l,r,w\n\\N,a,1\nb,NULL,1\nc,null,1\nd,nan,\\N\né,\\\\N,1\n".replace(",", sep).encode()
    rows, bad = quarantined(tmp_path / name, content, weight="w", null_values=["\\N", "NULL"])
    assert rows == [("c", "null", 1.0), ("é", "\\\\N", 1.0)]
    assert sorted(each[:2] for each in bad) == [(1, "lhs: null"), (2, "rhs: null"), (4, "weight: null")]
    assert len(read(tmp_path / name, content)) == 5
    if name == "t.csv":
        quoted = b'l,r\n"NULL",a\nNULL,b\n'
        rows, bad = quarantined(tmp_path / name, quoted, null_values=["NULL"])
        assert (rows, bad[0][:2]) == ([("NULL", "a")], (2, "lhs: null"))


def test_characters_that_mean_nothing(tmp_path: Path) -> None:
    """Null bytes, blanks around fields, backslashes and control characters are text."""
    rows = [("a\0b", " c "), ("\t", "\\"), ("\x1a", "\u2028\x85\x0b\x0c"), ("\ufeff", "NaN")]
    for name, sep in (("t.csv", ","), ("t.tsv", ";")):
        content = f"l{sep}r\n" + "".join(f"{lhs}{sep}{rhs}\n" for lhs, rhs in rows)
        assert read(tmp_path / name, content.encode(), delimiter=sep) == rows
    assert read(tmp_path / "t.tsv", b" \t ", header=False) == [(" ", " ")]


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
    tmp_path_factory, files, writer, compression, sep, end, quoting, encoding, header, chunk_bytes, chunk_rows
):
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
            options = {"delimiter": sep, "quoting": True, "header": header, "encoding": encoding} | columns
            found.update(rows_of(path, chunk_rows, **options))
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
    tmp_path_factory, rows, compression, end, encoding, header, range_bytes, chunk_bytes, num_workers
):
    path = tmp_path_factory.getbasetemp() / f"plain.tsv{compression}"
    lines = [("l", "r", "z")] * header + rows
    content = "".join("\t".join(line) + end for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(content) if compression else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(line_files, "MIN_RANGE_BYTES", range_bytes)
        patch.setattr("etl.tables.ranges.MIN_BALANCED_BYTES", range_bytes)
        found = cut(path, 1, header=header, encoding=encoding)
        assert rows_of_ranges(balanced(found, num_workers)) == [row[:2] for row in rows]


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


@pytest.mark.parametrize(
    ("end", "compression", "chunk_bytes"), [("\n", "", 1 << 20), ("\r\n", "", 64), ("\n", ".gz", 64)]
)
def test_a_quote_that_nothing_closes(tmp_path, end, compression, chunk_bytes, monkeypatch):
    """An error with its line; or, in the quarantine, that line alone."""
    monkeypatch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / f"t.csv{compression}"
    for spoilt, line, problem in (
        ({39: 'a39,b39,"z'}, 41, "never closed"),
        ({5: 'a5,b5,"z', 8: 'a8,b8,"z"'}, 7, "goes on after its closing quote"),
        ({5: 'a5,b5,"say \\"z\\" "'}, 7, "goes on after its closing quote"),
        ({5: '"a"5,b5,z'}, 7, "goes on after its closing quote"),
        ({5: 'a5,b5,"z', 20: 'a20,b20,z"'}, 7, "more than 10 lines"),
    ):
        lines = ["l,r,z", *(spoilt.get(n, f"{lhs},{rhs},z") for n, (lhs, rhs) in enumerate(GOOD)), ""]
        content = COMPRESS[compression](end.join(lines).encode())
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
    assert read(tmp_path / "t.csv", b'l,r\n"a,x"\nb",y\n', quoting=False) == [('"a', 'x"'), ('b"', "y")]


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


ENDS = {"lhs": "l", "rhs": "r"}


def lines_of(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_zero_has_no_sign(tmp_path: Path) -> None:
    zeros = b'{"l": -0, "r": 1}\n{"l": "a", "r": 1}\n'
    assert read(tmp_path / "t.jsonl", zeros, **ENDS) == [("0", "1"), ("a", "1")]


def test_a_whole_table_with_a_column_of_several_types(tmp_path: Path) -> None:
    """Such a table is read line by line, with the same values in the other columns."""
    nested = {"s": {"x": 1, "y": "z"}, "ll": [[1], []], "ls": [{"q": 1}]}
    rows: list[dict[str, Any]] = [
        {"m": 1, "i": 5, "f": 1.5, "b": True, "l": [1, None], **nested},
        {"m": "t", "i": -(2**63), "f": 2, "b": False, "l": [], **dict.fromkeys(nested)},
        {"m": True, **dict.fromkeys(["i", "f", "b", "l", *nested])},
    ]
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines_of(*rows))
    table = WholeTableConfig(path=[str(path)], names=tuple(rows[0]))
    (source,) = find_ranges(table, plain_file(str(path)), 10)
    found = pa.concat_tables(read_whole(source)).rename_columns(list(rows[0]))
    texts = {"m": ["1", "t", "true"]}
    assert found.to_pydict() == {name: [row[name] for row in rows] for name in rows[0]} | texts
    for value, problem in (("5", "expected int64"), (2**63, "expected int64"), (1.0, "expected int64")):
        path.write_bytes(lines_of(*rows, rows[0] | {"i": value}))
        with pytest.raises(RawTableError, match=rf"row 4 .*column 'i' .*{problem}"):
            list(read_whole(replace(source, cut=None)))


def test_types_that_the_first_rows_tell(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"i": 2**63 - 1, "h": 2**63, "f": 0.5, "t": "2026-01-01"}
    row |= {"s": {"b": True, "n": None, "l": [2**63, 1]}}
    text = pa.string()
    nested = pa.struct([("b", pa.bool_()), ("n", text), ("l", pa.list_(text))])
    kinds = {"i": pa.int64(), "h": text, "f": pa.float64(), "s": nested, "t": text, "x": text}
    for others in ({}, {"x": 1}):
        path.write_bytes(lines_of(row, row | others, {"x": "y"}))
        assert FORMATS["json"].read_head(str(path), table_of(path), 10).types == kinds
    (source,) = cut(path, 10, lhs="i", rhs="t")
    assert source.integer_columns == ("lhs",)


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        ('{"l": 1.0, "r": 2}', "lhs: type", r"'l' \(lhs\): expected a text or a whole number, found 1\.0"),
        ('{"l": 1e3, "r": 2}', "lhs: type", "found 1e3"),
        ('{"l": "a", "r": true}', "rhs: type", r"'r' \(rhs\): .*found true"),
        ('{"l": "a", "r": ["b"]}', "rhs: type", "found .*b"),
        ('{"l": "a", "r": {"b": 1}}', "rhs: type", "found .*b"),
        ('{"l": "a", "l": "b", "r": "c"}', "lhs: type", "has the name twice"),
        ('{"l": "\\ud800", "r": "c"}', "lhs: type", "half a character"),
        ('{"l": "a", "r": "b"} {"l": "a", "r": "b"}', "JSON", "one JSON object in a line"),
        ('{"l": "a", "r": "b"', "JSON", "one JSON object in a line"),
        ('[{"l": "a", "r": "b"}]', "JSON", "one JSON object in a line"),
        ("[", "JSON", "one JSON object in a line"),
        ("[" * 100_000, "JSON", "one JSON object in a line"),
        ('{"l": null, "r": 5}', "lhs: null", r"'l' \(lhs\): null"),
        ('{"l": "", "r": 5}', "lhs: empty", r"'l' \(lhs\): empty"),
        ('{"l": 6}', "rhs: null", r"'r' \(rhs\): null"),
    ],
)
def test_lines_that_are_no_rows(tmp_path: Path, line: str, reason: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    for before, after in ([{"l": "a", "r": 1}], [{"l": 1, "r": 2}]), ([{"l": 1, "r": 1}], []):
        content = lines_of(*before) + line.encode() + b"\n" + lines_of(*after)
        with pytest.raises(RawTableError, match=rf"t\.jsonl: row 2 .*{message}.*etl\.on_bad_row"):
            read(path, content, **ENDS)
        rows, bad = quarantined(path, content, **ENDS)
        assert rows == [(str(row["l"]), str(row["r"])) for row in before + after]
        assert bad == [(2, reason, line if reason.endswith(("type", "JSON")) else None)]
    if reason == "JSON":  # nor has the file another line, which would say its columns
        with pytest.raises(RawTableError, match=rf"t\.jsonl: row 1 .*{message}.*etl\.on_bad_row"):
            read(path, line.encode(), **ENDS)
        assert quarantined(path, line.encode(), **ENDS) == ([], [(1, reason, line)])


def test_weights_and_filters_of_several_types(tmp_path: Path) -> None:
    rows = [
        {"l": 1, "r": "a", "w": 1, "k": "u"},
        {"l": "b", "r": 2, "w": 0.5, "k": True},
        {"l": 1, "r": 1, "w": "2", "k": 3},
    ]
    path = tmp_path / "t.jsonl"
    weighted = read(path, lines_of(*rows), **ENDS, weight="w")
    assert weighted == [("1", "a", 1.0), ("b", "2", 0.5), ("1", "1", 2.0)]
    for chosen, expected in (("u", ["1"]), ("true", ["b"]), ("3", ["1"])):
        file = replace(plain_file(str(path)), filters=((("k", "==", chosen),),))
        found = rows_of_ranges(find_ranges(table_of(path, **ENDS), file, 10))
        assert [lhs for lhs, _ in found] == expected


EDGES = st.sampled_from(["007", 7, -(2**63), 2**63, 10**30, -(10**30)])
IDS = EDGES | st.integers() | st.text('ab"\\\n\r€', min_size=1, max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("a", max_size=3)
OTHERS = st.recursive(
    SCALARS,
    lambda kind: st.lists(kind, max_size=3) | st.dictionaries(st.sampled_from("ab"), kind),
    max_leaves=4,
)


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(IDS, IDS, OTHERS, st.booleans()), max_size=20),
    range_bytes=st.integers(1, 200),
    chunk_bytes=st.integers(1, 200) | st.just(1 << 20),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    is_nested=st.booleans(),
)
@settings(max_examples=2 * settings().max_examples)
def test_any_rows(tmp_path_factory, rows, range_bytes, chunk_bytes, end, is_nested):
    """Ids of several types in one column, which may be a field of a struct."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    lines = [json.dumps({"l": lhs, "r": rhs} | ({"z": z} if has_z else {})) for lhs, rhs, z, has_z in rows]
    ends = ENDS
    if is_nested:
        ends, lines = {"lhs": "e.l", "rhs": "e.r"}, [f'{{"n": 1, "e": {line}}}' for line in lines]
    path.write_text("".join(line + end for line in lines), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(line_files, "MIN_RANGE_BYTES", range_bytes)
        found = rows_of_ranges(cut(path, 1, **ends))
    assert Counter(found) == Counter((str(lhs), str(rhs)) for lhs, rhs, *_ in rows)


EVENTS: list[dict[str, Any]] = [
    {"event": {"user": f"u{n}", "item": {"id": n, "tags": ["x"]}, "kind": "buys", "w": n / 2}, "at": n}
    for n in range(1, 6)
]
PATHS = {"lhs": "event.user", "rhs": "event.item.id", "relation_column": "event.kind", "weight": "event.w"}


@pytest.fixture(params=["parquet", "orc", "jsonl"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"t.{request.param}"


def test_fields_of_structs(path: Path) -> None:
    uri = write_table(path, [*EVENTS, {"event": None, "at": 9}], 2)
    with pytest.raises(RawTableError, match=r"row 6 .*column 'event\.user' \(lhs\): null"):
        rows_of(uri, lhs="event.user", rhs="at")
    write_table(path, EVENTS, 2)
    expected = [(f"u{n}", str(n), "buys", n / 2) for n in range(1, 6)]
    assert rows_of(uri, 2, **PATHS) == expected
    entities = EntityTableConfig(path=uri, type="item", id="event.item.id")
    assert rows_of_ranges(find_ranges(entities, plain_file(uri), 10)) == [(str(n),) for n in range(1, 6)]
    known = r"columns \['event\.user', 'event\.item\.id', 'event\.item\.tags', 'event\.kind', .*'at'\]"
    for missing in ("event.usr", "event.item", "at.user", "event.", ""):
        with pytest.raises(RawTableError, match=rf"expected a column '{missing}' \(lhs\), found {known}"):
            rows_of(uri, lhs=missing, rhs="at")


def test_a_column_with_a_dot_in_its_name_comes_first(path: Path) -> None:
    uri = write_table(path, [{"a.b": "column", "a": {"b": "field", "c": "c"}, "c.d": {"e": "deep"}}])
    assert rows_of(uri, lhs="a.b", rhs="a.c") == [("column", "c")]
    assert rows_of(uri, lhs="c.d.e", rhs="a.c") == [("deep", "c")]
    write_table(path, [{"a.b": {"c": "column"}, "a": {"b": {"c": "field"}}, "x": "x"}])
    assert rows_of(uri, lhs="a.b.c", rhs="x") == [("column", "x")]
