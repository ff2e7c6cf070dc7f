"""Versions of a PBG checkpoint: a type in two partitions, each filled with one number."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphmill.checkpoints import pbg as checkpoint
from tests.graphmill.checkpoints.samples import GROUP, ITERATION

CONFIG = {"dimension": 4, "entities": {"user": {"num_partitions": 2}}}
MODEL = {
    "rhs_operators.0.real": torch.arange(6, dtype=torch.float32).reshape(3, 2),
    "lhs_operators.0.imag": torch.ones(3, 2),
    "rhs_operators.11.linear_transformation": torch.eye(4),
    "global_embs.emb_user": torch.arange(4.0),
}


def state_of(sums: torch.Tensor) -> dict[str, Any]:
    return {"state": {0: {"sum": sums}}, "param_groups": [GROUP]}


def write_partition(root: Path | str, version: int, partition: int = 0, fill: float = 0.5) -> None:
    place = str(root), "user", partition, version
    rows = np.full((5, 4), fill, np.float32)
    checkpoint.write_embeddings(*place, rows, state_of(torch.arange(5.0)), CONFIG, ITERATION)


def write_version(root: Path | str, version: int, fill: float | None = None) -> None:
    for partition in range(2):
        write_partition(root, version, partition, version if fill is None else fill)
    checkpoint.write_model(str(root), version, MODEL, {}, CONFIG, ITERATION)


def vectors(root: Path | str, version: int) -> list[float]:
    """The one value that each partition is filled with; the rest of the version is there."""
    assert checkpoint.read_version(str(root)) == version
    assert checkpoint.read_model(str(root), version)[0].keys() == MODEL.keys()
    found = [checkpoint.read_embeddings(str(root), "user", part, version) for part in range(2)]
    assert all((rows == rows[0, 0]).all() and state is not None for rows, state in found)
    return [float(rows[0, 0]) for rows, _ in found]


def check_whole(root: Path | str, version: int) -> None:
    """Assert that a version of its own number is there."""
    assert vectors(root, version) == [version, version]
