"""The hash that decides the partition of every raw id, and ids made to share one."""

import logging
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl import job
from etl.steps import index_shard
from etl.strings import native
from graphmill.formats.murmur import Hashes, hash_edges, scale
from tests.etl.graphs import (
    RawEdge,
    all_edges,
    check_entities,
    config_of,
    files_under,
    hash_of,
    write_parquet,
)

MASK = (1 << 64) - 1
TEXTS = st.lists(st.text(max_size=40), max_size=60)
SEEDS = st.integers(0, 2**63 - 1)


def murmur64a(content: bytes, seed: int) -> int:
    """MurmurHash64A, byte for byte as published."""
    m = 0xC6A4A7935BD1E995
    h = seed ^ (len(content) * m & MASK)
    whole = len(content) // 8 * 8
    for at in range(0, whole, 8):
        k = int.from_bytes(content[at : at + 8], "little") * m & MASK
        k = (k ^ k >> 47) * m & MASK
        h = (h ^ k) * m & MASK
    if content[whole:]:
        h = (h ^ int.from_bytes(content[whole:], "little")) * m & MASK
    h = (h ^ h >> 47) * m & MASK
    return h ^ h >> 47


@pytest.mark.slow
@pytest.mark.parametrize("table_kind", ["compiled", "plain"])
@given(TEXTS, SEEDS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string()]))
def test_is_murmurhash64a(table_kind, texts, seed, start, kind):
    with pytest.MonkeyPatch.context() as patch:
        if table_kind == "plain":
            patch.setattr(native, "library", lambda: None)
        hashes = native.hash_strings(pa.array(texts, kind)[start:], seed)
    assert hashes.tolist() == [murmur64a(text.encode(), seed) for text in texts[start:]]


def test_golden_values() -> None:
    """These place every entity of every index that was ever written: they must never change.

    spaCy's string store (seed 1) and Redis' HyperLogLog (seed 0xadc83b19) publish theirs of this function.
    """
    for text, expected in (
        ("", {0: 0, 42: 10881679856671751284, 0xADC83B19: 0xD8DFEA6585BC9732}),
        ("a", {0: 510903276987443985, 42: 18003918085672799305}),
        ("abcdefgh", {0: 12671724553504926360, 42: 6017840126650231081}),
        ("abcdefghi", {0: 14535887056033573570, 42: 10270522532464202773}),
        ("/m/027rn", {0: 17529282943660875401, 42: 14053344575251068447}),
        ("üñí", {0: 15095767028477256767, 42: 9613488600243709329}),
        ("x" * 100, {0: 2452818515257052624, 42: 17002900889104741547}),
        ("coffee", {1: 3197928453018144401}),
        ("hello", {0xADC83B19: 0x0F656F01EECFE400}),
    ):
        assert {seed: hash_of(text, seed) for seed in expected} == expected
    edges = (np.array(ids, np.uint64) for ids in ([1, 3], [2, 2], [3, 1]))  # an edge and its reverse
    assert hash_edges(*edges).tolist() == [0x3ABF2A20650683E7, 0x314C05E286843559]


@given(st.lists(st.integers(0, MASK), min_size=1), st.integers(1, 4096), st.integers(1, 64))
def test_slots_lie_within_partitions(values: list[int], num_partitions: int, num_slots: int) -> None:
    hashes = np.array(values, np.uint64)
    slots = scale(hashes, num_partitions * num_slots)
    assert (slots // num_slots).tolist() == scale(hashes, num_partitions).tolist()
    assert scale(hashes, num_partitions).tolist() == [(v >> 32) * num_partitions >> 32 for v in values]


NUM_IDS = 4_096
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
    assert len(set(native.hash_strings(pa.array(made), 0).tolist())) == 1
    return made


@pytest.mark.slow
def test_a_graph_of_ids_of_one_hash(near_client, tmp_path, ids, caplog, monkeypatch, rng):
    """The partition is named, ordered in as many passes as its memory asks for, and the same bytes."""
    others = [f"other-{number}" for number in range(1000)]
    ends = [[*ids, *others][at] for at in rng.permutation(len(ids) + len(others))]
    for number, part in enumerate((ends, others)):
        write_parquet(tmp_path / f"raw/{number}.parquet", l=part[0::2], t=part[1::2])
    pairs = [*zip(ends[0::2], ends[1::2], strict=True), *zip(others[0::2], others[1::2], strict=True)]
    edges = Counter(RawEdge("user", lhs, "to", "user", rhs) for lhs, rhs in pairs)
    made = {}
    for name, index_bytes in (("at once", 1 << 29), ("in passes", 20_000)):
        monkeypatch.setattr(index_shard, "MIN_PASS_BYTES", index_bytes)
        shape: Any = {"entities": {"user": 2, "item": 1}, "chunk_rows": 1000, "index_bytes": index_bytes}
        config = config_of(tmp_path / name, str(tmp_path / "raw"), **shape)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "graphmill"):
            figures = job.run(config, near_client)
        check_entities(config, {"user": {*ids, *others}})
        assert all_edges(config) == edges
        made[name] = files_under(tmp_path / name), figures["num_entities"], figures["train_degree"]
        crowded = [record.getMessage() for record in caplog.records if "is crowded" in record.getMessage()]
        partition = int(np.argmax(figures["num_entities"]["user"]))
        assert len(crowded) == 1
        assert f"partition {partition} of user is crowded: 4" in crowded[0]
    assert made["at once"] == made["in passes"]


def test_ranges_of_keys_hold_every_id_once(ids: list[str]) -> None:
    column = pa.array([*ids[:5000], "", *(f"x{n}" for n in range(3000)), *ids[:2000]])
    ranges = index_shard.key_ranges([column.slice(0, 4000), column.slice(4000)], 5, 0)
    assert len(ranges) == 5
    held = np.array([keys.holds(column, 0) for keys in ranges])
    assert (held.sum(axis=0) == 1).all()
    assert held.sum(axis=1).max() < len(column) / 2
