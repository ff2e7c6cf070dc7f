"""Raw tables of every kind, good and bad, as blocks of rows."""

import gzip
import re
import uuid
from collections.abc import Callable, Iterator
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

from etl.survey.dialect import dialect_of
from etl.tables.check_rows import BlockPosition, Rules, ids_or_null
from etl.tables.data_file import plain_file
from etl.tables.files import find_files
from etl.tables.formats import FORMATS, FileRange, Head, TableFormat
from etl.tables.formats.base import OF_TEXT
from etl.tables.ranges import find_ranges
from etl.tables.read import read_blocks
from graphmill.config.sections.etl import FileFormat, TableConfig
from graphmill.errors import NotFoundError, RawTableError
from graphmill.formats.raw_ids import holds_whole_numbers
from tests.etl.graphs import config_of, write_parquet

COLUMNS = {"lhs": ["a", "b", "007"], "rel": ["r", "s", "r"], "rhs": ["x", "y", "z"], "w": ["1", "0.5", "2e1"]}
DECIMALS = (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)
NAMED = {"lhs": "lhs", "rhs": "rhs", "relation_column": "rel", "weight": "w"}


def rows_of(table: TableConfig, uri: str, chunk_rows: int = 1000) -> list[tuple[Any, ...]]:
    sources = find_ranges("tables[0]", table, plain_file(uri), chunk_rows)
    blocks = [block for source in sources for block, _ in read_blocks(source, chunk_rows, Rules())]
    assert all(block.num_rows <= chunk_rows for block in blocks)
    return [tuple(row.values()) for block in blocks for row in block.to_pylist()]


def table_of(path: Path | str, **settings: Any) -> TableConfig:
    if not {"relation", "relation_column"} & set(settings):
        settings["relation"] = "to"
    return TableConfig(**{"path": str(path), "lhs": 0, "rhs": 1, **settings})


def text(delimiter: str, header: bool = True) -> bytes:
    lines = [delimiter.join(row) for row in zip(*COLUMNS.values(), strict=True)]
    return "\n".join([delimiter.join(COLUMNS)] * header + lines).encode() + b"\n"


def write_orc(path: Path) -> None:
    paorc.write_table(pa.table(COLUMNS), path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "t.parquet": lambda path: pq.write_table(pa.table(COLUMNS), path, row_group_size=2),
    "t.orc": write_orc,
    "t.csv": lambda path: path.write_bytes(text(",")),
    "t.tsv": lambda path: path.write_bytes(text("\t")),
    "t.txt": lambda path: path.write_bytes(b"\xef\xbb\xbf" + text("\t").replace(b"\n", b"\r\n")),
    "t.csv.gz": lambda path: path.write_bytes(gzip.compress(text(","))),
    "t.tsv.zst": lambda path: path.write_bytes(pa.compress(text("\t"), "zstd", asbytes=True)),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("chunk_rows", [1, 2, 1000])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str, chunk_rows: int) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    by_name, by_number = NAMED, {"lhs": 0, "rhs": 2, "relation_column": 1, "weight": 3}
    expected = [("a", "x", "r", 1.0), ("b", "y", "s", 0.5), ("007", "z", "r", 20.0)]
    for columns in (by_name, by_number):
        assert rows_of(table_of(path, **columns), str(path), chunk_rows) == expected


def test_without_header_and_with_any_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "part-00000"
    path.write_bytes(text("|", header=False))
    table = table_of(path, format="csv", delimiter="|", header=False, lhs=0, rhs=2)
    assert rows_of(table, str(path)) == [("a", "x"), ("b", "y"), ("007", "z")]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_before_the_header(tmp_path: Path, name: str, end: bytes) -> None:
    lines = b"\n\n" + text("\t" if name == "t.tsv" else ",")
    content = lines.replace(b"\n", end)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    rows = rows_of(table_of(tmp_path / name, rhs=2), str(tmp_path / name))
    assert rows == [("a", "x"), ("b", "y"), ("007", "z")]


