"""Raw tables of every kind, good and bad: the same rows, however files are cut into ranges and blocks."""

import gzip
import itertools
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.tables import ranges
from etl.tables.check_rows import Rules
from etl.tables.data_file import plain_file
from etl.tables.formats import FORMATS
from etl.tables.formats import base as line_files
from etl.tables.ranges import FileRange, balanced, find_ranges, grouped
from etl.tables.read import read_blocks
from graphmill.config.sections.etl import FileFormat, TableConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_ids import holds_whole_numbers
from tests.etl.graphs import write_parquet
from tests.graphmill.formats.test_raw_ids import IDS

COLUMNS = {"lhs": ["a", "b", "007"], "rel": ["r", "s", "r"], "rhs": ["x", "y", "z"], "w": ["1", "0.5", "2e1"]}
NAMED = {"lhs": "lhs", "rhs": "rhs", "relation_column": "rel", "weight": "w"}


def rows_of_ranges(found: Iterable[FileRange], chunk_rows: int = 1000) -> list[tuple[Any, ...]]:
    blocks = [block for source in found for block, _ in read_blocks(source, chunk_rows, Rules())]
    assert all(block.num_rows <= chunk_rows for block in blocks)
    return [tuple(row.values()) for block in blocks for row in block.to_pylist()]


def cut(path: Path | str, chunk_rows: int, **entry: Any) -> list[FileRange]:
    """Ranges of a file, as an entry of the configuration reads it."""
    return find_ranges(table_of(path, **entry), plain_file(str(path)), chunk_rows)


def rows_of(path: Path | str, chunk_rows: int = 1000, **entry: Any) -> list[tuple[Any, ...]]:
    return rows_of_ranges(cut(path, chunk_rows, **entry), chunk_rows)


def table_of(path: Path | str, **entry: Any) -> TableConfig:
    if not {"relation", "relation_column"} & set(entry):
        entry["relation"] = "to"
    return TableConfig(**{"path": str(path), "lhs": 0, "rhs": 1, **entry})


def text(delimiter: str, header: bool = True) -> bytes:
    lines = [delimiter.join(row) for row in zip(*COLUMNS.values(), strict=True)]
    return "\n".join([delimiter.join(COLUMNS)] * header + lines).encode() + b"\n"


