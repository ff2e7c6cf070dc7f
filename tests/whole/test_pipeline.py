"""The main job as users run it: two commands on a table, the pipeline on triples, again, killed, watched."""

import csv
import json
import platform
import re
import shutil
import socket
import threading
import urllib.request
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

import graphmill
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.cli.main import command
from tests import REPOSITORY
from tests.etl.graphs import same_bytes
from tests.finished import NUM_ENTITIES, copy_of, environment, of_triples
from tests.forked import Ended, Forks, Kill
from tests.graphmill.monitoring.lineage_server import check_event, lineage_server
from tests.graphmill.report.browser import show
from tests.hadoop.files import files_at, upload
from tests.processes import completed

METRICS = ("mrr", "mean_rank", "hits@1", "hits@3", "hits@10", "hits@50")
UNLIKE = ("run.json", "report.html", "_SUCCESS")


def run_json(output: Path) -> dict[str, Any]:
    return json.loads((output / "run.json").read_text())


def test_every_raw_id_comes_out_once_with_its_vector_and_the_record_has_metrics(finished_run: Path) -> None:
    table = pq.read_table(finished_run / "embeddings" / "entity")
    assert table.column_names == ["id", "type", "embedding"]
    assert sorted(table["id"].to_pylist()) == [f"n{number:03}" for number in range(NUM_ENTITIES)]
    assert set(table["type"].to_pylist()) == {"entity"}
    vectors = np.array(table["embedding"].to_pylist())
    assert vectors.shape == (NUM_ENTITIES, 16)
    assert np.isfinite(vectors).all()
    content = run_json(finished_run)
    assert content["status"] == "done"
    names = {f"{name}{ties}" for name in METRICS for ties in ("", "_pessimistic")}
    assert names | {"num_edges"} <= set(content["metrics"])
    assert content["metrics"]["num_edges"] == 200
    assert content["metrics"]["mrr"] > 0.1  # a random ranking of 300 has .02
    assert all(content["stages"][name]["seconds"] > 0 for name in ("etl", "train", "evaluate", "remap"))


def test_every_chart_of_the_report_is_drawn(finished_run: Path) -> None:
    shown = show(finished_run / "report.html")
    assert shown.console == []
    charts = re.findall(r'id="chart-[^"]*"', (finished_run / "report.html").read_text())
    assert shown.num_charts == len(charts) > 10
    assert "could not be made" not in shown.dom


def test_evaluate_alone_gives_the_metrics_of_the_run(finished_run, triples, graphmill_command, capfd):
    words = (*of_triples(triples, finished_run), "--json", "--split", "test")
    assert graphmill_command("evaluate", *words) == 0
    assert json.loads(capfd.readouterr().out) == pytest.approx(run_json(finished_run)["metrics"])


def test_a_rerun_does_what_changed(finished_run: Path, triples: Path, tmp_path: Path, forked: Forks) -> None:
    output = copy_of(finished_run, tmp_path / "out")
    first = run_json(output)["stages"]
    again = forked("graphmill", "pipeline", *of_triples(triples, output))
    skipped = r": skipped, unchanged since (?:\d{4}-\d\d-\d\d )?\d\d:\d\d(?:; .* time of change)?$"
    assert len(re.findall(skipped, again.stderr, re.M)) == 4
    assert len(re.findall(r"\b(etl|train|evaluate|remap) +\S* *skipped, unchanged since", again.stdout)) == 4
    assert "edges per second" not in again.stdout
    assert ", time" not in again.stdout
    assert run_json(output)["stages"] == first
    changed = forked("graphmill", "pipeline", *of_triples(triples, output, "lr=0.05"))
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
num_epochs: 2
etl:
  tables: [{path: train.txt, format: csv, delimiter: "\t", header: false, lhs: 0, relation_column: 1, rhs: 2}]
