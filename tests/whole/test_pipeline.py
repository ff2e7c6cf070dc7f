"""The main job as a user runs it: `dask-submit pipeline.py` on a folder of triples."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from graphmill import storage
from tests import REPOSITORY
from tests.etl.graphs import same_bytes
from tests.graphmill.report.browser import show
from tests.hadoop.cluster import MiniHdfs
from tests.waiting import found_in

pytestmark = pytest.mark.slow

DASK_SUBMIT = str(Path(sys.executable).with_name("dask-submit"))
METRICS = ("mrr", "mean_rank", "hits@1", "hits@3", "hits@10", "hits@50")
UNLIKE = ("run.json", "report.html", "_SUCCESS")
NUM_ENTITIES = 300
NUM_RELATIONS = 5

SMALL = (
    "dimension=16",
    "num_epochs=3",
    "batch_size=500",
    "num_batch_negs=50",
    "num_uniform_negs=50",
    "entities.entity.num_partitions=2",
    "workers=1",  # of several threads none knows which comes first
)


@pytest.fixture(scope="session")
def triples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of triples in which every relation shifts the entities around a ring."""
    folder = tmp_path_factory.mktemp("triples")
    rng = np.random.default_rng(7)
    for split, num_edges in (("train", 6000), ("valid", 200), ("test", 200)):
        heads = rng.integers(NUM_ENTITIES, size=num_edges)
        relations = rng.integers(NUM_RELATIONS, size=num_edges)
        tails = (heads + 1 + relations * 7 + rng.integers(3, size=num_edges)) % NUM_ENTITIES
        rows = zip(heads, relations, tails, strict=True)
        (folder / f"{split}.txt").write_text("".join(f"n{h:03}\tr{r}\tn{t:03}\n" for h, r, t in rows))
    return folder


def command(input_uri: str, output_uri: str, *settings: str) -> list[str]:
    overrides = (f"input={input_uri}", f"output={output_uri}", *SMALL, *settings)
    sets = [part for override in overrides for part in ("--set", override)]
    conf = str(REPOSITORY / "conf" / "triples.yaml")
    return [DASK_SUBMIT, "--master", "local[2]", "pipeline.py", "--conf", conf, *sets]


