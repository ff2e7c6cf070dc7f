"""Files that the path of a table names: Hive folders, filters, paths that are missing, what no path names."""

import datetime
import itertools
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etl.tables.files import TableFiles, table_roots
from etl.tables.filters import expression, left_for_rows, rows_that_pass
from etl.tables.ranges import find_ranges
from graphmill.config.sections.etl import Filters
from graphmill.errors import NotFoundError, RawTableError
from tests.etl.graphs import config_of, write_parquet, write_table
from tests.etl.tables.lakes import found_in, opened_files, read, rows_of

VALUES = ["de", "a b", "a/b", "ä=%", "__HIVE_DEFAULT_PARTITION__", "07"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file per day and country, with one row: u is the number of the file."""
    for number, (day, value) in enumerate(itertools.product((1, 2), VALUES)):
        path = tmp_path / f"day=2026-11-0{day}/c={quote(value, safe='')}/part-{number}.parquet"
        write_parquet(path, u=[f"{number:02d}"], i=["x"], n=[number])
    return tmp_path


def test_columns_of_folders(folder: Path) -> None:
    rows, bad = read(folder, rhs="c", weight="n")
    every = [(f"{n:02d}", value, float(n)) for n, value in enumerate(VALUES * 2)]
    assert rows == [row for row in every if row[1] != "__HIVE_DEFAULT_PARTITION__"]
    assert bad == [("rhs: null", 1)] * 2


CASES: list[tuple[Any, list[int]]] = [
    ([["day", "==", "2026-11-02"]], [6, 7, 8, 9, 10, 11]),
    ([["day", "=", datetime.date(2026, 11, 1)], ["c", "in", ["de", "a b"]]], [0, 1]),
    ([["c", "==", None]], [4, 10]),
    ([["c", "==", "a/b"]], [2, 8]),
    ([["c", "!=", "de"], ["day", "<", "2026-11-02"]], [1, 2, 3, 5]),
    ([["c", "not in", ["de", "07"]], ["day", "<", "2026-11-02"]], [1, 2, 3]),
    ([[["c", "==", "de"]], [["day", "==", "2026-11-02"], ["c", "in", [None, "07"]]]], [0, 6, 10, 11]),
]


def test_filters_on_folders_open_no_other_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for filters, numbers in CASES:
        with opened_files(monkeypatch) as opened:
            rows = rows_of(folder, filters=filters)
        assert [int(row[0]) for row in rows] == numbers
        assert {int(name[5:-8]) for name in opened} == set(numbers)


def test_numbers_in_folders(tmp_path: Path) -> None:
    for hour in ("07", "8", "10"):
        write_parquet(tmp_path / f"hour={hour}/a.parquet", u=[hour], i=["x"])
    assert [row[0] for row in rows_of(tmp_path, filters=[["hour", ">=", 8]])] == ["10", "8"]
    assert [row[0] for row in rows_of(tmp_path, filters=[["hour", ">=", "8"]])] == ["8"]
    with pytest.raises(RawTableError, match=r"hour=07/a.parquet: .*none of 3 files has rows .*hour > 10"):
        found_in(tmp_path, filters=[["hour", ">", 10]])


TYPED = [
    {"u": f"u{n}", "i": "xy"[n % 2], "n": n, "w": n / 2, "at": f"2026-11-{n % 28 + 1:02d}"} for n in range(40)
]


@pytest.mark.parametrize("suffix", ["parquet", "orc", "csv", "jsonl"])
def test_filters_on_rows_of_each_format(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"t.{suffix}", TYPED, 4)
    for filters, numbers in (
        ([["n", "in", [1, 3, 70]], ["i", "==", "y"]], [1, 3]),
        ([["u", "==", "u7"]], [7]),
        ([["w", "<", 1.5]], [0, 1, 2]),
        ([["n", "<", 2.5], ["w", "!=", 1]], [0, 1]),
        ([[["at", "<", "2026-11-02"]], [["n", "==", 5]]], [0, 28, 5]),
    ):
        for chunk_rows in (3, 1000):
            rows = rows_of(path, chunk_rows, weight="n", filters=filters)
            assert sorted(int(row[2]) for row in rows) == sorted(numbers)
        assert len(rows_of(path, filters=filters)) == len(numbers)


def test_row_groups_without_such_rows_are_not_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", TYPED, 4)
    for filters, cuts in (
        ([["n", ">=", 37]], [((9, 10), 36)]),
        ([["n", "in", [0, 39]]], [((0, 1), 0), ((9, 10), 36)]),
        ([[["n", "<", 12]], [["n", "==", 38]]], [((0, 2), 0), ((2, 3), 8), ((9, 10), 36)]),
        ([["u", "==", "zz"]], []),
    ):
        found = found_in(path, filters=filters)
        (file,) = found.files()
        assert [(each.cut, each.first_row) for each in find_ranges(found.table, file, 8)] == cuts


def test_rows_keep_their_numbers(tmp_path: Path) -> None:
    columns = {"u": ["a", "b", None, "d", None], "i": ["x"] * 5, "n": [1, 2, 3, 4, 5]}
    path = write_parquet(tmp_path / "t.parquet", 2, **columns)
    rows, bad = read(path, filters=[["n", ">", 1], ["n", "<", 5]])
    assert (rows, bad) == ([("b", "x"), ("d", "x")], [("lhs: null", 3)])
    text = tmp_path / "t.csv"
    text.write_text("u,i,n\na,x,1\nb,x\n,x,3\nd,x,4\n")
    rows, bad = read(text, filters=[["n", "!=", 1]])
    assert rows == [("d", "x")]
    assert bad == [("lhs: empty", 3), ("number of fields", 2)]


def test_a_part_with_a_column_of_nulls(tmp_path: Path) -> None:
    """pandas writes such a column without a type."""
    write_parquet(tmp_path / "a.parquet", u=["a", "b"], i=["x", "y"], k=["k", "l"], n=[1, 2])
    write_parquet(tmp_path / "b.parquet", u=["c"], i=["z"], k=[None], n=[None])
    for condition, ids in (
        (["k", "==", "k"], ["a"]),
        (["k", "!=", "k"], ["b"]),
        (["k", "not in", ["k", "m"]], ["b"]),
        (["n", ">=", 1], ["a", "b"]),
        (["n", "in", [2, 3]], ["b"]),
        (["k", "==", None], ["c"]),
    ):
        assert [lhs for lhs, _ in rows_of(tmp_path, filters=[condition])] == ids


def test_columns_inside_structs(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", u=["a", "b"], i=["x", "y"], e=[{"n": 1}, {"n": 2}])
    assert rows_of(path, filters=[["e.n", "==", 2]]) == [("b", "y")]
    assert rows_of(path, rhs="e.n", filters=[["e.n", "==", 2]]) == [("b", "2")]


def test_filters_that_do_not_fit_the_table(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", u=["a"], i=["x"], n=[1])
    for condition, message in (
        (["m", "==", 1], r"t\.parquet: expected a column 'm' \(filter m\), found columns \['u', 'i', 'n'\]"),
        (["n", "==", "many"], r"filters: n is of type int64, which 'many' cannot be compared with"),
        (["u", ">", 3], r"filters: u is text that cannot be compared with 3: .*quote the value"),
    ):
        with pytest.raises(RawTableError, match=message):
            rows_of(path, filters=[condition])
    with pytest.raises(RawTableError, match="snapshots are those of such tables"):
        found_in(path, snapshot=3)


CONDITIONS = st.tuples(
    st.sampled_from("ab"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(0, 3)
) | st.tuples(
    st.sampled_from("ab"),
    st.sampled_from(["in", "not in"]),
    st.lists(st.integers(0, 3) | st.none(), min_size=1, max_size=3).map(tuple),
)
FILTERS: st.SearchStrategy[Filters] = st.lists(
    st.lists(CONDITIONS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)
ROWS = list(itertools.product([None, 0, 1, 2, 3], repeat=2))


@given(FILTERS)
def test_conditions_left_for_rows_and_bounds_lose_no_row(filters: Filters) -> None:
    """Each row is a file whose column a all rows share, and whose column b has bounds."""
    columns = {
        name: pa.chunked_array([pa.array(list(one), pa.int64())])
        for name, one in zip("ab", zip(*ROWS, strict=True), strict=True)
    }
    expected = rows_that_pass(filters, columns).to_pylist()
    assert expected == [_passes(filters, dict(zip("ab", row, strict=True))) for row in ROWS]
    spans = {"b": (columns["b"], columns["b"])}
    for shared, bounds in (({"a": columns["a"]}, spans), ({"a": columns["a"]}, {}), (columns, {})):
        for row, left, passes in zip(
            ROWS, left_for_rows(filters, shared, bounds, len(ROWS)), expected, strict=True
        ):
            known = dict(zip("ab", row, strict=True))
            assert (left is not None and (left == () or _passes(left, known))) == passes
            assert left in (None, ()) or bounds or set(shared) == {"a"}


def _passes(filters: Filters, row: dict[str, Any]) -> bool:
    return any(
        all(_holds(row[column], operator, value) for column, operator, value in every) for every in filters
    )


def _holds(found: Any, operator: str, value: Any) -> bool:
    if operator == "in":
        return found in value
    if found is None:
        return False
    if operator == "not in":
        return found not in value
    return bool(_OPERATORS[operator](found, value))


_OPERATORS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def _columns() -> Iterator[pa.Array]:
    day, time = datetime.date(2026, 11, 1), datetime.datetime(2026, 11, 1, 1)
    of_kinds: list[tuple[list[Any], list[pa.DataType]]] = [
        ([1, 2, None], [pa.int8(), pa.int64(), pa.uint8(), pa.uint64()]),
        ([1, 2, None], [pa.float32(), pa.float64(), pa.decimal128(9, 2)]),
        (["1", "b", None], [pa.string(), pa.large_string(), pa.string_view()]),
        ([b"1", b"\xff", None], [pa.binary(), pa.large_binary()]),
        ([time, None, time], [pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin")]),
    ]
    yield from (pa.array(values, kind) for values, kinds in of_kinds for kind in kinds)
    yield from (pa.array(each).dictionary_encode() for each in (["1", "b", None], [1, 2, None]))
    yield from (pa.array(each) for each in ([True, False, None], [day, day, None], [[1], None, [2]]))
    yield from (pa.array([datetime.time(1), None, None]), pa.nulls(3), pa.array([{"a": 1}, None, {"a": 2}]))


NUMBERS: list[Any] = [1, 2**40, 2**70, -1, 1.5, float("inf"), True, None]
COMPARED: list[Any] = [*NUMBERS, "1", "b", "2026-11-01", "2026-11-01 01:00:00", "true", "", "ä"]
ANY_VALUE = st.sampled_from(COMPARED)


def test_a_list_of_one_value_is_like_the_value() -> None:
    """`in [x]` passes the rows that `== x` passes, and is refused where that is."""
    for array, value in itertools.product(_columns(), [value for value in COMPARED if value is not True]):
        found = []
        for operator, given_value in (("==", value), ("in", (value,))):
            found.append(None)
            with suppress(RawTableError):
                columns = {"x": pa.chunked_array([array])}
                found[-1] = rows_that_pass(((("x", operator, given_value),),), columns).to_pylist()
        assert found[0] == found[1], (array.type, value)


@given(
    st.sampled_from(list(_columns())),
    st.sampled_from(["==", "!=", "<", ">=", "in", "not in"]),
    st.lists(ANY_VALUE, min_size=1, max_size=2),
)
def test_any_value_and_any_column_are_compared_or_refused(array, operator, values):
    value = tuple(values) if operator.endswith("in") else values[0]
    if value is None and operator not in ("==", "!="):
        return
    filters = ((("x", operator, value),),)
    column = pa.chunked_array([array])
    table = pa.table({"x": column})
    for compare in (
        lambda: rows_that_pass(filters, {"x": column}),
        lambda: left_for_rows(filters, {}, {"x": (column, column)}, 3),
        lambda: expression(filters, {"x": column.type}),
    ):
        with suppress(RawTableError):
            compare()
    try:
        passes = rows_that_pass(filters, {"x": column}).to_pylist()
        wanted = expression(filters, {"x": column.type})
        left = left_for_rows(filters, {}, {"x": (column, column)}, 3)
        pruned = table.append_column("row", pa.array([0, 1, 2])).filter(wanted)["row"].to_pylist()
    except (RawTableError, pa.ArrowInvalid, pa.ArrowNotImplementedError):  # then no row group is left out
        return
    kept = {row for row, is_kept in enumerate(passes) if is_kept}
    assert kept <= set(pruned)
    assert kept <= {row for row, of_row in enumerate(left) if of_row is not None}


FLOATS = st.lists(st.sampled_from([float("nan"), 1.0, 2.0, -0.0, None]), min_size=1, max_size=6)


@given(
    FLOATS,
    FLOATS,
    st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]),
    st.sampled_from([0, 1.0]),
)
@example([float("nan"), 1.0], [2.0], "!=", 1.0)
@settings(max_examples=60)
def test_rows_with_nan_pass_whatever_the_statistics_say(first, second, operator, value):
    """Statistics of parquet leave NaN out."""
    values = [*first, *second]
    names = [f"{number:02d}" for number in range(len(values))]
    table = pa.table({"u": names, "i": ["x"] * len(values), "w": pa.array(values, pa.float64())})
    filters = [["w", operator, [value] if operator.endswith("in") else value]]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/t.parquet", row_group_size=len(first))
        found = [row[0] for row in rows_of(f"{folder}/t.parquet", filters=filters)]
    compare = {"in": eq, "not in": ne}.get(operator) or _OPERATORS[operator]
    assert found == [
        name for name, one in zip(names, values, strict=True) if one is not None and compare(one, value)
    ]


def test_bounds_that_are_nan_leave_no_file_out() -> None:
    low, high = (pa.chunked_array([pa.array([value, value])]) for value in (1.0, float("nan")))
    for operator in ("==", ">", ">=", "<", "in"):
        filters: Filters = ((("w", operator, (7,) if operator == "in" else 7),),)
        assert None not in left_for_rows(filters, {}, {"w": (low, high)}, 2)


TIMES = [datetime.datetime(9999, 12, 31), datetime.datetime(2026, 1, 1), datetime.datetime(1, 1, 1)]
UUIDS = [uuid.UUID(int=number) for number in range(4)]
DAY = "2026-11-01"
# A column; the names, among a, b, c, d, of the rows that pass each condition.
ODD_COLUMNS: dict[str, tuple[pa.Array, list[tuple[str, Any, str]]]] = {
    "times of Hive beyond nanoseconds": (
        pa.array(TIMES, pa.timestamp("us")),
        [(">", DAY, "a"), ("<=", DAY, "bc"), ("==", DAY, "")],
    ),
    "uuids": (
        pa.array([each.bytes for each in UUIDS], pa.uuid()),
        [("==", str(UUIDS[1]), "b"), ("in", [str(UUIDS[0]), str(UUIDS[3])], "ad"), ("!=", None, "abcd")],
    ),
    "bytes of a fixed size": (pa.array([b"a", b"b"] * 2, pa.binary(1)), [("!=", "a", "bd")]),
    "text, whose statistics are not those of numbers": (
        pa.array(["9", "10"]),
        [(">", 9, "b"), (">", "10", "a")],
    ),
}


@pytest.mark.parametrize("name", ODD_COLUMNS)
@pytest.mark.parametrize("row_group_size", [1, 2])
def test_conditions_on_odd_columns(tmp_path: Path, name: str, row_group_size: int) -> None:
    column, conditions = ODD_COLUMNS[name]
    table = pa.table({"u": list("abcd")[: len(column)], "i": ["x"] * len(column), "c": column})
    as_hive = {"use_deprecated_int96_timestamps": True, "row_group_size": row_group_size}
    pq.write_table(table, tmp_path / "t.parquet", **as_hive)
    for operator, value, names in conditions:
        rows = rows_of(tmp_path / "t.parquet", filters=[["c", operator, value]])
        assert "".join(row[0] for row in rows) == names


def test_days_that_are_missing(tmp_path: Path) -> None:
    for day in (1, 3):
        write_parquet(tmp_path / f"day={day}/a.parquet", u=[str(day)], i=["x"])
    paths = [f"{tmp_path}/day={day}/*.parquet" for day in range(1, 5)]
    message = r"day=2/\*\.parquet, .*day=4/.*: no file there .*missing_paths: skip"
    for wrong, missing_paths, told in (
        (paths, "fail", message),
        ([paths[1], paths[3]], "skip", "missing_paths: skip .*, not without all$"),
        ([paths[1]], "fail", r"no file there to read rows from; correct the path$"),
        (["day=2"], "fail", r"relative paths start at input, which is not set$"),
    ):
        with pytest.raises(NotFoundError, match=told):
            found_in(wrong, missing_paths=missing_paths)
    found = found_in(paths, missing_paths="skip")
    assert found.missing == (paths[1], paths[3])
    assert [file.uri for file in found.files()] == [f"{tmp_path}/day={day}/a.parquet" for day in (1, 3)]


def listed(path: Any, **top: str) -> TableFiles:
    return found_in(path, top, format="csv")


def found(path: str, **top: str) -> list[str]:
    """Names of the files that a path names; `top` has keys beside the section etl."""
    return [Path(file.uri).name for file in listed(path, **top).files()]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def named(tmp_path: Path) -> Path:
    touch(tmp_path, "a.csv", "_a.csv", ".a.csv", "_SUCCESS", "_temporary/b.csv", ".cache/c.csv")
    touch(tmp_path, "_started_7", "_committed_7", "_committed_vacuum7")  # of Databricks
    touch(tmp_path, "d=1/d.csv", "_d=1/e.csv", "d=1/_f.csv", "d=1/.g.csv", "_logs/h.csv")
    return tmp_path


def test_hidden_files_and_markers_are_skipped_unless_named(named: Path) -> None:
    for paths, names in (
        (["", "*"], ["e.csv", "a.csv", "d.csv"]),
        (["*.csv", "[_.a]*.csv"], ["a.csv"]),
        (["*/*.csv"], ["e.csv", "d.csv"]),
        (["_*.csv", "_a.csv"], ["_a.csv"]),
        ([".a.csv"], [".a.csv"]),
        (["_logs", "_logs/*"], ["h.csv"]),
    ):
        for path in paths:
            assert found(f"{named}/{path}") == names
    for path in ("?a.csv", ".*"):
        with pytest.raises(NotFoundError):
            found(f"{named}/{path}")


@pytest.mark.parametrize("root", ["{}", "file://{}"])
def test_a_folder_of_tables_never_holds_the_run_s_own_output(named: Path, root: str) -> None:
    touch(named, "out/embeddings/a/part-00000.csv", "out/stray.csv", "outer/z.csv", "d=1/out/y.csv")
    inside, place = str(named / "out"), root.format(named)
    assert found(place, output=inside) == ["e.csv", "a.csv", "d.csv", "y.csv", "z.csv"]
    assert found(f"{place}/*/*.csv", output=inside) == ["e.csv", "d.csv", "z.csv"]
    assert found(f"{place}/*", output=inside) == ["e.csv", "a.csv", "d.csv", "y.csv", "z.csv"]
    assert "y.csv" not in found(place, output=str(named / "d=1" / "out"))
    link = named.with_name(f"{named.name}-link")
    link.symlink_to(named)
    assert found(str(link), output=inside) == found(place, output=inside)
    link.unlink()


LOGS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00000-5c6a.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Paimon": "schema/schema-0",
    "Spark's Structured Streaming": "_spark_metadata/0",
}
REMEDIES = {
    "Delta Lake": "set the path of the table to .*/lake/table:",
    "Iceberg": "set the path of the table",
}


@pytest.mark.parametrize("name", LOGS)
def test_tables_with_a_log_are_refused(tmp_path: Path, name: str) -> None:
    touch(tmp_path, f"lake/table/{LOGS[name]}", "lake/table/data/x.csv", "lake/table/y.csv")
    (tmp_path / "today").symlink_to(tmp_path / "lake/table/data")
    remedy = REMEDIES.get(name, r"write\.parquet")
    for path in (
        *("lake/table/*.csv", "lake/table/data", "lake/table/data/*.csv", "lake/table/data/x.csv", "lake"),
        *("lake/*", "lake/*/data/*.csv", "lake/t*/*.csv", "l*/table/data", "today"),
        *([] if name in REMEDIES else ["lake/table", "lake/table/"]),  # no reader knows it
    ):
        with pytest.raises(RawTableError, match=rf"lake/table/?: .*a table of {name}, .*{remedy}"):
            found(f"{tmp_path}/{path}")


@pytest.mark.parametrize("partition", ["", "/day=2026-11-01"])
def test_managed_tables_of_hive_are_refused_by_name(tmp_path: Path, partition: str) -> None:
    kinds = ["base_0000002", "base_0000002_v0000123", "delta_0000001_0000001", "delta_0000001_0000001_0000"]
    for number, below in enumerate([*kinds, "delete_delta_0000003_0000003_0000"]):
        table = f"{tmp_path}/{number}/orders"
        touch(Path(table), f".{partition}/{below}/000000_0.csv")
        message = rf"{table}{partition}: .*Hive \(managed.*CREATE EXTERNAL TABLE"
        for path in ("", partition, *(f"{partition}/{end}" for end in ("*", below, f"{below}/*"))):
            with pytest.raises(RawTableError, match=message):
                found(table + path)


def test_folders_like_those_of_hive_are_plain(tmp_path: Path) -> None:
    """So are folders of metadata of other tools."""
    touch(tmp_path, "base_1/a.csv", "delta_2026/b.csv", "schema/c.csv", "base_0000002x/d.csv")
    touch(tmp_path, "metadata/about.csv", "_metadata", "_delta_logs/x", "x.csv")
    assert found(str(tmp_path)) == ["d.csv", "a.csv", "b.csv", "about.csv", "c.csv", "x.csv"]


def test_a_table_of_ducklake_is_refused(tmp_path: Path) -> None:
    name = "ducklake-019a5c3e-7f11-7a52-8f2e-0a1b2c3d4e5f.parquet"
    touch(tmp_path, f"main/orders/{name}", "main/orders/x.csv")
    for path in ("main", "main/orders/*", f"main/orders/{name}"):
        with pytest.raises(RawTableError, match=r"main/orders: .*a table of DuckLake.*COPY"):
            found(f"{tmp_path}/{path}")


@pytest.mark.parametrize(("mark", "name"), [("iceberg.schema", "Iceberg"), ("hoodie_min_record_key", "Hudi")])
def test_a_file_that_was_taken_out_of_its_table_is_refused(tmp_path: Path, mark: str, name: str) -> None:
    table = pa.table({"u": ["a"], "i": ["x"]}).replace_schema_metadata({mark: "{}"})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(RawTableError, match=rf"t\.parquet: .*of a table of {name} \({mark} in its footer\)"):
        rows_of(tmp_path / "t.parquet")


UNFINISHED = ["a.csv._COPYING_", "b.csv.inprogress", "c.csv.inprogress.6f1c", "d.in-progress", "e.csv.tmp"]
UNFINISHED += ["f.csv~", "g.csv.crdownload", "h.partial", "_temporary", "+tmp", "i.tmp"]


def test_files_of_writers_at_work_are_left_out_and_listed(tmp_path: Path) -> None:
    touch(tmp_path, *UNFINISHED[:8], "_temporary/0/a.csv", "+tmp/b.csv", "i.tmp/c.csv", "x.csv", "k=~/y.csv")
    every = sorted(UNFINISHED)
    for path in ("", "*"):
        listing = listed(f"{tmp_path}/{path}")
        assert [Path(each.uri).name for each in listing.files()] == ["y.csv", "x.csv"]
        assert sorted(Path(each).name for each in listing.unfinished) == every
    assert found(f"{tmp_path}/e.csv.tmp") == ["e.csv.tmp"]
    assert found(f"{tmp_path}/*.tmp") == ["e.csv.tmp", "c.csv"]
    assert found(f"{tmp_path}/*.csv") == ["x.csv"]
    touch(tmp_path / "none", "part-0._COPYING_")
    with pytest.raises(NotFoundError, match=r"no finished file there .*part-0._COPYING_"):
        found(f"{tmp_path}/none")


def test_a_name_with_brackets_that_exists_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "run1/a.csv", "run[1]/b.csv", "run[1]/day[2]/c.csv", "run1/day2/d.csv", "run[1]/e1.csv")
    assert found(f"{tmp_path}/run[1]") == ["b.csv", "c.csv", "e1.csv"]
    assert found(f"{tmp_path}/run[1]/*.csv") == ["b.csv", "e1.csv"]
    assert found(f"{tmp_path}/run[1]/day[2]/*") == ["c.csv"]
    assert found(f"{tmp_path}/*/day[2]/*") == ["d.csv", "c.csv"]
    assert found(f"{tmp_path}/run[1]/e[1].csv") == ["e1.csv"]
    monkeypatch.chdir(tmp_path / "run[1]")
    assert found("*.csv") == found("./*.csv") == ["b.csv", "e1.csv"]


@pytest.mark.parametrize("root", ["{}", "file://{}"])
def test_the_input_is_never_a_pattern(tmp_path: Path, root: str) -> None:
    touch(tmp_path, "run1/a.csv")
    place = root.format(f"{tmp_path}/run[1]")
    with pytest.raises(NotFoundError, match=r"run\[1\]/\*\.csv: no file there"):
        found("*.csv", input=place)
    touch(tmp_path, "run[1]/b.csv")
    for path in ("*.csv", "b.csv", "[b].csv", "./*.csv"):
        assert found(path, input=place) == ["b.csv"]


def test_a_file_counts_once_whatever_links_lead_to_it(tmp_path: Path) -> None:
    touch(tmp_path, "t/day=1/a.csv", "t/day=2/b.csv", "other/c.csv")
    links = {"t/loop": "t", "t/day=1/up": "t", "t/a-link.csv": "t/day=1/a.csv", "t/current": "t/day=2"}
    for link, target in (links | {"t/out": "other", "t/out2": "other"}).items():
        (tmp_path / link).symlink_to(tmp_path / target)
    listing = listed(f"{tmp_path}/t")
    assert [Path(each.uri).relative_to(tmp_path) for each in listing.files()] == [
        Path(each) for each in ("t/day=1/a.csv", "t/day=2/b.csv", "t/out/c.csv")
    ]
    assert {Path(each).parent.name for each in listing.twice} == {"t", "current", "out2"}
    both = listed([f"{tmp_path}/t/day=1/a.csv", f"{tmp_path}/t/*.csv"])
    assert [Path(each.uri).name for each in both.files()] == ["a.csv"]


def test_a_folder_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    for name in ("rel=%E0%A4", "rel=%ff", "%C3=x"):
        touch(tmp_path / name, f"{name}/a.csv")
        with pytest.raises(RawTableError, match=rf"/{name}: expected a folder's name in UTF-8"):
            found(f"{tmp_path}/{name}")


def test_roots_of_tables(tmp_path: Path) -> None:
    touch(tmp_path, "odd[1].csv")
    paths = ["a.csv", "b/*.csv", "c/d=*/e/*.csv", "odd[1].csv"]
    chosen = config_of("out", [{"path": [f"{tmp_path}/{path}" for path in paths]}])
    assert table_roots(chosen) == [f"{tmp_path}/{name}" for name in ("a.csv", "b", "c", "odd[1].csv")]
