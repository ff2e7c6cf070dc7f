"""Exports in other systems: pandas, DuckDB, polars, parquet-java (Spark, Hive), gensim, TensorBoard, ..."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from gensim.models import KeyedVectors

from graphmill.ask.export import job
from graphmill.ask.export.settings import ExportOptions
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
    job.run(
        world.config,
        ExportOptions(precision=precision, format=file_format, is_measured=False),
        str(to),
        near_client,
    )
    return to


def stored(frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """Ids and numbers or codes of a table in pandas, sorted by id."""
    frame = frame.sort_values("id")
    column = "code" if "code" in frame.columns else "embedding"
    rows = [
        np.frombuffer(each, np.uint8) if isinstance(each, bytes | bytearray) else each
        for each in frame[column]
    ]
    return frame["id"].tolist(), np.stack([np.asarray(row, np.float64) for row in rows])


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
        _, wanted = stored(pd.read_parquet(path))
        if precision == "pq":
            numbers = np.array([list(bytes.fromhex(row[1])) for row in rows], np.float32)
        else:
            numbers = np.array([row[1].split(",") for row in rows], np.float32)
        assert np.array_equal(numbers, wanted.astype(np.float32))


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
        ("load_lancedb", "lancedb", "float32", "parquet", "dot"),
        ("load_qdrant", "qdrant_client", "int8", "parquet", "cos"),
        ("load_lancedb", "lancedb", "pq", "arrow", "l2"),
        ("load_qdrant", "qdrant_client", "float16", "npy", "dot"),
    ],
)
def test_a_vector_store_finds_the_nearest(
    tmp_path: Path,
    near_client: Client,
    example: Callable[..., list[str]],
    script: str,
    package: str,
    precision: str,
    file_format: str,
    comparator: str,
) -> None:
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


def test_the_reader_of_the_examples(
    tmp_path: Path, world: World, near_client: Client, example: Callable[..., list[str]]
) -> None:
    folder = exported(tmp_path, world, near_client, "pq", "parquet")
    assert example("read_export", folder, "user")[0].startswith("user-00000ß\t[")
    assert json.loads((folder / "_model.json").read_text())["types"]["user"]["num_codes"] == 1