def run(input_uri: str, output_uri: str, *settings: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(input_uri, output_uri, *settings), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def run_json(output: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((output / "run.json").read_text())
    return content


@pytest.fixture(scope="session")
def whole(triples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an undisturbed run."""
    output = tmp_path_factory.mktemp("whole") / "out"
    run(str(triples), str(output))
    return output


def test_every_raw_id_comes_out_once_with_its_vector(whole: Path) -> None:
    table = pq.read_table(whole / "embeddings" / "entity")
    assert table.column_names == ["id", "type", "embedding"]
    assert sorted(table["id"].to_pylist()) == [f"n{number:03}" for number in range(NUM_ENTITIES)]
    assert set(table["type"].to_pylist()) == {"entity"}
    vectors = np.array(table["embedding"].to_pylist())
    assert vectors.shape == (NUM_ENTITIES, 16)
    assert np.isfinite(vectors).all()


def test_run_json_holds_metrics_and_seconds(whole: Path) -> None:
    content = run_json(whole)
    assert content["status"] == "done"
    assert {f"{name}{ties}" for name in METRICS for ties in ("", "_pessimistic")} | {"num_edges"} <= set(
        content["metrics"]
    )
    assert content["metrics"]["num_edges"] == 200
    assert content["metrics"]["mrr"] > 0.1  # a random ranking of 300 has .02
    assert all(content["stages"][name]["seconds"] > 0 for name in ("etl", "train", "evaluate", "remap"))


def test_every_chart_of_the_report_is_drawn(whole: Path) -> None:
    shown = show(whole / "report.html")
    assert shown.console == []
    assert shown.num_charts == len(re.findall(r'id="chart-[^"]*"', (whole / "report.html").read_text())) > 10
    assert "could not be made" not in shown.dom


def test_evaluate_alone_gives_the_metrics_of_the_run(whole: Path, triples: Path) -> None:
    options = [
        part for override in (f"input={triples}", f"output={whole}", *SMALL) for part in ("--set", override)
    ]
    conf = str(REPOSITORY / "conf" / "triples.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "train", "evaluate", "--conf", conf, *options, "--json", "--split", "test"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(run_json(whole)["metrics"])


def test_a_second_run_does_only_what_changed(triples: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(str(triples), str(output), "num_epochs=1")
    first = run_json(output)["stages"]
    again = run(str(triples), str(output), "num_epochs=1")
    assert (
        len(
            re.findall(
                r": skipped, unchanged since (?:\d{4}-\d\d-\d\d )?\d\d:\d\d(?:; .* time of change)?$",
                again.stderr,
                re.M,
            )
        )
        == 4
    )
    assert len(re.findall(r"\b(etl|train|evaluate|remap) +\S* *skipped, unchanged since", again.stdout)) == 4
    assert "edges per second" not in again.stdout
    assert ", time" not in again.stdout
    assert run_json(output)["stages"] == first
    changed = run(str(triples), str(output), "num_epochs=1", "lr=0.05")
    assert "lr: 0.1 -> 0.05" in changed.stderr
    assert "etl: skipped" in changed.stderr
    assert re.search(
        r"remap: running again, since this changed: checkpoint is newer \(.*\) than ", changed.stderr
    )
    assert "etl, time" not in changed.stdout
    assert "train, time" in changed.stdout
    after = run_json(output)["stages"]
    assert after["etl"] == first["etl"]
    assert after["remap"]["started"] >= first["remap"]["started"]
    assert after["remap"]["fingerprint"] != first["remap"]["fingerprint"]


ALL_TO_TRAIN = """
entities: {entity: {num_partitions: 1}}
relations: [{name: any, lhs: entity, rhs: entity, operator: complex_diagonal}]
dynamic_relations: true
dimension: 8
etl:
  tables: [{path: train.txt, format: csv, delimiter: "\t", header: false, lhs: 0, relation_column: 1, rhs: 2}]
"""


def run_on_all(
    triples: Path, tmp_path: Path, *settings: str, content: str = ALL_TO_TRAIN
) -> subprocess.CompletedProcess[str]:
    """The pipeline where no edges are held out."""
    conf = tmp_path / "all.yaml"
    conf.write_text(content)
    overrides = (f"input={triples}", f"output={tmp_path / 'out'}", "workers=1", *settings)
    sets = [part for override in overrides for part in ("--set", override)]
    return subprocess.run(
        [DASK_SUBMIT, "--master", "local[1]", "pipeline.py", "--conf", str(conf), *sets],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_without_edges_held_out_evaluation_is_left_out_and_remap_runs(triples: Path, tmp_path: Path) -> None:
    done = run_on_all(triples, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evaluate: left out: there is no folder" in done.stderr
    assert done.stderr.index("evaluate: left out") < done.stderr.index("remap: done")
    content = run_json(tmp_path / "out")
    assert content["stages"]["evaluate"]["status"] == "left out"
    assert content["stages"]["evaluate"]["reason"].endswith("of edges held out; splits there: train")
    assert content["metrics"] == {}
    assert pq.read_table(tmp_path / "out" / "embeddings" / "entity").num_rows == NUM_ENTITIES
    assert "The stage evaluate was left out" in (tmp_path / "out" / "report.html").read_text()

    before = files(str(tmp_path / "out"))
    refused = run_on_all(triples, tmp_path, "lr=0.2", "train.on_change=refuse")
    assert refused.returncode == 2
    assert "settings.lr: 0.5 -> 0.2" in " ".join(refused.stderr.split())
    assert (files(str(tmp_path / "out")), run_json(tmp_path / "out")) == (before, content)


def test_a_configuration_with_buckets_and_no_tables_runs_the_other_stages(tmp_path: Path) -> None:
    """PBG's user has imported the edges with PBG, whose files stay as they are."""
    golden = REPOSITORY / "tests" / "data" / "pbg_v1_dyn"
    folder = tmp_path / "pbg"
    shutil.copytree(golden, folder, ignore=shutil.ignore_patterns("checkpoint"))
    before = files(str(folder))

    def graphmill(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("graphmill"))
        given = [program, *words, "--conf", "config.py", "--set", "num_epochs=1"]
        return subprocess.run(given, capture_output=True, text=True, timeout=600, check=False, cwd=folder)

    checked = graphmill("check")
    assert checked.returncode == 0, checked.stderr
    assert files(str(folder)) == before
    done = graphmill("pipeline", "--master", "local[1]", "--set", "evaluate.split=edges")
    assert done.returncode == 0, done.stderr
    names = json.loads((folder / "entities" / "entity_names_concept_0.json").read_text())
    table = pq.read_table(folder / "checkpoint" / "embeddings" / "concept")
    assert table["id"].to_pylist() == names
    assert before.items() <= files(str(folder)).items()
    assert run_json(folder / "checkpoint")["stages"].keys() == {"train", "evaluate", "remap"}

    shutil.rmtree(folder / "edges")
    refused = graphmill("pipeline")
    assert refused.returncode == 2
    assert "etl.tables: missing" in refused.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["evaluate.split=tset"], "evaluate.split: there is no folder"),
        (["evaluate.filter_paths=[/nowhere]"], "evaluate.filter_paths: there is no folder /nowhere"),
        (["train.validate_split=valid"], "train.validate_split: there is no folder"),
    ],
)
def test_what_evaluation_needs_is_checked_before_anything_is_written(
    triples: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    done = run_on_all(triples, tmp_path, *settings)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def files(output_uri: str) -> dict[str, bytes]:
    """Contents by path, but for run.json, its report and markers, which hold times and places."""
    entries = (each.uri for each in storage.list_dir(output_uri, recursive=True) if not each.is_dir)
    named = {uri.removeprefix(output_uri).lstrip("/"): uri for uri in entries}
    kept = {name: uri for name, uri in named.items() if storage.name(uri) not in UNLIKE}
    return {name: storage.read_bytes(uri) for name, uri in kept.items()}


def checkpoint_arrays(content: bytes, tmp_path: Path) -> dict[str, bytes]:
    """The datasets of an HDF5 file; its attributes hold paths."""
    path = tmp_path / "compared.h5"
    path.write_bytes(content)
    found: dict[str, bytes] = {}
    with h5py.File(path) as hdf5:
        hdf5.visititems(
            lambda name, node: found.update(
                {name: node[()].tobytes()} if isinstance(node, h5py.Dataset) else {}
            )
        )
    return found


def calibration(content: bytes) -> dict[str, Any]:
    """A calibration without the checksum of its checkpoint, whose files hold paths."""
    found = json.loads(content)
    return {key: value for key, value in found.items() if key not in ("checkpoint", "checksum")}


def assert_same_output(one_uri: str, two_uri: str, tmp_path: Path) -> None:
    one, two = same_bytes(files(one_uri)), same_bytes(files(two_uri))
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("checkpoint/") and name.endswith(".h5"):
            assert checkpoint_arrays(one[name], tmp_path) == checkpoint_arrays(two[name], tmp_path), name
        elif name == "calibration.json":
            assert calibration(one[name]) == calibration(two[name])
        elif not re.fullmatch(r"checkpoint/(config|graphmill)\.json|checkpoint/checksums\..*", name):  # paths
            assert one[name] == two[name], name


def installation(folder: Path) -> Path:
    """The wheel, built with its compiled code and installed in an environment without dependencies."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    home = folder / "environment"
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, *map(str, (folder / "dist").glob("*.whl"))], check=True)
    return home


def test_the_same_seed_gives_the_same_bytes_whatever_the_workers_and_wherever_code_was_compiled(
    whole: Path, triples: Path, tmp_path: Path
) -> None:
    """`whole` had two workers, and a compiler; an installed wheel needs none."""
    home = installation(tmp_path)
    (tmp_path / "cache").mkdir()
    arguments = command(str(triples), str(tmp_path / "out"))
    arguments[0] = str(home / "bin" / "dask-submit")
    arguments[2] = "local[1]"
    environment = {
        "PATH": str(home / "bin"),
        "PYTHONPATH": str(Path(pytest.__file__).parents[1]),  # dependencies; .pth files do not count here
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_same_output(str(whole), str(tmp_path / "out"), tmp_path)
    if shutil.which("g++") and platform.machine() == "x86_64":
        assert not list((tmp_path / "cache").rglob("*.so"))
        there, here = (
            re.sub(r"[\d.]+ GiB'", "M'", str(run_json(folder)["stages"]["train"]["plan"]["reasons"]))
            for folder in (tmp_path / "out", whole)  # one worker has twice the memory of two
        )
        assert "of the installation" in there
        assert here == there.replace("of the installation", "compiled on this machine")


@pytest.mark.hdfs
def test_on_hdfs_the_bytes_are_the_same(
    whole: Path, triples: Path, hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path
) -> None:
    for split in ("train", "valid", "test"):
        with storage.atomic_output(f"{hdfs_uri}/in/{split}.txt") as stream:
            stream.write((triples / f"{split}.txt").read_bytes())
    run(f"{hdfs_uri}/in", f"{hdfs_uri}/out")
    assert json.loads(storage.read_text(f"{hdfs_uri}/out/run.json"))["status"] == "done"
    assert_same_output(str(whole), f"{hdfs_uri}/out", tmp_path)


def is_killed_at(moment: Callable[[Path], bool], triples: Path, output: Path) -> bool:
    """Whether a run was killed then; on a busy machine a short moment may pass without being seen."""
    with subprocess.Popen(
        command(str(triples), str(output)), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while not moment(output):
            if process.poll() is not None:
                return False
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    return True


def appears(pattern: str) -> Callable[[Path], bool]:
    return lambda output: found_in(output, pattern) != []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(appears("[!.]*"), id="at the start of etl"),
        pytest.param(appears("edges/.train.tmp-*"), id="during etl"),
        pytest.param(appears("checkpoint/config.json"), id="during the first epoch"),
        pytest.param(appears("checkpoint/*.v1.h5"), id="during a checkpoint's commit"),
        pytest.param(appears("checkpoint/*.v2.h5"), id="during the next checkpoint"),
        pytest.param(appears(".embeddings.tmp-*"), id="during remap"),
    ],
)
def test_a_killed_run_is_finished_by_the_next(
    moment: Callable[[Path], bool], whole: Path, triples: Path, tmp_path: Path
) -> None:
    outputs = (tmp_path / f"out-{attempt}" for attempt in range(5))
    output = next(output for output in outputs if is_killed_at(moment, triples, output))
    run(str(triples), str(output))
    assert_same_output(str(whole), str(output), tmp_path)
    hidden = [path.name for path in output.rglob(".*") if not path.name.startswith("..")]  # of locks
    assert not [name for name in hidden if ".tmp-" in name or ".old-" in name]
