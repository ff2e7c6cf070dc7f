"""Operators and comparators: one formula for numpy and torch, and the names and order of parameters."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from graphmill.errors import ConfigError
from graphmill.model import comparators, operators
from graphmill.model.operators import OPERATORS
from graphmill.model.parameters import (
    OperatorKey,
    global_key,
    in_order,
    operator_key,
    parse_global_key,
    parse_operator_key,
)
from graphmill.vocab import Side
from tests import REPOSITORY
from train.gpu import reference

DIMENSION = 6
NUM_RELATIONS = 3


def new_parameters(operator: str, init: operators.Init, num_relations: int | None = None) -> Any:
    generator = torch.Generator().manual_seed(7)
    return OPERATORS[operator].initial(DIMENSION, num_relations, init, 0.1, generator)


@pytest.fixture
def vectors(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((5, DIMENSION), np.float32)


def test_the_page_of_the_format_has_the_parameters_of_every_operator() -> None:
    text = (REPOSITORY / "docs/formats/pbg_v1.md").read_text()
    table = text.split("| operator | static | dynamic |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|([^|]*)\|([^|]*)\|$", table, re.MULTILINE)
    assert [name for name, *_ in rows] == [*OPERATORS]
    sizes = {"D": DIMENSION, "D/2": DIMENSION // 2, "R": NUM_RELATIONS}
    for name, *columns in rows:
        for column, num_relations in zip(columns, (None, NUM_RELATIONS), strict=True):
            listed = {key: text.split(" × ") for key, text in re.findall(r"`(\w+)` ([^,]+)", column.strip())}
            found = {key: tuple(sizes[size] for size in shape) for key, shape in listed.items()}
            values = new_parameters(name, "identity", num_relations)
            assert found == {each: tuple(value.shape) for each, value in values.items()}, name


LINEAR = {name for name, each in OPERATORS.items() if each.is_linear}
PRODUCTS = {name for name, each in OPERATORS.items() if each.is_product}
UNSUPPORTED = {*OPERATORS} - {*reference.OPERATORS}


@pytest.mark.parametrize(
    ("page", "sentence", "wanted"),
    [
        ("export", r"go to the query instead for (.*?)\.", LINEAR),
        ("gpu", r"\| operator \|(.*?)\|", {*reference.OPERATORS}),
        ("gpu", r"\| operator \|[^|]*\|(.*?)\|", UNSUPPORTED),
        ("training", r"\*\*Relation prediction\*\*(.*?)PyTorch runs", PRODUCTS),
    ],
)
def test_pages_name_the_operators(page: str, sentence: str, wanted: set[str]) -> None:
    text = (REPOSITORY / f"docs/how_to/{page}.md").read_text()
    (found,) = re.findall(sentence, text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", found)) & OPERATORS.keys() == wanted


def test_an_unknown_operator_is_refused_with_the_known_names(vectors: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="operator 'householder': expected one of none, diagonal, transl"):
        operators.operator_of("householder").apply(vectors, [])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_numpy_torch_and_autograd_agree(operator: str, dynamic: bool, vectors: np.ndarray) -> None:
    parameters = [*new_parameters(operator, "random", len(vectors) if dynamic else None).values()]
    leaf, gradients = torch.from_numpy(vectors).requires_grad_(), torch.from_numpy(vectors[::-1].copy())
    by_torch = OPERATORS[operator].apply(leaf, parameters)
    by_numpy = OPERATORS[operator].apply(vectors, [parameter.numpy() for parameter in parameters])
    assert by_numpy.dtype == np.float32
    np.testing.assert_allclose(by_numpy, by_torch.detach().numpy(), rtol=1e-5, atol=1e-6)
    (expected,) = torch.autograd.grad(by_torch, [leaf], gradients)
    found = OPERATORS[operator].slopes(gradients, parameters)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("num_relations", [None, NUM_RELATIONS])
def test_the_identity_changes_nothing(operator: str, num_relations: int | None, vectors: np.ndarray) -> None:
    parameters = new_parameters(operator, "identity", num_relations)
    assert tuple(parameters) == OPERATORS[operator].parameter_names(num_relations is not None)
    keys = [operator_key(0, Side.RHS, name) for name in parameters]
    assert in_order(reversed(keys), []) == keys
    own = [value if num_relations is None else value[1] for value in parameters.values()]
    found = OPERATORS[operator].apply(torch.from_numpy(vectors), own)
    torch.testing.assert_close(found, torch.from_numpy(vectors), rtol=0, atol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
def test_comparators_of_numpy_and_torch_agree(comparator: str, bias: bool, vectors: np.ndarray) -> None:
    as_numpy = comparators.prepare(comparator, bias, vectors)
    as_torch = comparators.prepare(comparator, bias, torch.from_numpy(vectors))
    np.testing.assert_allclose(as_numpy, as_torch.numpy(), rtol=1e-4, atol=1e-5)
    for scores in (comparators.edge_scores, comparators.matrix_scores):
        one, other = (scores(comparator, bias, rows[1:], rows[:1]) for rows in (as_numpy, as_torch))
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)
    zeros = torch.zeros(2, DIMENSION, requires_grad=True)
    made = comparators.prepare(comparator, bias, zeros)
    comparators.edge_scores(comparator, bias, made[:1], made[1:]).sum().backward()
    assert zeros.grad.isfinite().all()  # where vectors are zero, and at a distance of zero


def test_keys_and_their_order() -> None:
    """PBG's order: lhs, rhs, relations by number, parameters as PBG defines them, global embeddings."""
    keys = [
        operator_key(0, Side.LHS, "diagonals"),
        *(operator_key(2, Side.RHS, name) for name in ("linear_transformation", "translation")),
        *(operator_key(10, Side.RHS, name) for name in ("real", "imag")),
        global_key("user"),
        global_key("item"),
        global_key("another"),
    ]
    assert in_order(sorted(keys), ["user", "item"]) == keys
    assert parse_operator_key(keys[-4]) == OperatorKey(Side.RHS, 10, "imag")
    assert parse_global_key("global_embs.emb_user") == "user"
    assert parse_operator_key("global_embs.emb_user") is parse_global_key(keys[0]) is None
