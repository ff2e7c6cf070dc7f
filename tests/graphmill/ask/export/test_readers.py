"""Exports in other systems, and codecs: what comes back, and how far it is from what went in."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from gensim.models import KeyedVectors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphmill.ask.export import job
from graphmill.ask.export.codecs import FloatCodec, Int8Codec, PqCodec, bounds_of, num_codes_of, piece_of
from graphmill.ask.export.fitting import codec_of, k_means
from graphmill.ask.export.settings import ExportOptions
from graphmill.errors import FormatError
from tests import REPOSITORY
from tests.graphmill.ask.export.readers import read
from tests.graphmill.ask.predict.world import World, write_world
from tests.hadoop import jars, parquet_java

COUNTS = {"user": [40, 0, 30], "item": [500]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return write_world(tmp_path / "run", counts=COUNTS)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run an example; the lines that it prints."""

    def run(script: str, *arguments: object) -> list[str]:
        path = REPOSITORY / f"examples/{script}.py"
        monkeypatch.syspath_prepend(path.parent)
        monkeypatch.setattr(sys, "argv", [str(each) for each in (path, *arguments)])
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def exported(tmp_path: Path, world: World, near_client: Client, precision: Any, file_format: str) -> Path:
    to = tmp_path / f"{precision}-{file_format}"
    wish = ExportOptions(precision=precision, format=file_format, is_measured=False)
    job.run(world.config, wish, str(to), near_client)
    return to


@pytest.mark.slow
def test_parquet_java_reads_every_row(tmp_path: Path, world: World, near_client: Client) -> None:
    if reason := jars.why_not():
        pytest.skip(f"no parquet-java: {reason}")
    paths = {
        precision: exported(tmp_path, world, near_client, precision, "parquet") / "item/part-00000.parquet"
        for precision in ("float32", "float16", "int8", "pq")
    }
    found = parquet_java.read(list(paths.values()), 4)
    for precision, path in paths.items():
        rows = found[path]
        assert [row[0] for row in rows] == [world.name("item", number) for number in range(500)]
        frame = pd.read_parquet(path)
        if precision == "pq":
            assert [bytes.fromhex(row[1]) for row in rows] == frame["code"].tolist()
        else:
            numbers = np.array([row[1].split(",") for row in rows], np.float32)
            assert np.array_equal(numbers, np.stack(frame["embedding"]).astype(np.float32))


def test_gensim_reads_word2vec(tmp_path: Path, world: World, near_client: Client) -> None:
    path = exported(tmp_path, world, near_client, "float32", "word2vec") / "user/vectors.txt"
    found = KeyedVectors.load_word2vec_format(str(path))
    count = sum(COUNTS["user"])
    assert found.index_to_key == [world.name("user", number) for number in range(count)]
    assert np.array_equal(found.vectors, world.vectors["user"][:count])


@pytest.mark.slow
def test_tensorboard_finds_the_projector_s_files(tmp_path: Path, world: World, near_client: Client) -> None:
    folder = exported(tmp_path, world, near_client, "float32", "tensorboard-projector")
    command = ["-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--load_fast", "false"]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as board:
        assert board.stderr is not None
        try:
            found = next(filter(None, (re.search(r"http://\S+/", line) for line in board.stderr)))
            page = f"{found[0]}data/plugin/projector"
            (user, item) = json.loads(urlopen(f"{page}/info?run=.").read())["embeddings"]
            content = urlopen(f"{page}/tensor?run=.&name={item['tensorName']}").read()
            names = urlopen(f"{page}/metadata?run=.&name=item").read().decode().splitlines()[1:]
        finally:
            board.kill()
    assert (user["tensorName"], user["tensorShape"]) == ("user", [70, 6])
    numbers = np.frombuffer(content, np.float32)
    place = {world.name("item", number): number for number in range(500)}
    rows = [place[line.split("\t")[0]] for line in names]
    assert np.array_equal(numbers.reshape(500, 6), world.vectors["item"][rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "package", "precision", "file_format", "comparator"),
    [
        ("load_qdrant", "qdrant_client", "int8", "parquet", "cos"),
        ("load_lancedb", "lancedb", "pq", "arrow", "l2"),
        ("load_qdrant", "qdrant_client", "float16", "npy", "dot"),
    ],
)
def test_a_vector_store_finds_the_nearest(
    tmp_path, near_client, example, script, package, precision, file_format, comparator
):
    """The examples, with stores that run here; what they find is what the decoded vectors say."""
    if find_spec(package) is None:
        pytest.skip(f"no {package}: pip install 'graphmill[stores]'")
    world = write_world(tmp_path / "run", counts=COUNTS, comparator=comparator)
    folder = exported(tmp_path, world, near_client, precision, file_format)
    decoded = read(folder, "item")
    ids, rows = list(decoded), np.stack(list(decoded.values())).astype(np.float64)
    asked = rows[17]
    scores = {
        "dot": rows @ asked,
        "cos": rows @ asked / np.linalg.norm(rows, axis=1),
        "l2": -np.linalg.norm(rows - asked, axis=1),
    }[comparator]
    # The example ranks vectors by the comparator alone.
    lines = example(script, folder, "item", tmp_path / "store", ids[17])
    found = [line.split("\t")[0] for line in lines]
    best = np.sort(scores)[::-1][:5]
    np.testing.assert_allclose(scores[[ids.index(each) for each in found]], best, rtol=1e-4, atol=1e-4)
    assert len(set(found)) == 5
    with pytest.raises(SystemExit, match=rf"usage: python examples/{script}\.py FOLDER TYPE DATABASE ID"):
        example(script)


def test_the_reader_of_the_examples(tmp_path, world, near_client, example):
    folder = exported(tmp_path, world, near_client, "pq", "parquet")
    assert example("read_export", folder, "user")[0].startswith("user-00000ß\t[")
    assert json.loads((folder / "_model.json").read_text())["types"]["user"]["num_codes"] == 1


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
    by_formula = codec.centroids_KD[encoded.values_NW[:, piece], np.arange(dimension)]
    assert np.array_equal(by_formula.astype(np.float32), found)


def test_pq_keeps_lengths(rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((2000, 16)).astype(np.float32)
    zero = pq_of(np.zeros((3, 16), np.float32), 4)
    assert not zero.decode(zero.encode(np.zeros((3, 16), np.float32))).any()
    with_scale, without = pq_of(vectors, 4), pq_of(vectors, 4, has_scale=False)
    lengths = np.linalg.norm(vectors, axis=1)
    found = with_scale.decode(with_scale.encode(vectors))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), lengths, rtol=2e-3)
    too_short = np.linalg.norm(without.decode(without.encode(vectors)), axis=1) / lengths
    assert too_short.mean() < 0.98


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


def test_number_of_codes() -> None:
    """A scale takes two bytes."""
    asked = [(400, None, True), (400, None, False), (6, None, True), (8, 64, True), (400, 50, True)]
    assert [num_codes_of(*each, has_scale=has) for *each, has in asked] == [98, 100, 1, 8, 48]
