"""Columns inside structs, by dotted paths."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest

from etl.tables import nested
from graphmill.config.sections.etl import EntityTableConfig
from graphmill.errors import RawTableError
from tests.etl.tables.test_read_tables import rows_of, table_of

EVENTS: list[dict[str, Any]] = [
    {"event": {"user": f"u{n}", "item": {"id": n, "tags": ["x"]}, "kind": "buys", "w": n / 2}, "at": n}
    for n in range(1, 6)
]
PATHS = {"lhs": "event.user", "rhs": "event.item.id", "relation_column": "event.kind", "weight": "event.w"}


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


def write_orc(rows: list[dict[str, Any]], path: Path) -> None:
    paorc.write_table(pa.Table.from_pylist(rows), path)


def write_json(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


WRITERS = {"parquet": write_parquet, "orc": write_orc, "jsonl": write_json}
Write = Callable[[list[dict[str, Any]], Path], None]


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    def write_rows(rows: list[dict[str, Any]]) -> str:
        path = tmp_path / f"t.{request.param}"
        WRITERS[request.param](rows, path)
        return str(path)

    return write_rows


def test_fields_of_structs(write: Callable[[list[dict[str, Any]]], str]) -> None:
    uri = write(EVENTS)
    expected = [(f"u{n}", str(n), "buys", n / 2) for n in range(1, 6)]
    assert rows_of(table_of(uri, **PATHS), uri, 2) == expected
    entities = EntityTableConfig(path=uri, type="item", id="event.item.id")  # type: ignore[arg-type]
    assert rows_of(entities, uri) == [(str(n),) for n in range(1, 6)]  # type: ignore[arg-type]


def test_a_column_with_a_dot_in_its_name_comes_first(write: Callable[[list[dict[str, Any]]], str]) -> None:
    uri = write([{"a.b": "column", "a": {"b": "field", "c": "c"}, "c.d": {"e": "deep"}}])
    assert rows_of(table_of(uri, lhs="a.b", rhs="a.c"), uri) == [("column", "c")]
    assert rows_of(table_of(uri, lhs="c.d.e", rhs="a.c"), uri) == [("deep", "c")]


def test_a_null_struct_is_a_null_id(write: Callable[[list[dict[str, Any]]], str]) -> None:
    uri = write([*EVENTS, {"event": None, "at": 9}])
    with pytest.raises(RawTableError, match=r"row 6 .*column 'event\.user' \(lhs\): null"):
        rows_of(table_of(uri, lhs="event.user", rhs="at"), uri)


@pytest.mark.parametrize("missing", ["event.usr", "event.item", "at.user", "event.", ""])
def test_a_missing_field_is_told_with_the_known_names(
    write: Callable[[list[dict[str, Any]]], str], missing: str
) -> None:
    uri = write(EVENTS)
    known = r"columns \['event\.user', 'event\.item\.id', 'event\.item\.tags', 'event\.kind', .*'at'\]"
    with pytest.raises(RawTableError, match=rf"expected a column '{missing}' \(lhs\), found {known}"):
        rows_of(table_of(uri, lhs=missing, rhs="at"), uri)


def test_types_of_only_the_fields_to_read() -> None:
    kinds = [(("a", "b"), pa.int64()), (("a", "c", "d"), pa.string()), (("e",), pa.string())]
    assert nested.joined(kinds) == {
        "a": pa.struct([("b", pa.int64()), ("c", pa.struct([("d", pa.string())]))]),
        "e": pa.string(),
    }