"""


def run_on_all(forked: Forks, triples: Path, tmp_path: Path, *settings: str, code: int = 0) -> Ended:
    """The pipeline where no edges are held out."""
    conf = tmp_path / "all.yaml"
    conf.write_text(ALL_TO_TRAIN)
    overrides = (f"input={triples}", f"output={tmp_path / 'out'}", "workers=1", *settings)
    sets = (f"--set={each}" for each in overrides)
    return forked("graphmill", "pipeline", "--conf", conf, *sets, has_report=True, code=code)


def test_without_held_out_edges_no_evaluation_is_made(triples: Path, tmp_path: Path, forked: Forks) -> None:
    done = run_on_all(forked, triples, tmp_path)
    assert "evaluate: left out: there is no folder" in done.stderr
    assert done.stderr.index("evaluate: left out") < done.stderr.index("remap: done")
    content = run_json(tmp_path / "out")
    assert content["stages"]["evaluate"]["status"] == "left out"
    assert content["stages"]["evaluate"]["reason"].endswith("of edges held out; splits there: train")
    assert content["metrics"] == {}
    assert pq.read_table(tmp_path / "out" / "embeddings" / "entity").num_rows == NUM_ENTITIES
    assert "The stage evaluate was left out" in (tmp_path / "out" / "report.html").read_text()

    before = files(str(tmp_path / "out"))
    refused = run_on_all(forked, triples, tmp_path, "lr=0.2", "train.on_change=refuse", code=2)
    assert "settings.lr: 0.5 -> 0.2" in " ".join(refused.stderr.split())
    assert (files(str(tmp_path / "out")), run_json(tmp_path / "out")) == (before, content)


def test_a_configuration_with_buckets_and_no_tables_runs_other_stages(tmp_path: Path, forked: Forks) -> None:
    """PBG's user has imported the edges with PBG, whose files stay as they are."""
    golden = REPOSITORY / "tests" / "data" / "pbg_v1_dyn"
    folder = tmp_path / "pbg"
    shutil.copytree(golden, folder, ignore=shutil.ignore_patterns("checkpoint"))
    before = files(str(folder))

    def graphmill(*words: str, code: int = 0) -> Ended:
        given = ("--conf", "config.py", "--set", "num_epochs=1")
        return forked("graphmill", *words, *given, cwd=folder, code=code)

    graphmill("check")
    assert files(str(folder)) == before
    graphmill("pipeline", "--set", "evaluate.split=edges")
    names = json.loads((folder / "entities" / "entity_names_concept_0.json").read_text())
    table = pq.read_table(folder / "checkpoint" / "embeddings" / "concept")
    assert table["id"].to_pylist() == names
    assert before.items() <= files(str(folder)).items()
    assert run_json(folder / "checkpoint")["stages"].keys() == {"train", "evaluate", "remap"}
    again = graphmill("pipeline", "--set", "evaluate.split=edges")
    assert again.stderr.count("skipped, unchanged since") == 3, again.stderr

    shutil.rmtree(folder / "edges")
    refused = graphmill("pipeline", code=2)
    assert "etl.tables: missing" in refused.stderr


def files(output_uri: str) -> dict[str, bytes]:
    """Contents by path, but for run.json and markers, which hold times and places, and without the report."""
    found = files_at(output_uri)
    is_alike = {name: storage.name(name) not in UNLIKE and not name.startswith("results/") for name in found}
    return {name: content for name, content in found.items() if is_alike[name] and "/." not in f"/{name}"}


def checkpoint_arrays(content: bytes, tmp_path: Path) -> dict[str, bytes]:
    """The datasets of an HDF5 file; its attributes hold paths."""
    path = tmp_path / "compared.h5"
    path.write_bytes(content)
    found: list[tuple[str, Any]] = []
    with h5py.File(path) as hdf5:
        hdf5.visititems(lambda name, node: found.append((name, node)))
        return {name: node[()].tobytes() for name, node in found if isinstance(node, h5py.Dataset)}


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


