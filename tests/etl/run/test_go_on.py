"""After a failed or killed run, the next run continues after the last finished step, with the same bytes."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from etl import job
from etl.run.work import EtlStep, EtlWork
from graphmill import storage
from graphmill.cluster import tasks
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import FormatError, RawTableError, StorageError
from graphmill.storage import fs
from tests.contents import flip_a_bit
from tests.etl.graphs import config_of, files_under, write_parquet

STEPS = ["plan", "encode", "partitions", "index", "translate", "merge"]
NUM_RENAMES = 67  # of graph_config, and one more


class Seen:
    """A display that remembers what was done, and in how many tasks."""

    def __init__(self) -> None:
        self.num_tasks: dict[str, float] = {}

    def show(self, tick: progress.Tick) -> None:
        self.num_tasks[tick.description] = tick.total


def graph_config(root: Path, place: str | None = None, **etl: Any) -> Config:
    """A graph that has all that a journal can hold: features, weights, JSON, dynamic sizes, bad rows."""
    rng = np.random.default_rng(1)
    if not (root / "raw").exists():
        rows = [f'{{"l": "u{a}", "t": {b}, "w": {a}.5}}' for a, b in rng.integers(0, 90, (200, 2)).tolist()]
        (root / "raw").mkdir()
        (root / "raw/seen.jsonl").write_text("\n".join(rows))
        lists = pa.array([[f"w{n}" for n in range(1 + n % 3)] if n % 9 else None for n in range(100)])
        users = [f"u{n % 70}" for n in range(100)]
        write_parquet(root / "raw/words.parquet", 50, l=users, t=lists)
        (root / "raw/users.csv").write_text("id\nu1\nu500\n")
    return config_of(
        place or root / "out",
        [
            {"path": "seen.jsonl", "lhs": "l", "rhs": "t", "weight": "w", "relation": "seen"},
            {"path": "words.parquet", "lhs": "l", "rhs": "t", "relation": "said"},
        ],
        listed=[{"path": "users.csv", "type": "user", "id": "id"}],
        entities={"user": 2, "item": 1, "word": 1},
        featurized="word",
        relations=[("seen", "user", "item"), ("said", "user", "word")],
        top={"input": str(root / "raw")},
        **({"chunk_rows": 60, "on_bad_row": "quarantine", "max_bad_fraction": 0.5, "max_opens": 20} | etl),
    )


def output(root: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """All files, and the rows that were set aside."""
    aside = [pq.read_table(path).drop(["file"]) for path in sorted((root / "out/quarantine").glob("*"))]
    files = files_under(root / "out")
    return (
        {name: content for name, content in files.items() if not name.startswith("quarantine/")},
        pa.concat_tables(aside).to_pylist(),
    )


def hidden(root: Path) -> list[str]:
    return [str(path) for path in root.rglob(".*")]


def finished_steps(root: Path) -> list[str]:
    found = {path.stem for path in root.rglob("files-*/*.json")}
    return [step for step in STEPS if step in found]


@contextmanager
def failing_renames(numbers: range, target_holds: str = "") -> Iterator[None]:
    """Have renames fail, those to such targets counted from 1."""
    really_move, num_moves = fs.move, 0

    def move(source: str, target: str) -> None:
        nonlocal num_moves
        num_moves += target_holds in target
        if target_holds in target and num_moves in numbers:
            raise StorageError(f"{target}: no rename today")
        really_move(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "move", move)
        patch.setattr(storage, "move", move)
        yield


@pytest.fixture
def without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "RETRY_DELAYS_S", ())


def figures_of(config: Config, client: Client) -> tuple[dict[str, Any], dict[str, float]]:
    """The figures of a run, seconds excepted, and how many tasks of each kind it ran."""
    seen = Seen()
    with progress.shown_by(seen):
        figures = job.run(config, client)
    assert list(figures.pop("step_seconds")) == STEPS
    return figures, seen.num_tasks


def task_of(step: str) -> str:
    """The name by which a display shows the tasks of a step."""
    names = {"plan": "look at tables", "index": "index entities", "merge": "write buckets"}
    return f"etl: {names.get(step, step)}"


@pytest.fixture(scope="module")
def undisturbed(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("undisturbed")
    figures, num_tasks = figures_of(graph_config(root), near_client)
    assert figures["num_rows_quarantined"] == 12
    assert figures["bytes_in"]
    assert num_tasks["etl: encode"] == 4
    return output(root), figures


def go_on(root: Path, client: Client, undisturbed: Any) -> dict[str, float]:
    """Run again, to the end: the same output, and nothing hidden beside it; how many tasks it took."""
    figures, num_tasks = figures_of(graph_config(root), client)
    assert (output(root), figures) == undisturbed
    assert hidden(root) == []
    return num_tasks


@pytest.mark.slow
@pytest.mark.usefixtures("without_retries")
@pytest.mark.parametrize("rename", [*range(1, NUM_RENAMES - 8, 5), *range(NUM_RENAMES - 8, NUM_RENAMES)])
def test_continues_after_an_error(near_client: Client, tmp_path: Path, undisturbed: Any, rename: int) -> None:
    with failing_renames(range(rename, rename + 1)), pytest.raises(StorageError, match="no rename today"):
        job.run(graph_config(tmp_path), near_client)
    done = finished_steps(tmp_path)
    is_uncommitted = not (tmp_path / "out/entities").exists()
    num_tasks = go_on(tmp_path, near_client, undisturbed)
    for step in ("plan", *(("encode", "index", "translate", "merge") if is_uncommitted else ())):
        assert (task_of(step) in num_tasks) == (step not in done)


@pytest.mark.usefixtures("without_retries")
def test_there_are_no_more_renames(near_client: Client, tmp_path: Path, undisturbed: Any) -> None:
    with failing_renames(range(NUM_RENAMES, NUM_RENAMES + 1)):
        job.run(graph_config(tmp_path), near_client)
    assert output(tmp_path) == undisturbed[0]


@pytest.mark.usefixtures("without_retries")
def test_bad_rows_come_once_though_other_workers_go_on(near_client, tmp_path, monkeypatch):
    """Tasks, and so the files of bad rows, are cut for the workers that are there."""
    for number in range(20):
        (tmp_path / f"{number:02}.csv").write_text(f"l,t\nu{number},u0\nu{number},\n")
    config = config_of(
        tmp_path / "out", "*.csv", entities={"user": 1}, top={"input": str(tmp_path)},
        on_bad_row="quarantine", max_bad_fraction=0.5,
    )  # fmt: skip
    monkeypatch.setattr(EtlWork, "num_threads", 100)
    with failing_renames(range(1, 2), "encode.json"), pytest.raises(StorageError, match="no rename today"):
        job.run(config, near_client)
    monkeypatch.setattr(EtlWork, "num_threads", 1)
    figures, num_tasks = figures_of(config, near_client)
    bad_rows = [pq.read_table(path) for path in (tmp_path / "out/quarantine").glob("*")]
    assert num_tasks["etl: encode"] < 20
    assert sum(map(len, bad_rows)) == figures["num_rows_quarantined"] == 20


def stopped_before(step: str, client: Client, config: Config) -> None:
    """Have a run fail when the steps before `step` are finished."""
    really_run = tasks.run_tasks

    def run_tasks(*args: Any, description: str, **display: Any) -> Any:
        if description == task_of(step):
            raise StorageError("stopped")
        return really_run(*args, description=description, **display)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StorageError, match="stopped"):
        patch.setattr("etl.run.work.run_tasks", run_tasks)
        job.run(config, client)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


FILES = [
    ("index", "*.ids"), ("translate", "*.codes.arrow"), ("translate", "*.rows.i32"),
    ("merge", "*.rhs_edges.i32"), ("merge", "part-*.parquet"), ("merge", "index.json"),
]  # fmt: skip
# Parts are synced to the disk, and have checksums of their own.
DAMAGES = [
    (*file, damage) for file in FILES for damage in (Path.unlink, cut_short, flip_a_bit)
    if not (damage is flip_a_bit and "parquet" in file[1])
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "file", "damage"), DAMAGES)
def test_damaged_or_missing_files_are_made_again(near_client, tmp_path, undisturbed, stopped, file, damage):
    stopped_before(stopped, near_client, graph_config(tmp_path))
    found = sorted(each for each in tmp_path.rglob(file) if not re.search("/raw/|quarantine", str(each)))
    damage(found[0])
    # what the damaged step was made from is gone too
    assert "etl: encode" in go_on(tmp_path, near_client, undisturbed)


@pytest.mark.usefixtures("without_retries")
def test_files_that_no_later_step_reads_are_deleted(near_client: Client, tmp_path: Path) -> None:
    def left(stopped: str) -> set[str]:
        stopped_before(stopped, near_client, graph_config(tmp_path))
        work = next(tmp_path.rglob("files-*"))
        return {path.name.split(".", 1)[-1] for path in work.iterdir() if path.name.startswith("0000")}

    encoded = left("index")
    assert {"ids", "codes.arrow"} < encoded
    assert left("translate") == encoded - {"ids"}
    assert left("merge") == {"edges.i32", "rhs_edges.i32"}


def test_a_repeated_step_takes_back_those_after_it(near_client: Client, tmp_path: Path) -> None:
    """Their files are those of other chunks, where it is repeated with other workers."""
    stopped_before("merge", near_client, graph_config(tmp_path))
    next(tmp_path.rglob("*.rhs_edges.i32")).unlink()
    stopped_before("index", near_client, graph_config(tmp_path))
    assert finished_steps(tmp_path) == ["plan", "encode", "partitions"]


def test_work_goes_on_for_another_place_of_the_edges(near_client, tmp_path, undisturbed):
    stopped_before("merge", near_client, graph_config(tmp_path))
    config, to = graph_config(tmp_path), str(tmp_path / "other")
    elsewhere = {
        "edge_root": to,
        "edge_paths": tuple(f"{to}/{Path(path).name}" for path in config.edge_paths),
    }
    assert "etl: encode" not in figures_of(config.model_copy(update=elsewhere), near_client)[1]
    expected = {name: content for name, content in undisturbed[0][0].items() if name.startswith("edges/")}
    assert {f"edges/{name}": content for name, content in files_under(Path(to)).items()} == expected


@pytest.mark.parametrize("change", ["a setting", "the input", "nothing"])
def test_the_log_says_why_a_run_starts_again_or_continues(near_client, tmp_path, change, caplog):
    with caplog.at_level(logging.INFO, "graphmill"):
        stopped_before("translate", near_client, graph_config(tmp_path))
        assert "etl: finished work stays in " in caplog.text
        if change == "the input":
            (tmp_path / "raw/users.csv").write_text("id\nu1\nu501\n")
        etl = {"self_loops": "drop"} if change == "a setting" else {}
        _, num_tasks = figures_of(graph_config(tmp_path, **etl), near_client)
    starts_again = change != "nothing"
    assert ("etl: starts from nothing, because this has changed: " in caplog.text) == starts_again
    assert ("etl: continues after step index, finished at " in caplog.text) != starts_again
    assert ("etl: encode" in num_tasks) == starts_again
    assert hidden(tmp_path) == []


def test_bad_input_removes_the_work(near_client: Client, tmp_path: Path) -> None:
    stopped_before("translate", near_client, graph_config(tmp_path))
    assert hidden(tmp_path)
    with pytest.raises(RawTableError, match="max_bad_fraction"):
        job.run(graph_config(tmp_path, max_bad_fraction=0.01), near_client)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("result", ['[{"chunks": 3}]', "no JSON"])
def test_a_journal_of_another_kind(near_client: Client, tmp_path: Path, result: str) -> None:
    stopped_before("index", near_client, graph_config(tmp_path))
    (encode,) = tmp_path.rglob("files-*/encode.json")
    step = EtlStep.model_validate_json(encode.read_text())
    encode.write_text(step.model_copy(update={"result": result}).sealed().model_dump_json())
    with pytest.raises(FormatError, match="start again, from nothing"):
        job.run(graph_config(tmp_path), near_client)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("token", ["../../../other", "0123456789abc"])
def test_a_token_that_is_a_path(near_client: Client, tmp_path: Path, undisturbed: Any, token: str) -> None:
    stopped_before("index", near_client, graph_config(tmp_path))
    (journal,) = tmp_path.rglob("journal.json")
    journal.write_text(json.dumps(json.loads(journal.read_text()) | {"token": token}))
    assert "etl: look at tables" in go_on(tmp_path, near_client, undisturbed)


TWICE = ["quarantine", ".codes.arrow", ".combined", ".rows.i32", "entity_count", ".edges.i32", "edges_1_0.h5"]


def test_tasks_that_fail_twice_double_nothing(near_client, tmp_path, undisturbed, monkeypatch, caplog):
    monkeypatch.setattr(tasks, "RETRY_DELAYS_S", (0.0,) * 2 * len(TWICE))
    with ExitStack() as failing:
        for file in TWICE:
            failing.enter_context(failing_renames(range(1, 3), file))
        go_on(tmp_path, near_client, undisturbed)
    assert caplog.text.count(": trying again in 0 s: ") == 2 * len(TWICE)
