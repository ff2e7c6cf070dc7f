"""A scheduled batch as a scheduler starts it: dates one after another, twice, at the same time."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphmill
from graphmill import report
from graphmill.ask.drift import DRIFT_RATIO
from graphmill.run import lock
from tests.forked import Fork, Forks
from tests.waiting import wait_until
from tests.whole.test_week import DAYS, Chain, write_days

Start = Callable[[str], Fork]
OFTEN: dict[str, Any] = {"train": {}, "schedule": {"keep": 2}}  # all edges are trained every day


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """The runs of some days, whose input is not there yet."""
    (tmp_path / "daily").mkdir()
    return Chain(str(tmp_path / "daily"), tmp_path / "daily")


@pytest.fixture
def start(chain: Chain, forked: Forks) -> Start:
    """Start the pipeline of a day."""
    return lambda day: forked.start(
        "graphmill", "pipeline", "--conf", chain.notes / "daily.yaml", "--date", day
    )


def test_dates_one_after_another(chain: Chain, start: Start, forked: Forks) -> None:
    chain.conf(**OFTEN)
    out = Path(chain.root, "out")
    failed = start(DAYS[0]).wait(2)  # its input has not come
    assert f"day={DAYS[0]}" in failed.stderr
    assert not (out / DAYS[0] / "_SUCCESS").exists()
    write_days(Path(chain.input()))

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
    first, second = map(chain.record, DAYS[:2])
    assert second["config"]["schedule"]["previous_date"] == DAYS[0]
    num_entities = {name: sum(each) for name, each in first["stages"]["etl"]["num_entities"].items()}
    assert second["stages"]["etl"]["num_entities_from_previous"] == num_entities
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
    assert sorted(path.name for path in out.iterdir()) == DAYS[1:3]

    # The second was made from what is gone by now; asked for again it stays as it is.
    assert "nothing to do" in start(DAYS[1]).wait().stdout
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_vectors_that_moved_too_far_end_the_run_with_a_code_of_its_own(chain: Chain, start: Start) -> None:
    """The first day has nothing to compare with; the second may move little, and is accepted when asked."""
    drift = {"before": f"{chain.root}/out/{{previous_date}}/embeddings", "max_p10": 0.0, "num_moved": 3}
    chain.conf(**OFTEN, drift=drift)
    write_days(Path(chain.input()))
    assert "drift: left out: there is no run before" in start(DAYS[0]).wait().stderr

    second = start(DAYS[1]).wait(3)
    assert "a tenth of the ids has moved by more than drift.max_p10 = 0" in second.stderr
    out = Path(chain.root, "out", DAYS[1])
    assert not (out / "_SUCCESS").exists()
    assert (out / "embeddings" / "_SUCCESS").exists()
    stage = chain.record(DAYS[1])["stages"]["drift"]
    assert stage["status"] == "failed"
    users = stage["types"]["user"]
    before, after = (sum(chain.record(day)["stages"]["etl"]["num_entities"]["user"]) for day in DAYS[:2])
    assert (users["num_compared"], users["num_new"], users["num_gone"]) == (before, after - before, 0)
    assert users["p50"] >= users["p10"] >= users["p1"]
    assert 1 - users["p1"] <= DRIFT_RATIO * (1 - users["moved_most"][0]["cosine"]) + 1e-6
    assert len(users["moved_most"]) == 3
    assert sum(band["num_ids"] for band in users["by_degree"]) == before > 40
    page = Path(report.write(graphmill.open(str(out))))
    assert "The ids that moved most" in page.read_text()

    chain.conf(**OFTEN, drift=drift | {"max_p10": 2.0})
    assert "remap: skipped, unchanged since" in start(DAYS[1]).wait().stderr
    assert (out / "_SUCCESS").exists()
