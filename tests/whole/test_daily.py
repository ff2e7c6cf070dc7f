"""A scheduled batch as a scheduler starts it: dates one after another, twice, at the same time."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import graphmill
from graphmill import report
from graphmill.ask.drift import DRIFT_RATIO
from graphmill.run import lock
from tests.etl.graphs import write_parquet
from tests.forked import Fork, Forks
from tests.waiting import wait_until

DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]


def write_day(folder: Path, day: str, num_ids: int) -> None:
    """Edges from every user to the next three."""
    edges = [(f"u{lhs}", f"u{lhs + step}") for lhs in range(num_ids - 3) for step in range(1, 4)]
    columns = {"user": [user for user, _ in edges], "next": [following for _, following in edges]}
    write_parquet(folder / f"clicks/day={day}/part-0.parquet", **columns)


def write_conf(folder: Path) -> None:
    settings = {
        "input": str(folder),
        "output": f"{folder}/out/{{date}}",
        "init_path": f"{folder}/out/{{previous_date}}/checkpoint",
        "entities": {"user": {"num_partitions": 1}},
        "relations": [{"name": "clicked", "lhs": "user", "rhs": "user", "operator": "diagonal"}],
        **{"dimension": 4, "num_epochs": 2, "batch_size": 50, "global_emb": False},
        "etl": {
            "tables": [
                {"path": "clicks/day={date-1..date}/*.parquet", "missing_paths": "skip"}
                | {"lhs": "user", "rhs": "next", "relation": "clicked"}
            ],
            "previous_entity_path": f"{folder}/out/{{previous_date}}/entities",
            "previous_edge_path": f"{folder}/out/{{previous_date}}/edges",
            "holdout": {"test": 0.05},
        },
        "evaluate": {"split": "test"},
        "schedule": {"keep": 2},
    }
    (folder / "daily.yaml").write_text(yaml.safe_dump(settings))


Start = Callable[[str], Fork]


@pytest.fixture
def start(tmp_path: Path, forked: Forks) -> Start:
    """Start the pipeline of a day."""
    return lambda day: forked.start(
        *("graphmill", "pipeline", "--conf", "daily.yaml", "--date", day), cwd=tmp_path
    )


def record(folder: Path, day: str) -> dict[str, Any]:
    return json.loads((folder / "out" / day / "run.json").read_text())


def test_dates_one_after_another(tmp_path: Path, start: Start, forked: Forks) -> None:
    write_conf(tmp_path)
    out = tmp_path / "out"
    failed = start(DAYS[0]).wait(2)  # its input has not come
    assert "day=2026-11-18" in failed.stderr
    assert not (out / DAYS[0] / "_SUCCESS").exists()
    for day, num_ids in zip(DAYS, (40, 50, 60), strict=True):
        write_day(tmp_path, day, num_ids)

    start(DAYS[0]).wait()
    assert json.loads((out / DAYS[0] / "_SUCCESS").read_text()) == {"date": DAYS[0], "previous_date": None}

    # Two schedulers that start the same date: one runs it, the other is told to come back later.
    rivals = {process.pid: process for process in (start(DAYS[1]) for _ in range(2))}
    held = out / DAYS[1] / lock.NAME
    wait_until(held.exists, 300)
    owner = rivals.pop(json.loads(held.read_text())["pid"])
    owner.send(signal.SIGSTOP)  # until the others are told, however long that takes
    (rival,) = rivals.values()
    assert "has it since" in rival.wait(75).stderr
    # Meanwhile the next date is told so too: it would go on from this one.
    assert f"and {DAYS[2]} would continue from it" in start(DAYS[2]).wait(75).stderr
    assert not (out / DAYS[2]).exists()
    owner.send(signal.SIGCONT)
    owner.wait()
    second = record(tmp_path, DAYS[1])
    assert second["config"]["schedule"]["previous_date"] == DAYS[0]
    assert second["stages"]["etl"]["num_entities_from_previous"] == {"user": 40}
    files = [second["stages"]["etl"]["delta"][f"files_{what}"] for what in ("kept", "added", "gone")]
    assert files == [1, 1, 0]
    assert second["config"]["init_path"] == f"{out}/{DAYS[0]}/checkpoint"

    # Once more: nothing is done again.
    written = {path: path.stat().st_mtime_ns for path in (out / DAYS[1]).glob("e*/**/*.parquet")}
    for again in (start(DAYS[1]).wait(), forked("graphmill", "pipeline", out / DAYS[1])):
        assert "train: skipped, unchanged since" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert written

    # The third date makes the first one superfluous, and only that one.
    assert "is retired" in start(DAYS[2]).wait().stderr
    assert sorted(path.name for path in out.iterdir()) == DAYS[1:]

    # The second was made from what is gone by now; asked for again it stays as it is.
    assert "nothing to do" in start(DAYS[1]).wait().stdout
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_vectors_that_moved_too_far_end_the_run_with_a_code_of_its_own(tmp_path: Path, start: Start) -> None:
    """The first day has nothing to compare with; the second may move little, and is accepted when asked."""
    write_conf(tmp_path)
    conf = yaml.safe_load((tmp_path / "daily.yaml").read_text())
    conf["drift"] = {"before": f"{tmp_path}/out/{{previous_date}}/embeddings", "max_p10": 0.0, "num_moved": 3}
    (tmp_path / "daily.yaml").write_text(yaml.safe_dump(conf))
    for day, num_ids in zip(DAYS[:2], (40, 50), strict=True):
        write_day(tmp_path, day, num_ids)
    assert "drift: left out: there is no run before" in start(DAYS[0]).wait().stderr

    second = start(DAYS[1]).wait(3)
    assert "a tenth of the ids has moved by more than drift.max_p10 = 0" in second.stderr
    assert not (tmp_path / "out" / DAYS[1] / "_SUCCESS").exists()
    assert (tmp_path / "out" / DAYS[1] / "embeddings" / "_SUCCESS").exists()
    stage = record(tmp_path, DAYS[1])["stages"]["drift"]
    assert stage["status"] == "failed"
    users = stage["types"]["user"]
    assert (users["num_compared"], users["num_new"], users["num_gone"]) == (40, 10, 0)
    assert users["p50"] >= users["p10"] >= users["p1"]
    assert 1 - users["p1"] <= DRIFT_RATIO * (1 - users["moved_most"][0]["cosine"]) + 1e-6
    assert len(users["moved_most"]) == 3
    assert sum(band["num_ids"] for band in users["by_degree"]) == 40
    page = Path(report.write(graphmill.open(str(tmp_path / "out" / DAYS[1]))))
    assert "The ids that moved most" in page.read_text()

    conf["drift"]["max_p10"] = 2.0
    (tmp_path / "daily.yaml").write_text(yaml.safe_dump(conf))
    assert "remap: skipped, unchanged since" in start(DAYS[1]).wait().stderr
    assert (tmp_path / "out" / DAYS[1] / "_SUCCESS").exists()