def test_quoting(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('l,r\n"a, or ""b""\nc",x\n')
    assert rows_of(table_of(path), str(path)) == [('a, or "b"\nc', "x")]
    path.write_text('l,r\n"a,x"\nb",y\n')
    assert rows_of(table_of(path, quoting=False), str(path)) == [('"a', 'x"'), ('b"', "y")]
    path.with_suffix(".tsv").write_text('l\tr\n5" disk\tx\n"y"\tz\n')
    assert rows_of(table_of(path), str(path.with_suffix(".tsv"))) == [('5" disk', "x"), ('"y"', "z")]
    quoted = table_of(path, quoting=True, delimiter="\t")
    path.write_text('l\tr\n"a\tb"\tx\n')
    assert rows_of(quoted, str(path)) == [("a\tb", "x")]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([1, -2, 3], pa.int32()),
        pa.array([1, -2, 3], pa.int64()),
        pa.array(["1", "-2", "3"]).dictionary_encode(),
        pa.array(["1", "-2", "3"], pa.large_string()),
        pa.array(["1", "-2", "3"], pa.string_view()),
        pa.array([b"1", b"-2", b"3"], pa.binary()),
        *(pa.array(map(Decimal, (1, -2, 3)), kind(9, 0)) for kind in DECIMALS),
        pa.DictionaryArray.from_arrays([0, 1, 2], pa.array(map(Decimal, (1, -2, 3)), pa.decimal128(38, 0))),
    ],
    ids=str,
)
def test_types_of_raw_ids(tmp_path: Path, ids: pa.Array) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=ids, r=ids)
    assert rows_of(table_of(path), path) == [("1", "1"), ("-2", "-2"), ("3", "3")]
    integers = find_ranges("tables[4]", table_of(path), plain_file(path), 10)[0].integer_columns
    assert integers == (("tables[4].lhs", "tables[4].rhs") if holds_whole_numbers(ids.type) else ())


@given(st.lists(st.decimals(-(10**38) + 1, 10**38 - 1, places=0), min_size=1))
def test_whole_decimals_are_written_in_digits(values: list[Decimal]) -> None:
    column = pa.chunked_array([pa.array(values, pa.decimal128(38, 0))])
    found = ids_or_null(column, "l", BlockPosition("t", {"l": "l"}, 0))
    assert found.to_pylist() == [str(int(value)) for value in values]
    hundreds = pa.chunked_array([pa.array([Decimal(12300), Decimal(-100)], pa.decimal128(7, -2))])
    assert ids_or_null(hundreds, "l", BlockPosition("t", {"l": "l"}, 0)).to_pylist() == ["12300", "-100"]


@given(st.lists(st.uuids() | st.none()), st.integers(0, 5))
def test_uuids_have_their_usual_text(values: list[uuid.UUID | None], start: int) -> None:
    column = pa.chunked_array([pa.array([value and value.bytes for value in values], pa.uuid()).slice(start)])
    found = ids_or_null(column, "l", BlockPosition("t", {"l": "l"}, 0))
    assert found.to_pylist() == [value and str(value) for value in values[start:]]


def test_ids_of_a_fixed_size(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=number) for number in range(3)]
    table = pa.table(
        {
            "l": pa.array([each.bytes for each in ids], pa.uuid()),
            "r": pa.array([b"ab1", "é2".encode(), b"a c"], pa.binary(3)),
        }
    )
    for name, settings in (("own", {}), ("plain", {"store_schema": False})):
        pq.write_table(table, tmp_path / f"{name}.parquet", **settings)
        rows = rows_of(table_of(tmp_path / f"{name}.parquet"), str(tmp_path / f"{name}.parquet"), 2)
        assert rows == list(zip(map(str, ids), ["ab1", "é2", "a c"], strict=True))


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
    table = table_of(tmp_path / "bucket_00000.orc", lhs="row.u", rhs="row.i")
    with pytest.raises(RawTableError, match=r"bucket_00000\.orc: .*changes of rows .*with transactions"):
        rows_of(table, str(tmp_path / "bucket_00000.orc"))


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
    assert rows_of(table_of(path, lhs="n", rhs="r"), str(path))[0] == ("1", "x ")
    for lhs in ("l", "e.c"):
        table = table_of(path, lhs=lhs, rhs="n")
        blocks = read_blocks(find_ranges("t", table, plain_file(str(path)), 9)[0], 9, Rules(quarantines=True))
        assert [row["lhs"] for good, _ in blocks for row in good.to_pylist()] == ["ab", "日本", "abcde"]