WRITERS: dict[str, Callable[[Path], object]] = {
    "t.parquet": lambda path: pq.write_table(pa.table(COLUMNS), path, row_group_size=2),
    "t.orc": lambda path: paorc.write_table(pa.table(COLUMNS), path),
    "t.csv": lambda path: path.write_bytes(b"\n\n" + text(",")),  # blank lines before the header
    "t.tsv": lambda path: path.write_bytes((b"\n\n" + text("\t")).replace(b"\n", b"\r\n")),
    "t.txt": lambda path: path.write_bytes(b"\xef\xbb\xbf" + text("\t").replace(b"\n", b"\r\n")),
    "t.csv.gz": lambda path: path.write_bytes(gzip.compress(b"\r\n\r\n" + text(","))),
    "t.tsv.zst": lambda path: path.write_bytes(pa.compress(text("\t"), "zstd", asbytes=True)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    by_name, by_number = NAMED, {"lhs": 0, "rhs": 2, "relation_column": 1, "weight": 3}
    expected = [("a", "x", "r", 1.0), ("b", "y", "s", 0.5), ("007", "z", "r", 20.0)]
    for columns, chunk_rows in ((by_name, 1), (by_number, 2), (by_name, 1000)):
        assert rows_of(path, chunk_rows, **columns) == expected
    for column in ("nowhere", 4):
        message = rf"{name}: expected a column {column!r} \(rhs\).*'lhs', 'rel', 'rhs', 'w'"
        with pytest.raises(RawTableError, match=message):
            rows_of(path, rhs=column)


@pytest.mark.parametrize("text", [each for each in IDS if each != "700"])  # which no file has
def test_raw_ids_of_every_type(tmp_path: Path, text: str) -> None:
    path = str(tmp_path / "t.parquet")
    for ids, store_schema in itertools.product(IDS[text], (True, False)):
        pq.write_table(pa.table({"l": ids, "r": ids}), path, store_schema=store_schema)
        assert rows_of(path) == [(text, text)]
        (source,) = cut(path, 10)
        assert source.integer_columns == (("lhs", "rhs") if holds_whole_numbers(ids.type) else ())


def test_a_file_of_hive_with_transactions_is_refused(tmp_path: Path) -> None:
    rows = [{"u": "a", "i": "x"}, {"u": "b", "i": "y"}]
    numbers = {name: pa.array([0, 0]) for name in ("originalTransaction", "bucket", "rowId")}
    changes = {
        "operation": pa.array([0, 2], pa.int32()),
        **numbers,
        "currentTransaction": [1, 2],
        "row": rows,
    }
    paorc.write_table(pa.table(changes), tmp_path / "bucket_00000.orc")
    with pytest.raises(RawTableError, match=r"bucket_00000\.orc: .*changes of rows .*with transactions"):
        rows_of(tmp_path / "bucket_00000.orc", lhs="row.u", rhs="row.i")


def test_blanks_that_pad_text_of_orc_are_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    columns = {"l": ["ab   ", "日本   ", None, "abcde"], "r": ["x ", "y", "z", "w"], "n": [1, 2, 3, 4]}
    inner = [{"c": value, "n": 1} for value in columns["l"]]
    paorc.write_table(pa.table(columns | {"e": inner}), path, compression="uncompressed")
    content, text_of = path.read_bytes(), bytes([8, 7, 32, 0])  # the kind string, without a length
    for number in (2, 0):  # e.c, and l, in the footer: kind char, length 5
        at = [found.start() for found in re.finditer(re.escape(text_of), content)][number]
        content = content[:at] + bytes([8, 17, 32, 5]) + content[at + 4 :]
    path.write_bytes(content)
    assert rows_of(path, lhs="n", rhs="r")[0] == ("1", "x ")
    for lhs in ("l", "e.c"):
        blocks = read_blocks(cut(path, 9, lhs=lhs, rhs="n")[0], 9, Rules(quarantines=True))
        assert [row["lhs"] for good, _ in blocks for row in good.to_pylist()] == ["ab", "日本", "abcde"]


def test_types_of_weights(tmp_path: Path) -> None:
    texts = ["1", "2", "3"]
    columns = [np.array([1, 2, 3]), np.array([1, 2, 3], np.float32), texts, pa.array(texts, pa.string_view())]
    path = write_parquet(tmp_path / "t.parquet", l=texts, r=texts, **dict(zip("wxyz", columns, strict=True)))
    for column in "wxyz":
        assert [row[-1] for row in rows_of(path, weight=column)] == [1.0, 2.0, 3.0]


def test_long_ids_make_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.tables.blocks.BLOCK_BYTES", 10_000)
    monkeypatch.setattr("etl.tables.blocks.BLOCK_ROWS", 16)
    path = write_parquet(tmp_path / "t.parquet", l=[f"{n:0500d}" for n in range(200)], r=["x"] * 200)
    (source,) = cut(path, 1000)
    sizes = [block.num_rows for block, _ in read_blocks(source, 1000, Rules())]
    assert sum(sizes) == 200
    assert max(sizes) <= 32


# Bad tables: each message names the file, and the row and column where there is one.


@pytest.mark.parametrize("column", ["lhs", "rel", "rhs", "w"])
def test_values_that_are_missing_or_no_text(tmp_path: Path, column: str) -> None:
    """Some writers do not look what they call a string, and pyarrow's readers do not either."""
    path, tsv = str(tmp_path / "t.parquet"), tmp_path / "t.tsv"
    for value, problem in ((None, "null"), ("", "empty"))[: 1 if column == "w" else 2]:
        columns: dict[str, list[Any]] = {name: list(values) * 2000 for name, values in COLUMNS.items()}
        columns[column][4321] = value
        write_parquet(tmp_path / "t.parquet", 1000, **columns)
        lines = ["\t".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        tsv.write_text("\n".join(["\t".join(columns), *lines]))
        for file in (path, str(tsv))[: 1 if value is None else 2]:
            with pytest.raises(RawTableError, match=rf"row 4322 .*column '{column}' .*{problem}"):
                rows_of(file, 1500, **NAMED)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        bad = pa.array([b"r", b"\xff", b"r"]).cast(pa.string(), safe=False).cast(kind)
        pq.write_table(pa.table({**COLUMNS, column: bad}), path)
        problem = "found 'r'" if column == "w" else "not UTF-8: b'.xff'"
        with pytest.raises(RawTableError, match=rf"column '{column}' .*{problem}"):
            rows_of(path, **NAMED)


def test_columns_that_are_ambiguous(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,id,x\na,b,c\n")
    assert rows_of(path, lhs=0, rhs=1) == [("a", "b")]
    with pytest.raises(RawTableError, match="two columns of that name; name it by its number"):
        rows_of(path, lhs="id", rhs="x")
    with pytest.raises(RawTableError, match="are the same column"):
        rows_of(path, lhs="x", rhs=2)
    pq.write_table(pa.table([["a"], ["b"]], names=["id", "id"]), tmp_path / "t.parquet")
    with pytest.raises(RawTableError, match="two columns are named 'id', and cannot be told apart"):
        rows_of(tmp_path / "t.parquet", lhs=0, rhs=1)
    with pytest.raises(RawTableError, match="two columns of that name; rename one"):  # no number helps there
        rows_of(tmp_path / "t.parquet", lhs="id", rhs=1)


ENDS = {"lhs": "l", "rhs": "r"}
AB = '{"l": "a", "r": "b"}\n'
OTHER = {"l": [1.5], "r": ["x"], "s": ["y"], "w": [[1]]}
FRACTIONS = {"l": pa.array([Decimal("1.00")], pa.decimal128(38, 2)), "r": ["x"]}
HALF = {"l": [Decimal("0.5")], "r": ["x"]}
DOUBLES = {"l": [None, 12.0], "r": ["x", "y"]}
AS_FRACTIONS = r"(?!.*(pandas|BIGINT)).*decimal128\(38, 2\).*CAST\(l AS DECIMAL\(36, 0\)\)"
AS_DOUBLES = r"'l' \(lhs\): .* found double, first 12\.0: .*astype\(\"Int64\"\).*CAST\(l AS BIGINT\)"
NO_TABLE = "cannot be read as a table"

# A file's name; its bytes or columns; keys of its entry; the message after the name.
BAD_TABLES: list[tuple[str, Any, dict[str, Any], str]] = [
    *(
        ("t.parquet", COLUMNS | {"w": ["1", value, "1"]}, NAMED, r"row 2 .*column 'w' \(weight\): expected a")
        for value in ("many", "nan", "-1", "", "1e16", "1e39")
    ),
    ("t.csv", text(",") + b"\xff\xfe,r,x,1", NAMED, r"row 4 .*column 'lhs' .*not UTF-8: b'.xff"),
    ("t.tsv", b"l\tt\nc\t\xe9t\xe9\n", {"rhs": "t"}, r"row 1 .*'t' \(rhs\): not UTF-8: b'.xe9t.xe9'"),
    ("t.parquet", {"l": [b"a", b"\xff"], "r": ["x", "y"]}, {}, "row 2 .*not UTF-8"),
    ("t.parquet", {"l": pa.array([b"\xff" * 16], pa.binary(16)), "r": ["x"]}, {}, "row 1 .*not UTF-8"),
    ("t.jsonl", AB.encode() + b'{"l": "\xff", "r": "y"}\n', ENDS, r"row 2 .*column 'l' .*not UTF-8: b'.xff'"),
    ("t.jsonl", '{"l": "a", "r": {"b": 1}}\n', ENDS, f"{NO_TABLE}|expected strings"),
    ("t.jsonl", '{"l": "a"}\n', ENDS, r"expected a column 'r' \(rhs\), found columns \['l'\]"),
    (
        "t.tsv",
        "a r b\n",
        {"header": False, "rhs": 2},
        r"column 2 \(rhs\), found columns \['f0'\]; is the delimiter right\?",
    ),
    ("t.csv", "l,r\na,b\n", {"rhs": "s"}, r"found columns \['l', 'r'\]$"),
    ("t.parquet", {"l": ["a"]}, ENDS, r"found columns \['l'\]$"),
    ("t.parquet", OTHER, {}, r"column '0' \(lhs\): expected strings or integers, found double"),
    ("t.parquet", OTHER, {"lhs": "r", "rhs": "s", "weight": "w"}, r"'w' \(weight\): .*numbers, found list"),
    ("t.parquet", b"PAR1 and no more", {}, NO_TABLE),
    ("t.orc", b"ORC?", {}, NO_TABLE),
    ("t.csv.gz", b"not gzip", {}, NO_TABLE),
    ("t.csv.gz", gzip.compress(text(",") * 1000, mtime=0)[:60], {}, NO_TABLE),
    ("t.csv", b"a,b\nx,y\nz\n", {}, "row 2 .*expected 2 columns, found 1.*: 'z'; correct the table"),
    ("t.xlsx", b"", {}, "set the table's format"),
    ("t.parquet", FRACTIONS, {"lhs": "l"}, AS_FRACTIONS),
    ("t.parquet", DOUBLES, ENDS, AS_DOUBLES),
    ("t.parquet", HALF, ENDS, r"first Decimal\('0\.5'\), .*CAST\(l AS STRING\)"),
    ("t.parquet", {"l": [{"id": "a", "n": 1}], "r": ["x"]}, ENDS, r"name the field to read: l\.id or l\.n"),
]


@pytest.mark.parametrize(("name", "content", "entry", "message"), BAD_TABLES)
def test_bad_tables(tmp_path: Path, name: str, content: Any, entry: dict[str, Any], message: str) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        write_parquet(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RawTableError, match=rf"{name}: (.*({message})|{message})"):
        rows_of(path, **entry)


def test_every_format_can_be_configured() -> None:
    assert set(FORMATS) == set(get_args(FileFormat))
    suffixes = [suffix for each in FORMATS.values() for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)


def test_a_bad_row_of_a_range_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", 100)
    path = tmp_path / "t.tsv"
    path.write_text("l\tr\n" + "a\tb\n" * 200 + "bad\t\n" + "a\tb\n" * 200)
    with pytest.raises(RawTableError, match=r"t\.tsv: row \d+ \(counted from byte \d+\), .*empty") as raised:
        rows_of(path, 10)
    row, byte = map(int, re.findall(r"row (\d+) \(counted from byte (\d+)\)", str(raised.value))[0])
    content = path.read_bytes()
    first_line = 0 if content[byte - 1 : byte] == b"\n" else 1
    assert content[byte:].split(b"\n")[first_line + row - 1] == b"bad\t"


def test_orc_by_stripes(tmp_path: Path) -> None:
    path = str(tmp_path / "t.orc")
    ids = [f"{n:0200d}" for n in range(60_000)]
    paorc.write_table(pa.table({"l": ids, "r": ids}), path, stripe_size=1 << 20, compression="uncompressed")
    found = cut(path, 1000)
    assert len(found) > 3
    assert rows_of_ranges(found) == [(each, each) for each in ids]


@pytest.fixture
def sources(tmp_path: Path) -> list[FileRange]:
    """Three ranges of one file of 4 MB, and a file that is not cut."""
    path, packed = tmp_path / "t.tsv", tmp_path / "u.csv"
    path.write_text("head\tof\n" + "".join(f"{n:020d}\t{n % 7:020d}\n" for n in range(100_000)))
    packed.write_text("head,of\na,b\n")
    table = TableConfig(path=str(tmp_path), lhs="head", rhs="of", relation="r")
    found = [each for uri in (path, packed) for each in find_ranges(table, plain_file(str(uri)), 40_000)]
    assert len(found) == 4
    return found


def test_a_round_is_filled(sources: list[FileRange], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MIN_BALANCED_BYTES", 1 << 19)
    found = balanced(sources, 6)
    assert len(found) == 6
    assert [each.uri for each in found] == [sources[0].uri] * 5 + [sources[-1].uri]
    assert rows_of_ranges(found) == rows_of_ranges(sources)
    assert sum(each.num_bytes for each in found) == sum(each.num_bytes for each in sources)
    sizes = [each.cut[1] - each.cut[0] for each in found if each.cut]
    assert max(sizes) - min(sizes) <= 1


def test_balanced_ranges_stay_as_they_are(sources: list[FileRange], monkeypatch: pytest.MonkeyPatch) -> None:
    for num_workers, min_bytes in ((4, 1), (0, 1), (3, 1 << 21)):
        monkeypatch.setattr(ranges, "MIN_BALANCED_BYTES", min_bytes)
        assert balanced(sources, num_workers) == sources
    assert balanced([], 3) == []
    assert balanced(sources[3:], 3) == sources[3:]


def ranges_of(*sizes: tuple[str, int, int]) -> list[FileRange]:
    """Ranges of tables with these numbers of rows and bytes."""
    tables = {name: TableConfig(path=name, lhs=0, rhs=1, relation=name) for name, _, _ in sizes}
    return [
        FileRange(tables[name], f"{name}/{number}", {}, num_rows=num_rows, num_bytes=num_bytes)
        for number, (name, num_rows, num_bytes) in enumerate(sizes)
    ]


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.integers(0, 1 << 27)), max_size=50
    ),
    num_workers=st.integers(0, 5),
    chunk_rows=st.integers(1, 1000),
)
def test_groups_are_small_and_hold_neighbours_of_one_table(sizes, num_workers, chunk_rows):
    sources = ranges_of(*sizes)
    groups = grouped(sources, num_workers, chunk_rows)
    assert [each for group in groups for each in group] == sources
    for group in groups:
        assert len({each.table for each in group}) == 1
        assert len(group) == 1 or sum(each.num_rows for each in group) <= chunk_rows
        assert len(group) == 1 or sum(each.num_bytes for each in group) <= ranges.MAX_GROUP_BYTES


def test_ten_thousand_small_files_are_few_groups_and_keep_all_workers_busy() -> None:
    small = ranges_of(*[("a", 1000, 1 << 14)] * 10_000)
    assert len(grouped(small, 4, 2_000_000)) == 16
    assert len(grouped(small, 4, 100_000)) == 100
    assert len(grouped(small, 4, 10)) == 10_000
    assert len(grouped(small[:16], 4, 2_000_000)) == 16
