"""Ranges are read in rounds: every worker has one range per round."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.tables import ranges
from etl.tables.check_rows import Rules
from etl.tables.data_file import plain_file
from etl.tables.ranges import FileRange, balanced, find_ranges, grouped
from etl.tables.read import read_blocks
from graphmill.config.sections.etl import TableConfig

NUM_ROWS = 100_000


@pytest.fixture
def sources(tmp_path: Path) -> list[FileRange]:
    """Three ranges of one file of 4 MB, and a file that is not cut."""
    path, packed = tmp_path / "t.tsv", tmp_path / "u.csv"
    path.write_text("head\tof\n" + "".join(f"{n:020d}\t{n % 7:020d}\n" for n in range(NUM_ROWS)))
    packed.write_text("head,of\na,b\n")
    table = TableConfig(path=str(tmp_path), lhs="head", rhs="of", relation="r")
    found = [
        each
        for uri in (path, packed)
        for each in find_ranges("tables[0]", table, plain_file(str(uri)), 40_000)
    ]
    assert len(found) == 4
    return found


def rows(sources: list[FileRange]) -> list[str]:
    return [
        lhs
        for source in sources
        for block, _ in read_blocks(source, 1000, Rules())
        for lhs in block["lhs"].to_pylist()
    ]


def test_a_round_is_filled(sources: list[FileRange], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MIN_BALANCED_BYTES", 1 << 19)
    found = balanced(sources, 6)
    assert len(found) == 6
    assert [each.uri for each in found] == [sources[0].uri] * 5 + [sources[-1].uri]
    assert rows(found) == rows(sources)
    assert sum(each.num_bytes for each in found) == sum(each.num_bytes for each in sources)
    sizes = [each.cut[1] - each.cut[0] for each in found if each.cut]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("num_workers", "min_bytes"), [(4, 1), (1, 1), (0, 1), (3, 1 << 21)])
def test_balanced_ranges_stay_as_they_are(
    sources: list[FileRange], num_workers: int, min_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MIN_BALANCED_BYTES", min_bytes)
    assert balanced(sources, num_workers) == sources
    assert balanced([], num_workers) == []
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
def test_groups_are_small_and_hold_neighbours_of_one_table(
    sizes: list[tuple[str, int, int]], num_workers: int, chunk_rows: int
) -> None:
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