@pytest.mark.parametrize(
    "weights",
    [
        np.array([1, 2, 3]),
        np.array([1, 2, 3], np.float32),
        ["1", "2", "3"],
        pa.array(["1", "2", "3"], pa.string_view()),
    ],
)
def test_types_of_weights(tmp_path: Path, weights: Any) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=["a"] * 3, r=["b"] * 3, w=weights)
    assert [row[-1] for row in rows_of(table_of(path, weight="w"), path)] == [1.0, 2.0, 3.0]


def test_long_ids_make_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.tables.blocks.BLOCK_BYTES", 10_000)
    monkeypatch.setattr("etl.tables.blocks.BLOCK_ROWS", 16)
    path = write_parquet(tmp_path / "t.parquet", l=[f"{n:0500d}" for n in range(200)], r=["x"] * 200)
    (source,) = find_ranges("tables[0]", table_of(path), plain_file(path), 1000)
    sizes = [block.num_rows for block, _ in read_blocks(source, 1000, Rules())]
    assert sum(sizes) == 200
    assert max(sizes) <= 32


# Bad tables: each message names the file, and the row and column where there is one.


def spoilt(column: str, row: int, value: Any) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: list(values) * 2000 for name, values in COLUMNS.items()}
    columns[column][row] = value
    return columns


@pytest.mark.parametrize("column", ["lhs", "rel", "rhs", "w"])
@pytest.mark.parametrize("row", [0, 4321])
def test_null(tmp_path: Path, column: str, row: int) -> None:
    path = write_parquet(tmp_path / "t.parquet", 1000, **spoilt(column, row, None))
    with pytest.raises(RawTableError, match=rf"t\.parquet: row {row + 1} .*column '{column}' .*null"):
        rows_of(table_of(path, **NAMED), path, 1500)


@pytest.mark.parametrize("column", ["lhs", "rel", "rhs"])
def test_empty(tmp_path: Path, column: str) -> None:
    columns = spoilt(column, 4321, "")
    parquet = write_parquet(tmp_path / "t.parquet", 1000, **columns)
    tsv = tmp_path / "t.tsv"
    lines = ["\t".join(row) for row in zip(*columns.values(), strict=True)]
    tsv.write_text("\n".join(["\t".join(columns), *lines]))
    for path in (parquet, str(tsv)):
        with pytest.raises(RawTableError, match=rf"row 4322 .*column '{column}' .*empty"):
            rows_of(table_of(path, **NAMED), path, 1500)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("column", ["lhs", "rhs", "rel", "w"])
