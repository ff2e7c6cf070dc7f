"""The hash that decides the partition of every raw id."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.strings import hashing, native
from tests.etl.graphs import hash_of

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
@given(TEXTS, SEEDS)
def test_is_murmurhash64a_without_a_compiler(texts: list[str], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        hashes = hashing.hash_strings(pa.array(["x", *texts], pa.large_string())[1:], seed)
    assert hashes.tolist() == [murmur64a(text.encode(), seed) for text in texts]


@pytest.mark.slow
@given(TEXTS, SEEDS)
def test_is_murmurhash64a(texts: list[str], seed: int) -> None:
    hashes = hashing.hash_strings(pa.array(texts, pa.string()), seed)
    assert hashes.tolist() == [murmur64a(text.encode(), seed) for text in texts]


@given(TEXTS, SEEDS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string()]))
def test_alone_as_in_any_batch(texts: list[str], seed: int, start: int, kind: pa.DataType) -> None:
    batch = pa.array(texts, kind)[start:]
    assert hashing.hash_strings(batch, seed).tolist() == [hash_of(t, seed) for t in texts[start:]]


def test_golden_values() -> None:
    """These place every entity of every index that was ever written: they must never change."""
    texts = ["", "a", "abcdefgh", "abcdefghi", "/m/027rn", "üñí", "x" * 100]
    golden = {
        0: [
            0,
            510903276987443985,
            12671724553504926360,
            14535887056033573570,
            17529282943660875401,
            15095767028477256767,
            2452818515257052624,
        ],
        42: [
            10881679856671751284,
            18003918085672799305,
            6017840126650231081,
            10270522532464202773,
            14053344575251068447,
            9613488600243709329,
            17002900889104741547,
        ],
    }
    for seed, expected in golden.items():
        assert [hash_of(text, seed) for text in texts] == expected


def test_values_that_other_projects_publish() -> None:
    """spaCy's string store (seed 1) and Redis' HyperLogLog (seed 0xadc83b19) use the same function."""
    assert hash_of("coffee", 1) == 3197928453018144401
    assert hash_of("hello", 0xADC83B19) == 0x0F656F01EECFE400
    assert hash_of("", 0xADC83B19) == 0xD8DFEA6585BC9732


def test_more_strings_than_a_block() -> None:
    texts = [f"id-{number}" * (number % 7) for number in range(20_000)]
    hashes = hashing.hash_strings(pa.array(texts), 5)
    assert all(hashes[n] == murmur64a(texts[n].encode(), 5) for n in range(0, 20_000, 97))


def test_partitions_are_even() -> None:
    hashes = hashing.hash_strings(pa.array([f"user:{n}" for n in range(100_000)]), 0)
    counts = np.bincount(hashing.scale(hashes, 8).astype(int))
    assert counts.min() > 12_000
    assert counts.max() < 13_000


@given(st.lists(st.integers(0, MASK), min_size=1), st.integers(1, 4096), st.integers(1, 64))
def test_slots_lie_within_partitions(values: list[int], num_partitions: int, num_slots: int) -> None:
    hashes = np.array(values, np.uint64)
    slots = hashing.scale(hashes, num_partitions * num_slots)
    assert (slots // num_slots).tolist() == hashing.scale(hashes, num_partitions).tolist()
    assert hashing.scale(hashes, num_partitions).tolist() == [
        (v >> 32) * num_partitions >> 32 for v in values
    ]
