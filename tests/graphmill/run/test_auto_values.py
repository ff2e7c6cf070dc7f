"""Values that the data decide, from the files of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphmill import config
from graphmill.config import Config
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.origins import Origins, write_origins
from graphmill.run.auto_values import describe, resolve_auto_values
from graphmill.vocab import Bucket


def settings_of(folder: Path, **changes: object) -> Config:
    content = {
        "output": str(folder / "out"),
        "entities": {"user": {}},
        "relations": [{"name": "r", "lhs": "user", "rhs": "user"}],
    }
    (folder / "c.yaml").write_text(json.dumps(content | changes))
    return config.load(str(folder / "c.yaml"))


def write_graph(settings: Config, num_partitions: int, edges_of_bucket: int) -> None:
    zeros = np.zeros(edges_of_bucket, np.int64)
    for lhs in range(num_partitions):
        entity_counts.write_count(settings.entity_path, "user", lhs, 10)
        for rhs in range(num_partitions):
            edge_buckets.write_bucket(settings.edge_paths[0], Bucket(lhs, rhs), Edges(zeros, zeros, zeros))


def test_nothing_is_decided_before_there_are_entities(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert resolve_auto_values(settings) is settings


def test_partitions_are_those_of_the_entities_and_edges_are_counted(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_graph(settings, 9, 500)  # 81 buckets, of which some are counted
    found = resolve_auto_values(settings)
    assert found.entities["user"].num_partitions == 9
    assert (found.batch_size, found.num_epochs) == (16, 16)
    assert "batch_size 16, num_epochs 16 for 40,500 edges of 90 user" in describe(found)


def test_what_is_set_is_not_decided(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, entities={"user": {"num_partitions": 2}}, num_epochs=3)
    write_graph(settings, 2, 1000)
    found = resolve_auto_values(settings)
    assert (found.num_epochs, found.entities["user"].num_partitions, found.batch_size) == (3, 2, 16)


def test_a_damaged_count_is_left_to_the_stage_that_reads_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_graph(settings, 1, 10)
    Path(entity_counts.count_uri(settings.entity_path, "user", 0)).write_text("many")
    assert resolve_auto_values(settings) is settings


@pytest.mark.parametrize("added", [None, []])
def test_the_rate_of_a_delta_is_for_runs_that_train_added_edges_only(
    tmp_path: Path, added: list[int] | None
) -> None:
    rates = []
    for replay in (None, 1.0):
        folder = tmp_path / str(replay)
        folder.mkdir()
        first = {"init_path": str(folder / "before"), "train": {"replay": replay}}
        settings = settings_of(folder, **first)
        write_graph(settings, 1, 500)
        write_origins(settings.edge_paths[0], Origins(settings={}, entities="", files=[], added=added), {})
        rates.append(resolve_auto_values(settings).lr)
    assert rates[1] == pytest.approx(rates[0] * (1 if added is None else 0.2))