def test_strings_that_are_not_utf8(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    """Some writers do not look what they call a string, and pyarrow's readers do not either."""
    bad = pa.array([b"r", b"\xff", b"r"]).cast(pa.string(), safe=False).cast(kind)
    pq.write_table(pa.table({**COLUMNS, column: bad}), tmp_path / "t.parquet")
    first = (
        rf"column '{column}' .*found b'r'" if column == "w" else rf"row 2 .*'{column}' .*not UTF-8: b'.xff'"
    )
    with pytest.raises(RawTableError, match=first):
        rows_of(table_of(tmp_path / "t.parquet", **NAMED), str(tmp_path / "t.parquet"))


@pytest.mark.parametrize("name", ["t.parquet", "t.orc", "t.csv"])
@pytest.mark.parametrize("column", ["nowhere", 4])
def test_missing_column(tmp_path: Path, name: str, column: str | int) -> None:
    WRITERS[name](tmp_path / name)
    with pytest.raises(
        RawTableError, match=rf"{name}: expected a column {column!r} \(rhs\).*'lhs', 'rel', 'rhs', 'w'"
    ):
        find_ranges("tables[0]", table_of(tmp_path / name, rhs=column), plain_file(str(tmp_path / name)), 10)


def test_columns_that_are_ambiguous(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,id,x\na,b,c\n")
    assert rows_of(table_of(path, lhs=0, rhs=1), str(path)) == [("a", "b")]
    with pytest.raises(RawTableError, match="two columns of that name; name it by its number"):
        rows_of(table_of(path, lhs="id", rhs="x"), str(path))
    with pytest.raises(RawTableError, match="are the same column"):
        rows_of(table_of(path, lhs="x", rhs=2), str(path))
    pq.write_table(pa.table([["a"], ["b"]], names=["id", "id"]), tmp_path / "t.parquet")
    with pytest.raises(RawTableError, match="two columns are named 'id', and cannot be told apart"):
        rows_of(table_of(tmp_path / "t.parquet", lhs=0, rhs=1), str(tmp_path / "t.parquet"))


ENDS = {"lhs": "l", "rhs": "r"}
AB = '{"l": "a", "r": "b"}\n'
OTHER = {"l": [1.5], "r": ["x"], "s": ["y"], "w": [[1]]}
FRACTIONS = pa.array([Decimal("1.00")], pa.decimal128(38, 2))
NO_TABLE = "cannot be read as a table"

# A file's name; its bytes or columns; keys of its entry; the message after the name.
BAD_TABLES: list[tuple[str, Any, dict[str, Any], str]] = [
    *(
        ("t.parquet", COLUMNS | {"w": ["1", value, "1"]}, NAMED, r"row 2 .*column 'w' \(weight\): expected a")
        for value in ("many", "nan", "inf", "-1", "", "1e39")
    ),
    ("t.csv", text(",") + b"\xff\xfe,r,x,1", NAMED, r"row 4 .*column 'lhs' .*not UTF-8: b'.xff"),
    ("t.csv", text(",") + b"a,\xff,x,1", NAMED, r"row 4 .*column 'rel' .*not UTF-8: b'.xff"),
    ("t.csv", text(",") + b"a,r,\xff,1", NAMED, r"row 4 .*column 'rhs' .*not UTF-8: b'.xff"),
    ("t.tsv", b"l\tt\nc\t\xe9t\xe9\n", {"rhs": "t"}, r"row 1 .*'t' \(rhs\): not UTF-8: b'.xe9t.xe9'"),
    ("t.parquet", {"l": [b"a", b"\xff"], "r": ["x", "y"]}, {}, "row 2 .*not UTF-8"),
    (
        "t.parquet",
        {"l": pa.array([b"\xff" * 16], pa.binary(16)), "r": ["x"]},
        {},
        r"row 1 .*'0' \(lhs\): not UTF-8",
    ),
    ("t.jsonl", AB.encode() + b'{"l": "\xff", "r": "y"}\n', ENDS, r"row 2 .*column 'l' .*not UTF-8: b'.xff'"),
    ("t.jsonl", AB + '{"l": "a"}\n', ENDS, r"row 2 .*'r' \(rhs\): null"),
    ("t.jsonl", AB + '{"l": "a", "r": ""}\n', ENDS, r"row 2 .*'r' \(rhs\): empty"),
    ("t.jsonl", AB + "l\n", ENDS, "row 2 .*: expected one JSON object in a line: .*: 'l'; .*quarantine"),
    ("t.jsonl", '{"l": "a", "r": {"b": 1}}\n', ENDS, f"{NO_TABLE}|expected strings"),
    ("t.jsonl", '{"l": "a"}\n', ENDS, r"expected a column 'r' \(rhs\), found columns \['l'\]"),
    ("t.parquet", OTHER, {}, r"column '0' \(lhs\): expected strings or integers, found double"),
    (
        "t.parquet",
        OTHER,
        {"lhs": "r", "rhs": "s", "weight": "w"},
        r"column 'w' \(weight\): expected numbers, found list",
    ),
    ("t.parquet", b"PAR1 and no more", {}, NO_TABLE),
    ("t.orc", b"ORC?", {}, NO_TABLE),
    ("t.csv.gz", b"not gzip", {}, NO_TABLE),
    ("t.csv.gz", gzip.compress(text(",") * 1000, mtime=0)[:60], {}, NO_TABLE),
    (
        "t.csv",
        b"a,b\nx,y\nz\n",
        {},
        "row 2 .*expected 2 columns, found 1.*: 'z'; .*etl.on_bad_row: quarantine",
    ),
    ("t.xlsx", b"", {}, "set the table's format"),
    (
        "t.parquet",
        {"l": FRACTIONS, "r": ["x"]},
        {"lhs": "l"},
        r"(?!.*(pandas|BIGINT)).*decimal128\(38, 2\).*CAST\(l AS DECIMAL\(36, 0\)\)",
    ),
]


@pytest.mark.parametrize(("name", "content", "entry", "message"), BAD_TABLES)
def test_bad_tables(tmp_path: Path, name: str, content: Any, entry: dict[str, Any], message: str) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        write_parquet(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RawTableError, match=rf"{name}: (.*({message})|{message})"):
        rows_of(table_of(path, **entry), str(path))


@pytest.mark.parametrize("content", [b"l,r", b"l,r\n", b"l,r\n\n"])
def test_a_header_alone_has_no_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert find_ranges("tables[0]", table_of(path), plain_file(str(path)), 10) == []


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in (
        "a/1.csv",
        "a/2.csv",
        "a/_SUCCESS",
        "a/_temporary/0/4.csv",
        "a/.hidden.csv",
        "b/deep/3.csv",
        "b/x.txt",
        "c[1].csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def found(*paths: str) -> list[str]:
        table = {"path": list(paths), "lhs": 0, "rhs": 1, "relation": "to"}
        config = config_of("out", [table], entities={"n": 1}, top={"input": str(tmp_path)})
        files = find_files(config, TableConfig(**table)).files()
        return [file.uri.removeprefix(f"{tmp_path}/") for file in files]

    assert found("a") == ["a/1.csv", "a/2.csv"]
    assert found("a/2.csv", "a/1.csv", "a") == ["a/1.csv", "a/2.csv"]
    assert found("?/*.csv") == ["a/1.csv", "a/2.csv"]
    assert found("[bc]") == found("[bc]/") == ["b/deep/3.csv", "b/x.txt"]
    assert found(str(tmp_path / "b/*")) == ["b/deep/3.csv", "b/x.txt"]
    assert found("c[1].csv") == ["c[1].csv"]
    for nothing in ("nowhere.csv", "a/*.parquet", "nowhere/*.csv"):
        with pytest.raises(NotFoundError, match="no file there to read rows from"):
            found("a", nothing)


def test_a_new_format_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def head(uri: str, table: Any, chunk_rows: int) -> Head:
        return Head(["lhs", "rhs"], [(0, 2, None)])

    def read(file_range: FileRange, on_bad_line: Any) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"lhs": ["a", "b"], "rhs": ["x", "y"]})

    path = tmp_path / "t.avro"
    path.write_bytes(b"Obj")
    with pytest.raises(RawTableError, match="no format has this suffix"):
        rows_of(table_of(path), str(path))
    monkeypatch.setitem(FORMATS, "avro", TableFormat((".avro",), "", head, read, ignores=OF_TEXT))
    assert rows_of(table_of(path), str(path)) == [("a", "x"), ("b", "y")]
    assert dialect_of(str(path), plain_file(str(path))).options.format == "auto"
    (tmp_path / "t.who").touch()
    with pytest.raises(RawTableError, match=r"\.avro, text .* set the table's format: .*, avro"):
        rows_of(table_of(tmp_path / "t.who"), str(tmp_path / "t.who"))


def test_every_format_can_be_configured() -> None:
    assert set(FORMATS) == set(get_args(FileFormat))
    suffixes = [suffix for each in FORMATS.values() for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)
