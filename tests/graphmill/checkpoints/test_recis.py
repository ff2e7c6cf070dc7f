"""Checkpoints in RecIS' layout: names that RecIS' reader tells apart, and files of earlier versions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from graphmill.checkpoints import ModelState, open_checkpoint
from graphmill.checkpoints.recis import write
from graphmill.errors import FormatError
from graphmill.model.parameters import in_order
from tests.graphmill.checkpoints.samples import (
    GROUP,
    MemoryCheckpoint,
    check_same,
    config_of,
    sample,
)
from tests.graphmill.formats.recis_rules import RecisReader

TYPES = st.sampled_from(["user", "user_id", "user2", "use", "id", "embedding", "item", "a b"])
KEYS = st.sampled_from(
    [
        "rhs_operators.1.real",
        "rhs_operators.11.real",
        "rhs_operators.1.imag",
        "lhs_operators.0.linear_transformation",
        "lhs_operators.0.linear_transformations",
    ]
)


def _checkpoint(types: list[str], keys: list[str]) -> MemoryCheckpoint:
    rows = {name: np.full((3, 2), number, np.float32) for number, name in enumerate(types)}
    state = {"state": {0: {"step": 0, "sum": torch.ones(3)}}, "param_groups": [GROUP]}
    tables = {name: [(each, state)] for name, each in rows.items()}
    names = in_order([*keys, *(f"global_embs.emb_{name}" for name in types)], types)
    parameters = {name: torch.full((2,), 1.0 + number) for number, name in enumerate(names)}
    sums = {n: {"step": 0, "sum": torch.full((2,), 0.5 + n)} for n in range(len(names))}
    model = ModelState(parameters, {"state": sums, "param_groups": [GROUP | {"params": list(sums)}]})
    return MemoryCheckpoint(tables, model, config_of(tables))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(
    types=st.lists(TYPES, min_size=1, max_size=4, unique=True),
    keys=st.lists(KEYS, max_size=4, unique=True),
    shards=st.integers(1, 3),
)
def test_no_name_begins_another(
    tmp_path_factory: pytest.TempPathFactory, types: list[str], keys: list[str], shards: int
) -> None:
    """Asked for a name, RecIS 1.0.0 returns all tensors whose names begin with it, one after the other."""
    path = tmp_path_factory.mktemp("names") / "checkpoint"
    checkpoint = _checkpoint(types, keys)
    write(checkpoint, str(path), shards)
    reader = RecisReader(path)
    names = reader.names()
    assert not [(a, b) for a in names for b in names if a != b and b.startswith(a)]
    for name in names:
        assert torch.equal(reader.read(name), reader.read(name, "^"))
    for name, ((rows, _),) in checkpoint.tables.items():
        assert reader.table(name).keys() == {0, 1, 2}
        assert torch.equal(reader.table(name)[2], torch.from_numpy(rows[2]))
    check_same(open_checkpoint(str(path)), checkpoint)


def test_names_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """`{key}.optimizer.sum`, and gaps in the numbers of files."""
    write(sample(), str(tmp_path))
    index = json.loads((tmp_path / "index").read_text())
    old = "optimizer.sum."
    for name, number in list(index["file_index"].items()):
        tensors = load_file(tmp_path / name)
        (tmp_path / name).unlink()
        renamed = {
            f"{key.removeprefix(old).removesuffix('^ ')}.optimizer.sum^ "
            if key.startswith(old)
            else key: tensor
            for key, tensor in tensors.items()
        }
        save_file(renamed, tmp_path / f"model-{7 * number:06d}-of-000099.safetensors")
    index["file_index"] = {
        f"model-{7 * number:06d}-of-000099.safetensors": 7 * number for number in index["file_index"].values()
    }
    index["block_index"] = {
        f"{key.removeprefix(old).removesuffix('^ ')}.optimizer.sum^ " if key.startswith(old) else key: 7
        * number
        for key, number in index["block_index"].items()
    }
    (tmp_path / "index").write_text(json.dumps(index))
    found = open_checkpoint(str(tmp_path))
    check_same(found, sample())
    assert found.unread == []


@pytest.mark.parametrize("name", ["user@id", "a^b"])
def test_a_type_that_recis_would_take_apart_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match="expected a name without @ and"):
        write(_checkpoint([name], []), str(tmp_path))
    assert not list(tmp_path.iterdir())
