"""Values that the data decide, sizes of inputs, and what has changed since a checkpoint was trained."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill import config, storage
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.errors import FormatError, NotFoundError, StorageError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.origins import Origins, write_origins
from graphmill.run import fingerprints
from graphmill.run.auto_values import describe, resolve_auto_values
from graphmill.run.fingerprints import SMALL_BYTES, are_small
from graphmill.run.trained_with import FILE, changes_in_errors
from graphmill.vocab import Bucket


def settings_of(folder: Path, **changes: object) -> Config:
    relations = [{"name": "r", "lhs": "user", "rhs": "user"}]
    content = {"output": str(folder / "out"), "entities": {"user": {}}, "relations": relations}
    (folder / "c.yaml").write_text(json.dumps(content | changes))
    return config.load(str(folder / "c.yaml"))


def write_graph(settings: Config, num_partitions: int, edges_of_bucket: int) -> None:
    zeros = np.zeros(edges_of_bucket, np.int64)
    for lhs in range(num_partitions):
        entity_counts.write_count(settings.entity_path, "user", lhs, 10)
        for rhs in range(num_partitions):
            edge_buckets.write_bucket(settings.edge_paths[0], Bucket(lhs, rhs), Edges(zeros, zeros, zeros))


def test_partitions_are_those_of_the_entities_and_edges_are_counted(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert resolve_auto_values(settings) is settings  # there are no entities yet
    write_graph(settings, 9, 500)  # 81 buckets, of which some are counted
    found = resolve_auto_values(settings)
    assert (found.entities["user"].num_partitions, found.batch_size, found.num_epochs) == (9, 16, 16)
    assert "batch_size 16, num_epochs 16 for 40,500 edges of 90 user" in describe(found)
    Path(entity_counts.count_uri(settings.entity_path, "user", 0)).write_text("many")
    assert resolve_auto_values(settings) is settings  # the stage that reads it says what is wrong


def test_what_is_set_is_not_decided(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, entities={"user": {"num_partitions": 2}}, num_epochs=3)
    write_graph(settings, 2, 1000)
    found = resolve_auto_values(settings)
    assert (found.num_epochs, found.entities["user"].num_partitions, found.batch_size) == (3, 2, 16)


@pytest.mark.parametrize("added", [None, []])
def test_the_rate_of_a_delta_is_for_runs_that_train_added_edges_only(tmp_path, added):
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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, True),
        ({"a": 1, "deep/er/b": SMALL_BYTES - 1}, True),
        ({"a": 1, "deep/er/b": SMALL_BYTES}, False),
        ({f"{number % 7}/{number}": 0 for number in range(1001)}, False),
    ],
)
def test_few_files_of_few_bytes_are_small(files: dict[str, int], expected: bool, tmp_path: Path) -> None:
    for name, num_bytes in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(num_bytes)
    twice_and_missing = [str(tmp_path), str(tmp_path), str(tmp_path / "missing")]
    assert are_small(twice_and_missing) is expected


def configured(folder: Path, **settings: Any) -> Config:
    relation = {"name": "r", "lhs": "a", "rhs": "a", "operator": settings.pop("operator", "none")}
    entities = {"a": {"num_partitions": settings.pop("num_partitions", 1)}}
    raw = {"output": str(folder / "out"), "dimension": 4, "entities": entities, "relations": [relation]}
    return from_mapping(raw | settings)


def message(config: Config, error: Exception) -> str:
    with pytest.raises(type(error)) as raised, changes_in_errors(config):
        raise error
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"operator": "diagonal"}, 'relations[0].operator: "none" -> "diagonal"'),
        ({"num_partitions": 2}, "entities.a.num_partitions: 1 -> 2"),
        ({"dimension": 6, "global_emb": False}, "dimension: 4 -> 6; global_emb: true -> false"),
    ],
)
def test_changed_settings(tmp_path: Path, settings: dict[str, Any], change: str) -> None:
    trained = configured(tmp_path)
    pbg.write_config(trained.checkpoint_path, trained.pbg())
    changed = configured(tmp_path, **settings)
    for kind in (FormatError, NotFoundError):
        first, second = message(changed, kind("x.h5: wrong shape")).splitlines()
        assert first == "x.h5: wrong shape"
        expected = rf"changed since .*/out/checkpoint was trained: {re.escape(change)}; set this .*"
        assert re.fullmatch(expected, second)
    assert message(changed, StorageError("x")) == "x"  # is not about files


def test_other_entities(tmp_path: Path) -> None:
    config = configured(tmp_path)
    storage.write_marker(config.entity_path, {"run": 1})
    inputs = fingerprints.describe_inputs([config.entity_path, "/elsewhere"])
    storage.write_text(storage.join(config.checkpoint_path, FILE), json.dumps({"inputs": inputs}))
    storage.write_text(storage.join(config.checkpoint_path, "checkpoint_version.txt"), "1")
    assert message(config, FormatError("x")) == "x"
    storage.write_marker(config.entity_path, {"run": 2})
    told = message(config, FormatError("x"))
    assert re.search(r"entities is newer \(.*\) than what was made from it \(.*\); set", told)


@pytest.mark.parametrize("content", ["{", "[]", '{"relations": 7}', '{"inputs": 7}'])
def test_damaged_files_change_nothing(tmp_path: Path, content: str) -> None:
    config = configured(tmp_path)
    assert message(config, FormatError("x")) == "x"
    for name in (FILE, "config.json"):
        storage.write_text(storage.join(config.checkpoint_path, name), content)
    assert message(config, FormatError("x")) == "x"
