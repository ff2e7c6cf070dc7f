"""Relation operators: the transformation of an entity's embedding x before the comparison.

    none              x
    diagonal          diagonal * x
    translation       x + translation
    linear            linear_transformation @ x
    affine            linear_transformation @ x + translation
    complex_diagonal  (real + i imag) * x; the first half of x is its real part, the second half the imaginary
    rotation          (cos(angle) + i sin(angle)) * x: complex_diagonal of modulus 1 (arXiv:1902.10197)

A static relation owns one set of parameters. With dynamic relations one tensor holds a row for each
relation. To add an operator, add its name, its entry in `OPERATORS`, and new parameters in `_PLURALS` and
in `initial`. Formulas take tensors of torch and arrays of numpy. Source: docs/formats/pbg_v1.md.

Shapes: D dimension, `...` any number of leading dimensions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from graphmill.errors import ConfigError
from graphmill.model.arrays import Array, halves, library

if TYPE_CHECKING:
    from torch import Generator, Tensor

OperatorName = Literal["none", "diagonal", "translation", "linear", "affine", "complex_diagonal", "rotation"]
Init = Literal["identity", "random", "small"]


@dataclass(frozen=True)
class Operator:
    """One operator: parameters in the order of PBG, and the formula of vectors [..., D] and parameters."""

    parameters: tuple[str, ...]
    formula: Callable[..., Any]
    is_complex: bool = False
    """Vectors hold complex numbers: the first half real parts, the second half imaginary parts."""


def _matrix_product(x: Array, matrix: Array) -> Array:
    product: Array = x @ matrix.T if matrix.ndim == 2 else (matrix @ x[..., None])[..., 0]
    return product


def _complex_product(x: Array, real: Array, imag: Array) -> Array:
    x_real, x_imag = halves(x)
    product: Array = library(x).concatenate(
        [x_real * real - x_imag * imag, x_real * imag + x_imag * real], -1
    )
    return product


def _rotation(x: Array, angle: Array) -> Array:
    rotated: Array = _complex_product(x, library(x).cos(angle), library(x).sin(angle))
    return rotated


OPERATORS: dict[str, Operator] = {
    "none": Operator((), lambda x: x),
    "diagonal": Operator(("diagonal",), lambda x, diagonal: diagonal * x),
    "linear": Operator(("linear_transformation",), _matrix_product),
    "translation": Operator(("translation",), lambda x, translation: x + translation),
    "affine": Operator(
        ("linear_transformation", "translation"),
        lambda x, matrix, translation: _matrix_product(x, matrix) + translation,
    ),
    "complex_diagonal": Operator(("real", "imag"), _complex_product, is_complex=True),
    "rotation": Operator(("angle",), _rotation, is_complex=True),
}
# Names in a checkpoint of the tensors that hold a row for each relation.
_PLURALS = {
    "diagonal": "diagonals",
    "translation": "translations",
    "linear_transformation": "linear_transformations",
    "angle": "angles",
}
_ORDER = [*dict.fromkeys(name for each in OPERATORS.values() for name in each.parameters)]


def operator_of(name: str) -> Operator:
    """Look up an operator.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in OPERATORS:
        raise ConfigError(f"operator {name!r}: expected one of {', '.join(get_args(OperatorName))}")
    return OPERATORS[name]


def parameter_names(operator: str, dynamic: bool) -> tuple[str, ...]:
    """Names of the operator's parameters in a checkpoint, in the order of its formula."""
    names = operator_of(operator).parameters
    return tuple(_PLURALS.get(name, name) for name in names) if dynamic else names


def position(parameter: str) -> int:
    """Position of a parameter among the parameters of its operator, by its name in a checkpoint."""
    singular = {plural: name for name, plural in _PLURALS.items()}.get(parameter, parameter)
    return _ORDER.index(singular) if singular in _ORDER else len(_ORDER)


def apply(operator: str, vectors: Array, parameters: Sequence[Array]) -> Array:
    """Transform vectors [..., D].

    `parameters` follow the order of `parameter_names`. They are one set for all vectors, or have the
    leading dimensions of `vectors`.
    """
    transformed: Array = operator_of(operator).formula(vectors, *parameters)
    return transformed


def parts(operator: str, vectors: Array) -> tuple[Array, ...]:
    """Split vectors [..., D] like the operator: none, or real and imaginary parts [..., D / 2]."""
    return halves(vectors) if operator_of(operator).is_complex else (vectors,)


def initial(
    operator: str,
    dimension: int,
    num_relations: int | None,
    init: Init,
    init_scale: float,
    generator: "Generator",
) -> "dict[str, Tensor]":
    """Make new parameters by their names in a checkpoint; `num_relations` is None for a static relation.

    `identity` is PBG's choice: every relation starts as the operator that changes nothing. `random` gives
    relations different parameters: random rotations, random matrices of spectral norm about 1. `small` draws
    all parameters like embeddings, but angles like `random`.
    """
    lead = () if num_relations is None else (num_relations,)
    shapes = {name: (*lead, *_shape(name, dimension)) for name in operator_of(operator).parameters}
    if operator == "complex_diagonal" and init == "random":
        angle = _initial("angle", shapes["real"], init, init_scale, generator)
        values = [angle.cos(), angle.sin()]
    else:
        values = [_initial(name, shape, init, init_scale, generator) for name, shape in shapes.items()]
    return dict(zip(parameter_names(operator, num_relations is not None), values, strict=True))


def _initial(
    parameter: str, shape: tuple[int, ...], init: Init, init_scale: float, generator: "Generator"
) -> "Tensor":
    import torch

    if init == "identity":
        if parameter == "linear_transformation":
            return torch.eye(shape[-1]).expand(shape).contiguous()
        return torch.ones(shape) if parameter in ("diagonal", "real") else torch.zeros(shape)
    if parameter == "angle":
        return 2 * math.pi * torch.rand(shape, generator=generator)
    normal = torch.randn(shape, generator=generator)
    if init == "random" and parameter == "diagonal":
        return normal
    if init == "random" and parameter == "linear_transformation":
        return normal / (2 * math.sqrt(shape[-1]))
    return normal * init_scale


def _shape(parameter: str, dimension: int) -> tuple[int, ...]:
    match parameter:
        case "linear_transformation":
            return dimension, dimension
        case "real" | "imag" | "angle":
            return (dimension // 2,)
    return (dimension,)