def test_the_same_seed_gives_the_same_bytes_whatever_the_workers_and_wherever_code_was_compiled(
    finished_run: Path, triples: Path, wheel: Path, tmp_path: Path
) -> None:
    """`finished_run` was made in one process, with a compiler; an installed wheel needs none."""
    home = tmp_path / "environment"
    environment(home, ["--no-deps", "--no-index", wheel])
    (tmp_path / "cache").mkdir()
    command = (home / "bin/dask-submit", "--master", "local[2]", "pipeline.py")
    place = {"PATH": str(home / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    completed(*command, *of_triples(triples, tmp_path / "out"), env=place, cwd=tmp_path)
    completed(home / "bin/graphmill", "--version", env=place)
    assert_same_output(str(finished_run), str(tmp_path / "out"), tmp_path)
    if shutil.which("g++") and platform.machine() == "x86_64":
        assert not list((tmp_path / "cache").rglob("*.so"))
        there, here = (
            re.sub(r"[\d.]+ GiB'", "M'", str(run_json(folder)["stages"]["train"]["plan"]["reasons"]))
            for folder in (tmp_path / "out", finished_run)  # two workers have half the memory of one
        )
        assert "of the installation" in there
        assert here == there.replace("of the installation", "compiled on this machine")


@pytest.mark.hdfs
def test_on_hdfs_the_bytes_are_the_same(finished_run, triples, hdfs, hdfs_uri, tmp_path, forked):
    upload(triples, f"{hdfs_uri}/in")
    forked("graphmill", "pipeline", *of_triples(f"{hdfs_uri}/in", f"{hdfs_uri}/out"))
    assert json.loads(storage.read_text(f"{hdfs_uri}/out/run.json"))["status"] == "done"
    assert_same_output(str(finished_run), f"{hdfs_uri}/out", tmp_path)


# The end of a run, and what it leaves.
KILLS = {
    "run.json": Kill(0, is_after=True),
    "edges/.train.tmp-*": Kill(0, "edges_*.h5", is_after=True),
    "checkpoint/config.json": Kill(0, "checkpoint/config.json", is_after=True),
    "checkpoint/*.v1.h5": Kill(0, "*.v1.h5", is_after=True),
    "checkpoint/*.v2.h5": Kill(0, "*.v2.h5", is_after=True),
    ".embeddings.tmp-*": Kill(0, ".embeddings.tmp-*/part-*", is_after=True),
}


def test_a_run_killed_in_every_stage_is_finished_by_the_next(finished_run, triples, tmp_path, forked):
    output = tmp_path / "out"
    options = of_triples(triples, output, "train.commit_interval_s=0")
    for evidence, kill in KILLS.items():
        forked("graphmill", "pipeline", *options, kill=kill)
        assert list(output.glob(evidence))
    forked("graphmill", "pipeline", *options)
    assert_same_output(str(finished_run), str(output), tmp_path)
    hidden = [path.name for path in output.rglob(".*") if not path.name.startswith("..")]  # of locks
    assert not [name for name in hidden if ".tmp-" in name or ".old-" in name]


GENRES = ("crime", "drama", "comedy", "horror", "animé")
TITLES = ('The {}, a "{}" {}', "Amélie {} {} {}", "映画 {} {} {}")
FAVOURITE_SHARE = 0.85  # of a user's ratings go to the favourite genre; the others go to any movie


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    """A command that ends with this code."""
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done


def write_ratings(path: Path, num_ratings: int) -> None:
    """A table as users have it: planted genres, which end the titles, 1 % duplicates, .3 % empty ids."""
    rng = np.random.default_rng(7)
    num_users, num_movies = num_ratings // 15, num_ratings // 60
    movies = [TITLES[n % 3].format(n, n * 7, GENRES[n % len(GENRES)]) for n in range(num_movies)]
    favourites = rng.integers(len(GENRES), size=num_users)
    popularity = 1 / (10 + rng.permutation(num_movies))
    of_genre = np.arange(num_movies) % len(GENRES)
    shares = [popularity * (of_genre == genre) for genre in range(len(GENRES))]
    shares = [each / each.sum() for each in [*shares, popularity]]
    rows: list[tuple[object, ...]] = []
    for user in rng.integers(num_users, size=num_ratings):
        liked = favourites[user] if rng.random() < FAVOURITE_SHARE else -1
        movie = rng.choice(num_movies, p=shares[liked])
        rows.append((f"user-{user}" if user % 7 else f"Zoë {user}", movies[movie], rng.integers(1, 6)))
    for number in range(num_ratings // 100):
        rows[-1 - number] = rows[number]
    for number in range(num_ratings // 350):
        rows[number * 11] = ("", *rows[number * 11][1:])
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("user", "movie", "stars"), *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    """A folder in which a stranger has run the two commands."""
    folder = tmp_path_factory.mktemp("stranger")
    write_ratings(folder / "ratings.csv", 6_000)
    for words in (["init", "ratings.csv", "--to", "ratings.yaml"], ["pipeline", "--conf", "ratings.yaml"]):
        done = forked("graphmill", *words, cwd=folder, has_report=True)
    assert done.stderr.count("keys that the configuration leaves out") == 1
    return folder


@pytest.fixture
def output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder / "output" / "ratings"


def test_there_are_vectors_a_report_and_a_record(output: Path) -> None:
    record = json.loads((output / "run.json").read_text())
    assert record["status"] == "done"
    assert record["stages"]["etl"]["num_rows_quarantined"] == 17
    assert (output / "report.html").exists()
    assert {path.name for path in (output / "embeddings").iterdir()} >= {"user", "movie", "_SUCCESS"}
    written = pbg.read_config(str(output / "checkpoint"))
    for settings in (record["config"], written):
        assert (settings["num_epochs"], settings["batch_size"], settings["dimension"]) == (16, 16, 200)
        assert settings["entities"]["user"]["num_partitions"] == 1


def test_the_nearest_movies_share_their_genre(output: Path) -> None:
    titles, vectors = graphmill.open(str(output)).vectors("movie")
    genres = np.array([title.rsplit(" ", 1)[-1] for title in titles])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1)[:, :10]
    assert (genres[nearest] == genres[:, None]).mean() >= 0.97


def test_later_commands_need_only_the_run(output: Path) -> None:
    found = invoke("neighbors", output, "--id", "user-8", "--k", "3", "--json")
    assert len(json.loads(found.output)["neighbors"]) == 3
    along = invoke("neighbors", output / "run.json", "--id", "user-8", "--relation", "ratings", "--json")
    assert json.loads(along.output)["type"] == "movie"
    for name, place in product(("train", "evaluate", "remap"), (output, "ratings.yaml")):
        assert "plan" in invoke(name, place, "--dry-run").output
    assert "give RUN or --conf" in invoke("evaluate", output, "--conf", "ratings.yaml", code=2).output


def test_a_plan_comes_before_the_run_and_changes_nothing(output: Path, tmp_path: Path) -> None:
    before = sorted(Path.cwd().rglob("*"))
    for words in (
        ["check", "ratings.yaml"],
        ["pipeline", "ratings.yaml", "--dry-run", "--output", tmp_path / "new"],
        ["etl", "--conf", "ratings.yaml", "--dry-run"],
    ):
        planned = invoke(*words)
        assert re.search(r"table ratings.csv +│ +about [\d,]+ rows", planned.output), planned.output
        assert re.search(r"entities, user +│ +about 400 ", planned.output), planned.output
    assert not (tmp_path / "new").exists()
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_plan_names_what_is_wrong(output: Path) -> None:
    refused = invoke("check", "ratings.yaml", "--set", "etl.tables.0.lhs=client", code=1)
    message = "expected a column 'client' (lhs), found columns ['user', 'movie', 'stars']"
    assert message in str(refused.exception)


def test_options_of_spark_are_told_what_they_are_called(output: Path) -> None:
    for name in ("pipeline", "etl", "train", "evaluate", "remap"):
        assert "here it is --num-workers" in invoke(name, "--num-executors", "4", code=2).output


STAGES = ("etl", "train", "evaluate", "remap")


class Prometheus:
    """Scrapes a port until it is told to stop."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.seen: set[tuple[str, ...]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def __enter__(self) -> "Prometheus":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.wait(0.05):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                for family in text_string_to_metric_families(answer.read().decode()):
                    self.seen |= {(each.name, *sorted(each.labels.values())) for each in family.samples}


@pytest.mark.slow
def test_a_run_is_scraped_and_tells_of_its_lineage(triples, tmp_path, graphmill_command, monkeypatch):
    with lineage_server() as collected, Prometheus() as prometheus:
        monkeypatch.setenv("OPENLINEAGE_URL", collected.url)
        port = ["--metrics-port", str(prometheus.port), "--name", "shop"]
        assert graphmill_command("pipeline", *of_triples(triples, tmp_path / "out"), *port) == 0

    seen = prometheus.seen
    labels = {label for name, *own in seen if name == "graphmill_stage_status" for label in own}
    assert labels >= {*STAGES, "running", "done"}
    assert seen >= {
        ("graphmill_work_done", "edges", "training"),
        ("graphmill_work_figure", "loss", "training"),
        ("graphmill_work_figure", "training", "wait_share"),
        ("graphmill_stage_figure", "etl", "num_rows"),
        ("graphmill_workers",),
    }
    assert any(name == "graphmill_worker_memory_bytes" for name, *_ in seen)

    for event in collected.events:
        check_event(event)
    inside = [(kind, f"shop.{stage}") for stage in STAGES for kind in ("START", "COMPLETE")]
    assert collected.told() == [("START", "shop"), *inside, ("COMPLETE", "shop")]
    read, written = (
        {event["job"]["name"]: {place["name"] for place in event[what]} for event in collected.events}
        for what in ("inputs", "outputs")
    )
    assert str(triples / "train.txt") in read["shop.etl"]
    assert f"{tmp_path}/out/entities" in written["shop.etl"] & read["shop.train"]
    assert written["shop.train"] <= read["shop.evaluate"] & read["shop.remap"]
    assert written["shop.remap"] == {f"{tmp_path}/out/embeddings"}
