"""A week of daily runs that train deltas: kills on every day change nothing of what the week ends with."""

import json
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import graphmill
from graphmill import report, storage
from graphmill.run import lock
from tests.etl.graphs import same_bytes
from tests.finished import Once
from tests.forked import Fork, Forks, Kill
from tests.hadoop.files import files_at, upload
from tests.waiting import wait_until

FIRST = date(2026, 11, 16)
DAYS = [str(FIRST + timedelta(number)) for number in range(5)]
WINDOW = 2  # days, of which the week's first has only its own
RESULTS = ("entities", "edges", "embeddings")


class Chain(NamedTuple):
    """Runs of one day after another, from the same input."""

    root: str
    notes: Path
    """A folder on the local disk."""

    def conf(self, **changes: Any) -> Path:
        """Write the configuration, which is that of conf/daily.yaml for a small graph, with changes."""
        columns = {"lhs": "l", "rhs": "t", "relation_column": "r", "missing_paths": "skip"}
        window = f"day={{date-{WINDOW - 1}..date}}/*.parquet"
        earlier = f"{self.root}/out/{{previous_date}}"
        settings: dict[str, Any] = {
            "input": self.input(),
            "output": f"{self.root}/out/{{date}}",
            "init_path": f"{earlier}/checkpoint",
            "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
            "relations": [
                {"name": "knows", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"},
                {"name": "saw", "lhs": "user", "rhs": "item", "operator": "diagonal"},
            ],
            **{"dimension": 8, "comparator": "dot", "loss_fn": "softmax", "global_emb": False},
            **{"num_epochs": 2, "lr": 0.1, "batch_size": 100, "workers": 1, "eval_fraction": 0},
            "etl": {
                "tables": [
                    {"path": f"edges/{window}"} | columns,
                    {"path": f"gone/{window}", "removes": True} | columns,
                ],
                "previous_entity_path": f"{earlier}/entities",
                "previous_edge_path": f"{earlier}/edges",
                "holdout": {"test": 0.05},
                "forget_after": 1,
            },
            "train": {"replay": 1.0, "resident": "never"},
            "schedule": {"keep": 4},
            "cluster": {"master": "local[1]"},
        }
        path = self.notes / "daily.yaml"
        path.write_text(yaml.safe_dump(settings | changes))
        return path

    def input(self) -> str:
        """The folder of the raw tables."""
        on_disk = self.notes.parent / "raw"
        return str(on_disk) if "://" not in self.root else f"{self.root}/raw"

    def run(self, forked: Forks, kills: Mapping[str, Sequence[int]], num_days: int = len(DAYS)) -> list[int]:
        """Run the first days; those of `kills` are killed at the renamings of these numbers, and run again.

        Returns:
            the number of renamings of each day's last run.
        """
        conf, renamings = self.conf(), []
        for day in DAYS[:num_days]:
            command = ("graphmill", "pipeline", "--conf", conf, "--date", day)
            for number in kills.get(day, ()):
                forked(*command, kill=Kill(number))
            renamings.append(forked(*command).renamings)
        return renamings

    def results(self, day: str) -> dict[str, bytes]:
        """All files of a day's entities, edges and embeddings, without what names the raw files."""
        folders = {folder: files_at(f"{self.root}/out/{day}/{folder}") for folder in RESULTS}
        found = {f"{folder}/{name}": each for folder, own in folders.items() for name, each in own.items()}
        return {name: content for name, content in same_bytes(found).items() if "_SUCCESS" not in name}

    def record(self, day: str) -> dict[str, Any]:
        return json.loads(storage.read_text(f"{self.root}/out/{day}/run.json"))


def write_table(path: Path, edges: list[tuple[str, str, str]]) -> None:
    path.parent.mkdir(parents=True)
    columns = [pa.array(column, pa.string()) for column in zip(*edges, strict=True)]
    pq.write_table(pa.table(columns, names=["l", "r", "t"]), path)


def write_days(raw: Path) -> None:
    """Write a table of edges for each day, of ids that come and go, and one of removals."""
    rng = np.random.default_rng(8)
    of_days = []
    for number, day in enumerate(DAYS):
        users, items = 20 * number + rng.integers(80, size=150), 5 * number + rng.integers(40, size=150)
        edges = {(f"u{lhs}", "saw", f"i{rhs}") for lhs, rhs in zip(users, items, strict=True)}
        edges |= {(f"u{lhs}", "knows", f"u{lhs + step}") for lhs, step in zip(users, items % 7, strict=True)}
        of_days.append(sorted(edges))
        write_table(raw / f"edges/day={day}/part-0.parquet", of_days[-1])
        before = of_days[-2] if number else []
        write_table(raw / f"gone/day={day}/part-0.parquet", before[::9] + of_days[-1][::11])


@pytest.fixture(scope="module")
def undisturbed(forked: Forks, once: Once) -> tuple[Chain, list[int]]:
    """The week without kills, and the number of renamings of each of its days."""

    def make(folder: Path) -> None:
        write_days(folder / "raw")
        (folder / "once").mkdir()
        renamings = Chain(str(folder / "once"), folder / "once").run(forked, {})
        (folder / "renamings.json").write_text(json.dumps(renamings))

    folder = once("week", make)
    return Chain(str(folder / "once"), folder / "once"), json.loads((folder / "renamings.json").read_text())


def test_the_week_trains_deltas(undisturbed: tuple[Chain, list[int]]) -> None:
    chain, _ = undisturbed
    for number, day in enumerate(DAYS[-2:], start=len(DAYS) - 2):
        record = chain.record(day)
        etl, train = record["stages"]["etl"], record["stages"]["train"]
        assert record["config"]["schedule"]["previous_date"] == DAYS[number - 1]
        assert (etl["delta"]["files_added"], etl["delta"]["files_gone"]) == (1, 1)
        assert train["delta"]["replay"] == 1
        assert train["delta"]["new_ids"]["user"]["num_new"] > 10
        assert train["delta"]["new_ids"]["item"]["num_new"] > 0
        assert train["num_edges"] > 0
        assert etl["num_entities_gone"]["user"] > etl["num_entities_forgotten"]["user"] / 2 > 5
        num_edges = sum(each for each in (epoch["edges"] for epoch in train["epochs"]))
        assert num_edges < etl["num_edges"]["train"] * len(train["epochs"])


def test_killed_every_day_and_run_again(forked: Forks, undisturbed: tuple[Chain, list[int]]) -> None:
    once, renamings = undisturbed
    folder = once.notes.parent / "killed"
    folder.mkdir()
    chain, draw = Chain(str(folder), folder), random.Random(4)
    kills = {day: [draw.randrange(number)] for day, number in zip(DAYS, renamings, strict=True)}
    for day, number in list(zip(DAYS, renamings, strict=True))[1:4]:  # and these twice, before two thirds
        kills[day] = [draw.randrange(number // 3), draw.randrange(number // 3)]
    assert sum(map(len, kills.values())) == 8
    chain.run(forked, kills)
    check_same(chain, once)


@pytest.mark.hdfs
def test_killed_on_hdfs(forked, undisturbed, hdfs, hdfs_uri, tmp_path):
    once, renamings = undisturbed
    upload(once.notes.parent / "raw", f"{hdfs_uri}/raw")
    chain, draw = Chain(hdfs_uri, tmp_path), random.Random(5)
    # some local files are renamed, and on HDFS are not
    kills = {day: [draw.randrange(2 * number // 5)] for day, number in zip(DAYS, renamings, strict=True)}
    kills.pop(DAYS[0])
    chain.run(forked, kills, num_days=4)
    check_same(chain, once, DAYS[3:4])


def check_same(ours: Chain, theirs: Chain, days: Sequence[str] = DAYS[-2:]) -> None:
    """Ids, edges and embeddings of these days are the same bytes."""
    for day in days:
        found, expected = ours.results(day), theirs.results(day)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []
        assert len([name for name in found if name.startswith("embeddings/")]) >= 3


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
    assert (users["num_compared"], users["num_new"], len(users["moved_most"])) == (before, after - before, 3)
    page = Path(report.write(graphmill.open(str(out))))
    assert "The ids that moved most" in page.read_text()

    chain.conf(**OFTEN, drift=drift | {"max_p10": 2.0})
    assert "remap: skipped, unchanged since" in start(DAYS[1]).wait().stderr
    assert (out / "_SUCCESS").exists()
