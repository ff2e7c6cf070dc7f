"""After a failed or killed run the next run continues after the last finished step, with the same bytes."""

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from distributed import Client

from etl import job
from etl.run.work import EtlStep, EtlWork
from graphmill import storage
from graphmill.cluster import tasks
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import FormatError, RawTableError, StorageError
from graphmill.storage import fs
from tests import REPOSITORY
from tests.contents import flip_a_bit
from tests.etl.graphs import config_of, files_under, run_saved, saved, write_parquet
from tests.forked import Forks, Kill
from tests.processes import DASK_SUBMIT, DEADLINE_S, full_disk, running
from tests.waiting import wait_until

STEPS = ["plan", "encode", "partitions", "index", "translate", "merge"]
NUM_RENAMES = 65  # of graph_config, and one more


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


@pytest.fixture(scope="module")
def stopped(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`stopped(step)`: the folder of a run that has failed before a step, as it was then."""
    root = tmp_path_factory.mktemp("stopped")
    work = root / "work"

    def restored(step: str) -> Path:
        rmtree(work, ignore_errors=True)
        if (root / step).exists():
            return copytree(root / step, work)
        work.mkdir()
        stopped_before(step, near_client, graph_config(work))
        copytree(work, root / step)
        return work

    return restored


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
@pytest.mark.parametrize(("step", "file", "damage"), DAMAGES)
def test_damaged_or_missing_files_are_made_again(near_client, stopped, undisturbed, step, file, damage):
    root = stopped(step)
    found = sorted(each for each in root.rglob(file) if not re.search("/raw/|quarantine", str(each)))
    damage(found[0])
    # what the damaged step was made from is gone too
    assert "etl: encode" in go_on(root, near_client, undisturbed)


def test_files_that_no_later_step_reads_are_deleted(stopped: Callable[[str], Path]) -> None:
    for step, expected in (
        ("index", {"ids", "codes.arrow"}),
        ("translate", {"codes.arrow"}),
        ("merge", {"edges.i32", "rhs_edges.i32"}),
    ):
        found = next(stopped(step).rglob("files-*")).glob("0000*")
        assert {path.name.split(".", 1)[-1] for path in found} == expected


def test_a_repeated_step_takes_back_those_after_it(near_client, stopped):
    """Their files are those of other chunks, where it is repeated with other workers."""
    root = stopped("merge")
    next(root.rglob("*.rhs_edges.i32")).unlink()
    stopped_before("index", near_client, graph_config(root))
    assert finished_steps(root) == ["plan", "encode", "partitions"]


def test_work_goes_on_for_another_place_of_the_edges(near_client, stopped, tmp_path, undisturbed):
    config, to = graph_config(stopped("merge")), str(tmp_path / "other")
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


def test_bad_input_removes_the_work(near_client, stopped):
    root = stopped("translate")
    assert hidden(root)
    with pytest.raises(RawTableError, match="max_bad_fraction"):
        job.run(graph_config(root, max_bad_fraction=0.01), near_client)
    assert hidden(root) == []


@pytest.mark.parametrize("result", ['[{"chunks": 3}]', "no JSON"])
def test_a_journal_of_another_kind(near_client, stopped, result):
    root = stopped("index")
    (encode,) = root.rglob("files-*/encode.json")
    step = EtlStep.model_validate_json(encode.read_text())
    encode.write_text(step.model_copy(update={"result": result}).sealed().model_dump_json())
    with pytest.raises(FormatError, match="start again, from nothing"):
        job.run(graph_config(root), near_client)
    assert hidden(root) == []


@pytest.mark.parametrize("token", ["../../../other", "0123456789abc"])
def test_a_token_that_is_a_path(near_client, stopped, undisturbed, token):
    root = stopped("index")
    (journal,) = root.rglob("journal.json")
    journal.write_text(json.dumps(json.loads(journal.read_text()) | {"token": token}))
    assert "etl: look at tables" in go_on(root, near_client, undisturbed)


TWICE = ["quarantine", ".codes.arrow", ".combined", ".rows.i32", "entity_count", ".edges.i32", "edges_1_0.h5"]


def test_tasks_that_fail_twice_double_nothing(near_client, tmp_path, undisturbed, monkeypatch, caplog):
    monkeypatch.setattr(tasks, "RETRY_DELAYS_S", (0.0,) * 2 * len(TWICE))
    with ExitStack() as failing:
        for file in TWICE:
            failing.enter_context(failing_renames(range(1, 3), file))
        go_on(tmp_path, near_client, undisturbed)
    assert caplog.text.count(": trying again in 0 s: ") == 2 * len(TWICE)


def numbered_graph(root: Path, number: int, num_edges: int = 2_000) -> Config:
    """Graph `number`, its raw table written where it is not yet."""
    path = root / f"raw-{number}-{num_edges}.parquet"
    if not path.exists():
        ids = np.random.default_rng(number).integers(0, 3_000, (2, num_edges))
        write_parquet(path, 500, **{k: [f"{number}-{n}" for n in v] for k, v in zip("lt", ids, strict=True)})
    return config_of(root / "out", str(path), entities={"node": 2}, holdout={"test": 0.2}, chunk_rows=500)


@pytest.fixture(scope="module")
def old_run(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of graph 0, marked as finished, and the table of graph 1, which takes its place."""
    root = tmp_path_factory.mktemp("old")
    job.run(numbered_graph(root, 0), near_client)
    numbered_graph(root, 1)
    for folder in ("entities", "edges/train", "edges/test"):
        (root / "out" / folder / "_SUCCESS").write_text("{}")
    return root


@pytest.fixture
def old(old_run: Path, tmp_path: Path) -> Path:
    """A folder with the output of graph 0."""
    return copytree(old_run, tmp_path, dirs_exist_ok=True)


def folders(root: Path) -> dict[str, dict[str, bytes]]:
    """Content of each output folder that is there under its name."""
    named = [root / "out" / name for name in ("entities", "edges/train", "edges/test")]
    return {folder.name: files_under(folder) for folder in named if folder.exists()}


@pytest.fixture(scope="module")
def new_output(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of an undisturbed run on graph 1."""
    root = tmp_path_factory.mktemp("undisturbed")
    job.run(numbered_graph(root, 1), near_client)
    return folders(root)


# The journal; the plan; 4 x 2 files of chunks; 2 x 2 of shards, 2 x 2 of partitions; 4 x sorted edges; 8
# buckets; each step's note in the journal; the manifest; 2 x raw files, 2 x edges by bucket; 3 x
# checksums; 3 x 2 commits.
RENAMES = [1, 2, 9, 11, 14, 20, 21, 24, *range(34, 49)]
KILLED_AFTER = ["*.codes.arrow", "*.rows.i32", "*.edges.i32", "edges_*.h5"]


@pytest.mark.parametrize(
    "kill",
    [*(Kill(rename - 1) for rename in RENAMES), *(Kill(0, file, is_after=True) for file in KILLED_AFTER)],
    ids=str,
)
def test_killed_at_a_rename_or_where_a_file_has_got_its_name(near_client, forked, kill, old, new_output):
    old_output = folders(old)
    forked(*saved(numbered_graph(old, 1), old / "saved"), kill=kill)
    left = folders(old)
    assert hidden(old)
    done = finished_steps(old)
    if left != old_output:  # the commits had begun: every folder is whole, and none passes for finished
        assert not kill.is_after
        for name, files in left.items():
            assert files in (new_output[name], without_marker(old_output[name]))
    _, num_tasks = figures_of(numbered_graph(old, 1), near_client)
    assert folders(old) == new_output
    assert not hidden(old)
    if left == old_output:  # else outputs have left the work, which what they were made from left before
        assert ("etl: encode" in num_tasks) == ("encode" not in done)
    if "merge" not in done:
        assert ("etl: translate" in num_tasks) == ("translate" not in done)


def without_marker(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != "_SUCCESS"}


@pytest.mark.slow
def test_the_command_killed_with_its_workers_and_then_a_worker(old: Path, new_output: dict[str, Any]) -> None:
    """The next run goes on; Dask starts another worker in the place of one that was killed."""
    conf, sign, log = old / "conf.yaml", old / "held", old / "stderr.txt"
    settings = numbered_graph(old, 1).model_dump(mode="json", exclude_defaults=True)
    conf.write_text(yaml.safe_dump({"defaults": "pbg"} | settings))

    def unmarked() -> dict[str, dict[str, bytes]]:
        return {name: without_marker(files) for name, files in folders(old).items()}

    def held(file: str) -> Any:
        words = [sign, DASK_SUBMIT, "--master", "local[2]", "etl.py", "--conf", conf]
        return running([sys.executable, "-m", "tests.held", file, 1, *words], log, cwd=REPOSITORY)

    old_output = unmarked()
    with held("*.codes.arrow") as process:
        wait_until(sign.exists, DEADLINE_S)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert unmarked() == old_output
    assert hidden(old)
    sign.unlink()
    with held("edges_*.h5") as process:
        wait_until(sign.exists, DEADLINE_S)
        children = psutil.Process(process.pid).children()
        workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
        assert len(workers) == 2
        (one,) = (each for each in workers if each.pid == int(sign.read_text()))
        one.kill()
        assert process.wait(DEADLINE_S) == 0, log.read_text()
    assert json.loads((old / "out" / "run.json").read_text())["workers_lost"] == 1
    assert unmarked() == new_output
    assert not hidden(old)
    _, alive = psutil.wait_procs(children, DEADLINE_S)  # multiprocessing's tracker ends after the command
    assert not alive


def run_with_limit() -> None:
    """Run where no file may grow beyond the limit: for the writer it is the same as a full disk."""
    tasks.RETRY_DELAYS_S = ()
    with full_disk(int(sys.argv[2])):
        run_saved()


def test_a_full_disk(near_client: Client, forked: Forks, old: Path, new_output: dict[str, Any]) -> None:
    """A clear error, the old output is whole, and the next run continues."""
    config = numbered_graph(old, 1)
    _, path = saved(config, old / "saved")
    before = folders(old)
    for limit, *names in (
        (1_000, ".json"),
        (6_000, ".ids"),
        (9_000, ".ids", "rows.i32", "codes.arrow", "parquet"),
    ):
        ended = forked("tests.etl.run.test_go_on:run_with_limit", path, limit, code=1)
        error = ended.stderr.strip().splitlines()[-1]
        assert "DiskFullError" in error, ended.stderr
        assert "File too large" in error
        assert any(name in error for name in names)
        assert folders(old) == before
    job.run(config, near_client)
    assert not hidden(old)
    assert folders(old) == new_output
