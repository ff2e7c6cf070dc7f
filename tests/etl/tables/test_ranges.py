"""Ranges of files, and columns from paths: the same rows, however the files are cut and shared out."""

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as paorc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.tables import ranges
from etl.tables.data_file import plain_file
from etl.tables.formats import base as line_files
from etl.tables.ranges import FileRange, balanced, find_ranges, grouped
from graphmill.config.sections.etl import TableConfig
from graphmill.errors import RawTableError
from tests.etl.tables.test_read_tables import NAMED, rows_of, rows_of_ranges, table_of


def test_a_bad_row_of_a_range_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", 100)
    path = tmp_path / "t.tsv"
    path.write_text("l\tr\n" + "a\tb\n" * 200 + "bad\t\n" + "a\tb\n" * 200)
    with pytest.raises(RawTableError, match=r"t\.tsv: row \d+ \(counted from byte \d+\), .*empty") as raised:
        rows_of(table_of(path), str(path), 10)
    row, byte = map(int, re.findall(r"row (\d+) \(counted from byte (\d+)\)", str(raised.value))[0])
    content = path.read_bytes()
    first_line = 0 if content[byte - 1 : byte] == b"\n" else 1
    assert content[byte:].split(b"\n")[first_line + row - 1] == b"bad\t"


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.ndjson.gz"])
def test_json_lines(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "MIN_RANGE_BYTES", 50)
    made = [
        {"other": [n], "rhs": f'x "{n}"\n', "lhs": n, "w": n / 2, "rel": "2026-01-01"} for n in range(1, 60)
    ]
    content = "".join(json.dumps(row) + "\n" for row in made).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    table = table_of(tmp_path / name, **NAMED)
    found = find_ranges("tables[0]", table, plain_file(str(tmp_path / name)), 5)
    expected = [(str(n), f'x "{n}"\n', "2026-01-01", n / 2) for n in range(1, 60)]
    assert rows_of_ranges(found, 7) == expected
    assert (len(found) == 1) == name.endswith("gz")
    assert found[0].integer_columns == ("tables[0].lhs",)


def test_orc_by_stripes(tmp_path: Path) -> None:
    path = str(tmp_path / "t.orc")
    ids = [f"{n:0200d}" for n in range(60_000)]
    paorc.write_table(pa.table({"l": ids, "r": ids}), path, stripe_size=1 << 20, compression="uncompressed")
    found = find_ranges("t", table_of(path), plain_file(path), 1000)
    assert len(found) > 3
    assert rows_of_ranges(found) == [(each, each) for each in ids]


@pytest.fixture
def sources(tmp_path: Path) -> list[FileRange]:
    """Three ranges of one file of 4 MB, and a file that is not cut."""
    path, packed = tmp_path / "t.tsv", tmp_path / "u.csv"
    path.write_text("head\tof\n" + "".join(f"{n:020d}\t{n % 7:020d}\n" for n in range(100_000)))
    packed.write_text("head,of\na,b\n")
    table = TableConfig(path=str(tmp_path), lhs="head", rhs="of", relation="r")
    found = [
        each
        for uri in (path, packed)
        for each in find_ranges("tables[0]", table, plain_file(str(uri)), 40_000)
    ]
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
