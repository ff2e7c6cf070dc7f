"""Vectors of a new training in the space of an earlier run: turned, and otherwise the same."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remap.job
from graphmill import storage
from graphmill.errors import BadInputError, ConfigError
from graphmill.formats import remapped
from remap import align
from remap.align import rotation
from tests.remap import graph

DIMENSION = graph.DIMENSION


def orthogonal(rng, dimension):
    return np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]


@given(seed=st.integers(0, 2**32), dimension=st.integers(1, 12), noise=st.floats(0, 0.01))
@settings(max_examples=40)
def test_the_matrix_of_a_turn_is_found(seed, dimension, noise):
    rng = np.random.default_rng(seed)
    now = rng.normal(size=(10 * dimension, dimension))
    turn = orthogonal(rng, dimension)
    found, singular = rotation(now.T @ (now @ turn + noise * rng.normal(size=now.shape)))
    np.testing.assert_allclose(found @ found.T, np.eye(dimension), atol=1e-9)
    np.testing.assert_allclose(found, turn, atol=0.2 if noise else 1e-8)
    assert (singular >= 0).all()


COUNTS = {"item": (7,), "user": (9, 11)}
ZERO = graph.raw_id("item", 0, 0)  # whose vector was zero: it has no direction


def write_earlier(folder: Path, turn, num_parts=2) -> str:
    """Vectors of version 1 of `graph`, turned; of other lengths too, and in other partitions."""
    for name, counts in COUNTS.items():
        own = {raw: row for (kind, raw), row in graph.expected_rows(COUNTS).items() if kind == name}
        rows = [(raw, vector @ turn * (raw != ZERO)) for raw, vector in own.items()]
        num = num_parts if name == "user" else 1
        parts = [rows[part::num] for part in range(num)]
        if num == len(counts):
            cut = np.cumsum([0, *counts])
            parts = [rows[start:stop] for start, stop in pairwise(cut)]
        for part, own in enumerate(parts):
            with remapped.new_part(str(folder), name, part, DIMENSION) as writer:
                writer.append(pa.array([raw for raw, _ in own]), np.float32([vector for _, vector in own]))
    return str(folder)


@pytest.fixture
def output(tmp_path: Path) -> str:
    """A finished run of these counts."""
    graph.write_entities(str(tmp_path / "run"), COUNTS)
    graph.write_checkpoint(str(tmp_path / "run"), COUNTS)
    return str(tmp_path / "run")


@pytest.mark.parametrize("num_parts", [2, 3])
def test_embeddings_are_in_the_space_of_the_earlier_run(
    output, tmp_path, near_client, num_parts, monkeypatch
):
    monkeypatch.setattr(align, "ENOUGH_ROWS", num := {2: 20, 3: 8}[num_parts])
    turn = orthogonal(np.random.default_rng(3), DIMENSION)
    earlier = write_earlier(tmp_path / "earlier", turn, num_parts)
    config = graph.configured(output, COUNTS, align_to=earlier, batch_rows=4)
    assert remap.job.check(config) == ""
    assert earlier in remap.job.input_uris(config)
    figures = json.loads(json.dumps(remap.job.run(config, near_client)))
    found = figures["aligned"][f"length_{DIMENSION}"]
    assert found["num_ids"] == (27 if num > 9 else 16)  # the first partitions of a type
    assert found["mean_cosine"] == pytest.approx(1 - 1 / found["num_ids"], abs=1e-5)
    assert found["mean_cosine_before"] < 0.9
    rows, expected = graph.read_rows(config.embedding_path), graph.expected_rows(COUNTS)
    assert list(rows) == list(expected)
    np.testing.assert_allclose(list(rows.values()), np.array(list(expected.values())) @ turn, atol=1e-5)


def test_what_cannot_be_aligned_is_refused(output, tmp_path, near_client):
    earlier = write_earlier(tmp_path / "earlier", np.eye(DIMENSION))
    for settings_of_remap, message in (
        ({"align_to": str(tmp_path / "nothing")}, "has no embeddings of item, user"),
        ({"align_to": earlier, "relations": True}, "parameters of relations would not fit"),
        ({"align_to": f"{output}/embeddings"}, "is also embedding_path"),
    ):
        with pytest.raises(ConfigError, match=message):
            remap.job.check(graph.configured(output, COUNTS, **settings_of_remap))
    for name in ("few", "long"):
        length = 2 * DIMENSION if name == "long" else DIMENSION
        with remapped.new_part(str(tmp_path / name), "item", 0, length) as writer:
            writer.append(pa.array([graph.raw_id("item", 0, 0)]), np.ones((1, length), np.float32))
        config = graph.configured(output, COUNTS, align_to=str(tmp_path / name))
        message = "vectors of length 4 now, of 8" if name == "long" else "expected 4 ids, .* found 1"
        with pytest.raises(BadInputError, match=message):
            remap.job.run(config, near_client)
        assert not storage.exists(config.embedding_path)
