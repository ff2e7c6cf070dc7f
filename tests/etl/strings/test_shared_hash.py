"""Ids made to share one MurmurHash64A: they cost as much as other ids, and cause a warning."""

import logging
import time
from pathlib import Path

import distributed
import numpy as np
import pyarrow as pa
import pytest

from etl import job
from etl.steps import index_shard
from etl.strings import hashing, native
from etl.strings.hashing import Hashes
from etl.strings.table import distinct
from tests.etl.graphs import check_entities, config_of, files_under, write_parquet

NUM_IDS = 16_384
NUM_BITS = 64
M = 0xC6A4A7935BD1E995
INVERSE = np.uint64(pow(M, -1, 1 << NUM_BITS))
SHIFT = np.uint64(47)


def ids_of_one_hash(count: int, seed: int) -> list[str]:
    """ASCII ids of two words: the second undoes what the first did to the hash."""
    found: list[bytes] = []
    rng = np.random.default_rng(0)
    same_state = rng.integers(0, 1 << 63, dtype=np.uint64)
    while len(found) < count:
        first: Hashes = rng.integers(0x30, 0x5B, (1 << 20, 8)).astype(np.uint8).view("<u8").ravel()
        word = first * np.uint64(M)
        word ^= word >> SHIFT
        value = (np.uint64(seed ^ (16 * M % (1 << NUM_BITS))) ^ (word * np.uint64(M))) * np.uint64(M)
        word = (value ^ same_state) * INVERSE
        word ^= word >> SHIFT
        second = word * INVERSE
        is_text = ~(second & np.uint64(0x8080808080808080)).astype(bool)
        pairs = np.stack([first[is_text], second[is_text]], axis=1).astype("<u8")
        found += [pair.tobytes() for pair in np.unique(pairs, axis=0)]
    return [each.decode() for each in found[:count]]


@pytest.fixture(scope="module")
def ids() -> list[str]:
    made = ids_of_one_hash(NUM_IDS, seed=0)
    assert len(set(made)) == NUM_IDS
    assert len(set(hashing.hash_strings(pa.array(made), 0).tolist())) == 1
    return made


def cpu_seconds(texts: list[str]) -> float:
    """Time to find the distinct ones of four times the texts: the least of some tries."""
    column = pa.chunked_array([texts] * 4)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        found, _ = distinct(column, 0)
        seconds.append(time.process_time() - start)
        assert len(found) == len(set(texts))
    return min(seconds)


@pytest.mark.parametrize("table_kind", ["compiled", "plain"])
def test_ids_of_one_hash_are_found_as_fast_as_others(
    ids: list[str], table_kind: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """A table that compares each with all others takes 300 times as long as with others."""
    if table_kind == "plain":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler")
    others = [text.tobytes().decode() for text in rng.integers(0x30, 0x5B, (NUM_IDS, 16)).astype(np.uint8)]
    assert cpu_seconds(ids) < 20 * cpu_seconds(others)


@pytest.mark.slow
def test_a_graph_of_ids_of_one_hash(
    near_client: distributed.Client,
    tmp_path: Path,
    ids: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """The partition is named, ordered in as many passes as its memory asks for, and the same bytes."""
    others = [f"other-{number}" for number in range(1000)]
    ends = [[*ids, *others][at] for at in rng.permutation(len(ids) + len(others))]
    paths = [
        write_parquet(tmp_path / f"{number}.parquet", l=part[0::2], t=part[1::2])
        for number, part in enumerate((ends, others))
    ]
    made = {}
    for name, index_bytes in (("at once", 1 << 29), ("in passes", 20_000)):
        monkeypatch.setattr(index_shard, "MIN_PASS_BYTES", index_bytes)
        config = config_of(
            tmp_path / name,
            [{"path": paths, "lhs": "l", "rhs": "t", "relation": "to"}],
            entities={"user": 2, "item": 1},
            relations=[("to", "user", "user")],
            chunk_rows=4000,
            index_bytes=index_bytes,
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING, "graphmill"):
            figures = job.run(config, near_client)
        check_entities(config, {"user": {*ids, *others}})
        made[name] = files_under(tmp_path / name), figures["num_entities"], figures["train_degree"]
        crowded = [record.getMessage() for record in caplog.records if "is crowded" in record.getMessage()]
        partition = int(np.argmax(figures["num_entities"]["user"]))
        assert len(crowded) == 1
        assert f"partition {partition} of user is crowded: 16" in crowded[0]
    assert made["at once"] == made["in passes"]


def test_ordinary_ids_cause_no_warning(
    near_client: distributed.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=[f"u{n}" for n in range(50_000)], t=["v"] * 50_000)
    config = config_of(tmp_path / "out", path, entities={"user": 3})
    with caplog.at_level(logging.WARNING, "graphmill"):
        job.run(config, near_client)
    assert "crowded" not in caplog.text


def test_ranges_of_keys_hold_every_id_once(ids: list[str]) -> None:
    column = pa.array([*ids[:5000], "", *(f"x{n}" for n in range(3000)), *ids[:2000]])
    ranges = index_shard.key_ranges([column.slice(0, 4000), column.slice(4000)], 5, 0)
    assert len(ranges) == 5
    held = np.array([keys.holds(column, 0) for keys in ranges])
    assert (held.sum(axis=0) == 1).all()
    assert held.sum(axis=1).max() < len(column) / 2
