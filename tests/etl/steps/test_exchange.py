"""Intermediate files: compressed as configured, read back by batches, combined with far fewer opens."""

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.steps import exchange, spill
from etl.steps.exchange import MAX_OPEN_FILES, Exchange
from etl.steps.spill import share
from graphmill.config.sections.etl import Compression, EtlConfig
from graphmill.errors import DiskFullError, StorageError
from tests.processes import full_disk

LENGTHS = st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1, max_size=9)
CUTS = st.sets(st.integers(1, 6))


def config_of(merge_bytes: int) -> EtlConfig:
    return EtlConfig.model_construct(merge_bytes=merge_bytes)


def write_sources(folder: Path, lengths: list[list[int]]) -> list[str]:
    """Files of seven sections, whose int32 values tell source, section and place."""
    names = []
    for source, of_sections in enumerate(lengths):
        values = [1000 * source + 100 * n + k for n, length in enumerate(of_sections) for k in range(length)]
        starts = np.cumsum([0, *of_sections])
        names.append(f"{source}.i32")
        spill.write_records(str(folder / names[-1]), starts, np.array(values, np.int32), config_of(1))
    return names


def read(planned: Exchange) -> list[list[tuple[list[int], list[int]]]]:
    """Starts and values, by target and source."""
    return [
        [
            (starts.tolist(), np.frombuffer(content, np.int32).tolist())
            for starts, content in exchange.pieces(planned, target)
        ]
        for target in range(planned.num_targets)
    ]


@pytest.mark.slow
@given(LENGTHS, CUTS, st.integers(1, 70), st.integers(1, 300))
@settings(max_examples=60)
def test_combined_files_change_nothing(tmp_path, lengths, cuts, max_opens, merge_bytes):
    names = write_sources(tmp_path, lengths)
    bounds = np.array([0, *sorted(cuts), 7])
    direct = read(exchange.plan(str(tmp_path), "direct", names, bounds, 1 << 20))
    assert [[values for _, values in pieces] for pieces in direct] == [
        [
            [1000 * source + 100 * n + k for n in range(start, stop) for k in range(lengths[source][n])]
            for source in range(len(names))
        ]
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    planned = exchange.plan(str(tmp_path), "some", names, bounds, max_opens)
    for block in planned.blocks:
        exchange.combine(share("", planned, 1), block, config_of(merge_bytes))
    assert read(planned) == direct
    assert bool(planned.blocks) == (len(names) * (len(bounds) - 1) > max_opens)


@pytest.mark.parametrize("growth", [1, 2, 4])
def test_opens_stay_few(growth: int) -> None:
    """With four times the graph of 10 billion edges too, where direct opens are 16 times as many."""
    num_sources, num_targets = 5_000 * growth, 4_000 * growth
    planned = exchange.plan("f", "x", ["s"] * num_sources, np.arange(num_targets + 1), 100_000)
    opens = num_sources * planned.num_ranges + num_targets * planned.num_groups
    assert opens <= 100_000 * growth**2
    assert num_sources / planned.num_groups <= MAX_OPEN_FILES
    assert len(planned.blocks) >= 64  # tasks for many workers


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    names = write_sources(tmp_path, [[3] * 7])
    planned = exchange.plan(str(tmp_path), "x", names, np.arange(8), 100)
    (tmp_path / names[0]).write_bytes(b"1234")
    with pytest.raises(StorageError, match=r"0\.i32: this intermediate file is damaged.*run again"):
        read(planned)


def test_slots_come_back_and_compressed_files_are_smaller(tmp_path: Path) -> None:
    """Three slots, the second one empty."""
    schema, sizes = pa.schema([("id", pa.string())]), {}
    ids = [f"https://example.org/page/{n % 100}" for n in range(10_000)]
    for compression in get_args(Compression):
        path = tmp_path / compression
        etl = EtlConfig.model_construct(spill_compression=compression)
        batch = pa.record_batch([pa.array(ids)], schema=schema)
        spill.write_slots(str(path), schema, [(batch, np.array([4_000, 0, 6_000]))], etl)
        sizes[compression] = path.stat().st_size
        for slots, rows in (
            (range(3), ids),
            (range(1), ids[:4_000]),
            (range(1, 2), []),
            (range(1, 3), ids[4_000:]),
        ):
            assert spill.read_slots(str(path), schema, slots, 3)["id"].to_pylist() == rows
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"] / 3


def test_a_file_without_room_leaves_no_part(tmp_path: Path) -> None:
    """A file that a full disk cut short leaves its room to the next run, which goes on in the folder."""
    uri = str(tmp_path / "x")
    with pytest.raises(DiskFullError), full_disk(1000), spill.new_file(uri, config_of(1)) as file:
        file.write(bytes(1 << 22))
    assert list(tmp_path.iterdir()) == []
