"""JSON lines as they come: columns that nobody asks for, ids of several types, columns inside structs."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.tables.data_file import plain_file
from etl.tables.formats import FORMATS
from etl.tables.formats import base as line_files
from etl.tables.ranges import find_ranges
from etl.tables.read import read_whole
from graphmill.config.sections.etl import EntityTableConfig, WholeTableConfig
from graphmill.errors import RawTableError
from graphmill.formats.raw_tables import rows as text_rows
from tests.etl.graphs import write_table
from tests.etl.tables.test_read_tables import rows_of, rows_of_ranges, table_of
from tests.etl.tables.test_text import quarantined, read

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
    (source,) = find_ranges("t", table, plain_file(str(path)), 10)
    found = pa.concat_tables(block for _, block in read_whole(source)).rename_columns(list(rows[0]))
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
        found = rows_of_ranges(find_ranges("t", table_of(path, **ENDS), file, 10))
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
        found = rows_of_ranges(find_ranges("t", table_of(path, **ends), plain_file(str(path)), 1))
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
        rows_of(table_of(uri, lhs="event.user", rhs="at"), uri)
    write_table(path, EVENTS, 2)
    expected = [(f"u{n}", str(n), "buys", n / 2) for n in range(1, 6)]
    assert rows_of(table_of(uri, **PATHS), uri, 2) == expected
    entities = EntityTableConfig(path=uri, type="item", id="event.item.id")
    assert rows_of(entities, uri) == [(str(n),) for n in range(1, 6)]
    known = r"columns \['event\.user', 'event\.item\.id', 'event\.item\.tags', 'event\.kind', .*'at'\]"
    for missing in ("event.usr", "event.item", "at.user", "event.", ""):
        with pytest.raises(RawTableError, match=rf"expected a column '{missing}' \(lhs\), found {known}"):
            rows_of(table_of(uri, lhs=missing, rhs="at"), uri)


def test_a_column_with_a_dot_in_its_name_comes_first(path: Path) -> None:
    uri = write_table(path, [{"a.b": "column", "a": {"b": "field", "c": "c"}, "c.d": {"e": "deep"}}])
    assert rows_of(table_of(uri, lhs="a.b", rhs="a.c"), uri) == [("column", "c")]
    assert rows_of(table_of(uri, lhs="c.d.e", rhs="a.c"), uri) == [("deep", "c")]
    write_table(path, [{"a.b": {"c": "column"}, "a": {"b": {"c": "field"}}, "x": "x"}])
    assert rows_of(table_of(uri, lhs="a.b.c", rhs="x"), uri) == [("column", "x")]
