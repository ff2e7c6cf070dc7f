"""Errors about a checkpoint's shape say what has changed since its training."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.errors import FormatError, NotFoundError, StorageError
from graphmill.run import record
from graphmill.run.trained_with import FILE, changes_in_errors


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
        ({"dimension": 6}, "dimension: 4 -> 6"),
        ({"operator": "diagonal"}, 'relations[0].operator: "none" -> "diagonal"'),
        ({"num_partitions": 2}, "entities.a.num_partitions: 1 -> 2"),
        ({"dimension": 6, "global_emb": False}, "dimension: 4 -> 6; global_emb: true -> false"),
    ],
)
@pytest.mark.parametrize("kind", [FormatError, NotFoundError])
def test_changed_settings(
    tmp_path: Path, settings: dict[str, Any], change: str, kind: type[Exception]
) -> None:
    trained = configured(tmp_path)
    pbg.write_config(trained.checkpoint_path, trained.pbg())
    told = message(configured(tmp_path, **settings), kind("x.h5: wrong shape"))
    first, second = told.splitlines()
    assert first == "x.h5: wrong shape"
    assert re.fullmatch(
        rf"changed since .*/out/checkpoint was trained: {re.escape(change)}; set this .*", second
    )


def test_other_entities(tmp_path: Path) -> None:
    config = configured(tmp_path)
    storage.write_marker(config.entity_path, {"run": 1})
    inputs = record.describe_inputs([config.entity_path, "/elsewhere"])
    storage.write_text(storage.join(config.checkpoint_path, FILE), json.dumps({"inputs": inputs}))
    storage.write_text(storage.join(config.checkpoint_path, "checkpoint_version.txt"), "1")
    assert message(config, FormatError("x")) == "x"
    storage.write_marker(config.entity_path, {"run": 2})
    assert re.search(
        r"entities is newer \(.*\) than what was made from it \(.*\); set", message(config, FormatError("x"))
    )


@pytest.mark.parametrize("content", ["{", "[]", '{"relations": 7}', '{"inputs": 7}'])
def test_damaged_files_change_nothing(tmp_path: Path, content: str) -> None:
    config = configured(tmp_path)
    assert message(config, FormatError("x")) == "x"
    for name in (FILE, "config.json"):
        storage.write_text(storage.join(config.checkpoint_path, name), content)
    assert message(config, FormatError("x")) == "x"


def test_only_errors_about_files_get_an_explanation(tmp_path: Path) -> None:
    trained = configured(tmp_path)
    pbg.write_config(trained.checkpoint_path, trained.pbg())
    assert message(configured(tmp_path, dimension=6), StorageError("x")) == "x"
