"""The tasks of an evaluation on a cluster: the same ranks as in one process, also when a worker dies."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphmill import storage
from graphmill.ask.evaluate import evaluate, job
from graphmill.ask.evaluate.execution import COUNTING, Execution
from graphmill.config import Config
from graphmill.config.sections.evaluate import EvaluateConfig
from tests.graphmill.ask.predict.world import write_world
from tests.workers import die_once, workers


def small_world(folder: Path, num_partitions: int, **settings: Any) -> Config:
    counts = dict.fromkeys(("user", "item"), [400 // num_partitions] * num_partitions)
    return write_world(folder, counts=counts, num_distinct=200, **settings).config


def without_speed(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key != "edges_per_s"}


@pytest.mark.parametrize(("num_partitions", "dynamic"), [(1, False), (2, True)])
def test_a_cluster_finds_what_one_process_finds(tmp_path, client, num_partitions, dynamic):
    evaluated = {"block_bytes": 64 * 128 * 4}
    config = small_world(tmp_path, num_partitions, dynamic=dynamic, evaluate=evaluated)
    alone = evaluate.evaluate(config, with_baselines=True)
    folder = str(tmp_path / "work")
    spread = evaluate.evaluate(config, Execution.on(client, folder), with_baselines=True)
    assert without_speed(spread) == without_speed(alone)
    assert not storage.exists(folder)
    # other blocks, precision and parts of the edges: the same to the last bit
    section = EvaluateConfig(block_bytes=1 << 20, precision="float32", query_bytes=20_000)
    again = evaluate.evaluate(config.with_section(section))
    assert again["metrics"] == alone["metrics"]
    assert again["metrics_by_degree"] == alone["metrics_by_degree"]


@dataclass(frozen=True)
class Dying(Execution):
    """Loses a worker in the middle of the count."""

    def run(self, function, arguments, description):
        if description == COUNTING:
            function = partial(die_once, f"{self.folder_uri}-died", function)
        return super().run(function, arguments, description)


@pytest.mark.slow
def test_a_lost_worker_changes_nothing(tmp_path: Path) -> None:
    config = small_world(tmp_path, 4)
    alone = evaluate.evaluate(config)
    with workers(2) as mortal:
        on = Execution.on(mortal, str(tmp_path / "work"))
        found = evaluate.evaluate(config, Dying(on.client, on.num_workers, on.sharers, on.folder_uri))
    assert without_speed(found) == without_speed(alone)
    assert (tmp_path / "work-died").exists()


def test_the_stage_spreads_what_is_not_small(tmp_path, client, monkeypatch, caplog):
    caplog.set_level("INFO", "graphmill")
    config = small_world(tmp_path, 2, evaluate={"sample": 50})
    told = "ranking 50 of 125 edges of test, drawn at random: evaluate.sample is 50; evaluate.sample: null"
    figures = {}
    (tmp_path / ".run.json.evaluate-0123").mkdir()  # of a killed run
    assert job.is_small(config)
    for limit in (job.SMALL_PRODUCTS, 0):
        monkeypatch.setattr(job, "SMALL_PRODUCTS", limit)
        caplog.clear()
        figures[limit] = without_speed(job.run(config, client))
        assert told in caplog.text
    assert len({str(each) for each in figures.values()}) == 1
    assert figures[0]["metrics"]["num_edges"] == 50
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
