"""A new built-in operator is one entry: training, N3, evaluation, export, predict and fold-in ask it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from graphmill.model import losses
from graphmill.model.arrays import Array, library, split
from graphmill.model.built_in import OPERATORS, Operator, Parameter
from tests.finished import of_triples
from tests.graphmill.model import test_operators
from train.model import regularizers

Command = Callable[..., int]

NAME, DIMENSION = "rotate3d", 15


def turned(x: Array, angle: Array, axis: Array) -> Array:
    """Rotation in space by Rodrigues' formula, of x and axis in three parts (doi:10.1145/3340531.3411889)."""
    points, axes = split(x, 3), split(axis, 3)
    length = library(x).sqrt(sum(each * each for each in axes))
    axes = tuple(each / length for each in axes)
    along = sum(each * point for each, point in zip(axes, points, strict=True))
    cos, sin = library(x).cos(angle), library(x).sin(angle)

    def part(at: int) -> Any:
        one, other = (at + 1) % 3, (at + 2) % 3
        across = axes[one] * points[other] - axes[other] * points[one]
        return points[at] * cos + across * sin + axes[at] * along * (1 - cos)

    found: Array = library(x).concatenate([part(at) for at in range(3)], -1)
    return found


ROTATE3D = Operator(
    "points in space, which turn around an axis",
    (
        Parameter("angle", "angles", lambda d: (d // 3,), is_angle=True),
        Parameter("axis", "axes", lambda d: (d,), identity=1.0, random=lambda normal: normal),
    ),
    turned,
    lambda slope, angle, axis: turned(slope, -angle, axis),
    parts=3,
    has_length=False,
)


@pytest.fixture(autouse=True)
def rotate3d(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, NAME, ROTATE3D)


@pytest.mark.slow
def test_every_command_knows_it(tmp_path: Path, triples: Path, graphmill_command: Command) -> None:
    run = tmp_path / "run"
    settings = (
        f"relations.0.operator={NAME}",
        f"dimension={DIMENSION}",
        "regularization_coef=0.01",
        "lr=0.3",
    )
    options = of_triples(triples, run, *settings, "num_epochs=12")
    assert graphmill_command("pipeline", *options) == 0
    record = json.loads((run / "run.json").read_text())["stages"]
    assert f"cannot train operator '{NAME}'" in record["train"]["plan"]["reasons"][0]  # no kernel knows it
    assert record["evaluate"]["metrics"]["mrr"] > 0.1  # by chance .02

    assert graphmill_command("export", run, "--format", "faiss", "--to", tmp_path / "faiss") == 0
    index = faiss.read_index(str(tmp_path / "faiss/entity/vectors.faiss"))
    assert (index.ntotal, index.d) == (300, DIMENSION)
    model = json.loads((tmp_path / "faiss/_model.json").read_text())
    assert model["operators"] == {NAME: ROTATE3D.words}

    assert graphmill_command("predict", run, "--relation", "r1", "--k", "3", "--to", tmp_path / "best") == 0
    new = tmp_path / "new.txt"
    new.write_text("new\tr0\tn001\nnew\tr1\tn008\n")
    assert graphmill_command("fold-in", run, "--edges", new, "--to", tmp_path / "folded") == 0

    wrong = of_triples(triples, tmp_path / "wrong", settings[0], "dimension=16")
    assert graphmill_command("pipeline", *wrong) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_formula_holds_to_what_all_do(dynamic: bool, rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((5, test_operators.DIMENSION), np.float32)
    test_operators.test_numpy_and_torch_agree(NAME, dynamic, vectors)
    test_operators.test_slopes_are_those_of_autograd(NAME, dynamic, vectors)
    test_operators.test_the_identity_changes_nothing(NAME, 3 if dynamic else None, vectors)


def test_n3_takes_the_lengths_of_points() -> None:
    operator = regularizers.BuiltIn(NAME, 6)
    vectors = torch.arange(6.0)[None] + 1  # two points: 1 3 5 and 2 4 6
    lengths = torch.tensor([[math.sqrt(35), math.sqrt(56)]])
    torch.testing.assert_close(operator.prepare_embs_for_reg(vectors), lengths)
    assert operator.get_operator_params_for_reg() is None  # angles and directions have no length
    cost, _ = losses.n3(split(vectors, 3), 2.0)
    torch.testing.assert_close(cost, 2 * (lengths**3).sum(1))
