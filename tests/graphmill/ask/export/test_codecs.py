"""Codecs: what comes back, how far it is from what went in, and that tables alone suffice to decode."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphmill.ask.export.codecs import (
    FloatCodec,
    Int8Codec,
    PqCodec,
    bounds_of,
    num_codes_of,
    piece_of,
)
from graphmill.ask.export.fitting import codec_of, k_means, unit
from graphmill.errors import FormatError

NUMBERS = st.floats(-1e4, 1e4, width=32)
VECTORS = arrays.arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 12)), elements=NUMBERS)


def pq_of(vectors: np.ndarray, num_codes: int, *, has_scale: bool = True) -> PqCodec:
    bounds = bounds_of(vectors.shape[1], num_codes)
    pieces = [k_means(vectors[:, a:b], 0) for a, b in pairwise(bounds)]
    return PqCodec(np.concatenate(pieces, 1).astype(np.float16), num_codes, has_scale)


@given(VECTORS)
def test_floats(vectors: np.ndarray) -> None:
    exact, half = FloatCodec("float32", vectors.shape[1]), FloatCodec("float16", vectors.shape[1])
    assert np.array_equal(exact.decode(exact.encode(vectors)), vectors)
    found = half.decode(half.encode(vectors))
    assert np.array_equal(found, vectors.astype(np.float16))
    assert found.dtype == np.float32


def test_float16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(FormatError, match=r"numbers up to 65504, found 70000"):
        FloatCodec("float16", 1).encode(np.array([[7e4]], np.float32))


@given(VECTORS)
def test_int8_is_off_by_half_a_step_at_most(vectors: np.ndarray) -> None:
    low = vectors.min(0)
    codec = Int8Codec.of_range(low, vectors.max(0) - low)
    found = codec.decode(codec.encode(vectors))
    rounding = 1e-5 * (np.abs(vectors).max(0) + 1)
    assert (np.abs(found - vectors) <= codec.scale_D * 0.501 + rounding).all()
    again = codec_of("int8", vectors.shape[1], dict(codec.tables()), 0, has_scale=False)
    assert np.array_equal(again.encode(vectors).values_NW, codec.encode(vectors).values_NW)


@given(VECTORS, st.data())
def test_pq_takes_the_nearest_centroid(vectors: np.ndarray, data: st.DataObject) -> None:
    dimension = vectors.shape[1]
    num_codes = data.draw(st.integers(1, dimension))
    codec = pq_of(vectors, num_codes, has_scale=False)
    encoded = codec.encode(vectors)
    found = codec.decode(encoded)
    table = codec.centroids_KD.astype(np.float64)
    for a, b in pairwise(codec.bounds):
        distances = np.square(vectors[:, None, a:b].astype(float) - table[None, :, a:b]).sum(-1)
        own = np.square(vectors[:, a:b].astype(float) - found[:, a:b]).sum(-1)
        assert (own <= distances.min(1) * 1.001 + 1e-5 * np.square(vectors).max() + 1e-6).all()
    # The formula of _model.json, by itself.
    piece = np.arange(dimension) * num_codes // dimension
    assert np.array_equal(
        codec.centroids_KD[encoded.values_NW[:, piece], np.arange(dimension)].astype(np.float32), found
    )


def test_pq_keeps_lengths(rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((2000, 16)).astype(np.float32)
    with_scale, without = pq_of(vectors, 4), pq_of(vectors, 4, has_scale=False)
    lengths = np.linalg.norm(vectors, axis=1)
    found = with_scale.decode(with_scale.encode(vectors))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), lengths, rtol=2e-3)
    too_short = np.linalg.norm(without.decode(without.encode(vectors)), axis=1) / lengths
    assert too_short.mean() < 0.98


def test_pq_of_few_distinct_vectors_is_exact(rng: np.random.Generator) -> None:
    few = rng.standard_normal((100, 10)).astype(np.float16).astype(np.float32)
    codec = pq_of(few, 3)
    np.testing.assert_allclose(codec.decode(codec.encode(few)), few, rtol=2e-3, atol=1e-3)
    zero = np.zeros((3, 10), np.float32)
    assert np.isfinite(codec.decode(codec.encode(zero))).all()


def test_k_means_is_better_than_a_draw_and_the_same_again(rng: np.random.Generator) -> None:
    sample = rng.standard_normal((3000, 4)).astype(np.float32)

    def error(centroids: np.ndarray) -> float:
        return float(np.square(sample[:, None] - centroids[None]).sum(-1).min(1).mean())

    found = k_means(sample, 5)
    assert found.shape == (256, 4)
    assert np.array_equal(found, k_means(sample, 5))
    assert error(found) < 0.8 * error(sample[rng.choice(3000, 256, replace=False)])


@given(st.integers(1, 3000), st.data())
def test_pieces_cover_all_dimensions(dimension: int, data: st.DataObject) -> None:
    num_codes = data.draw(st.integers(1, dimension))
    widths = np.diff(bounds_of(dimension, num_codes))
    assert widths.sum() == dimension
    assert set(widths) <= {dimension // num_codes, -(-dimension // num_codes)}
    assert np.array_equal(np.bincount(piece_of(dimension, num_codes)), widths)


@pytest.mark.parametrize(
    ("dimension", "num_bytes", "has_scale", "expected"),
    [
        (400, None, True, 98),
        (400, None, False, 100),
        (6, None, True, 1),
        (8, 64, True, 8),
        (400, 50, True, 48),
    ],
)
def test_number_of_codes(dimension: int, num_bytes: int | None, has_scale: bool, expected: int) -> None:
    assert num_codes_of(dimension, num_bytes, has_scale=has_scale) == expected


def test_unit() -> None:
    found = unit(np.array([[3, 4], [0, 0]], np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]], rtol=1e-6)
