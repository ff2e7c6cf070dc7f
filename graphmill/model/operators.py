"""Relation operators: the transformation of an entity's embedding x before the comparison.

    none              x
    diagonal          diagonal * x
    translation       x + translation
    linear            linear_transformation @ x
    affine            linear_transformation @ x + translation
    complex_diagonal  (real + i imag) * x; the first half of x is its real part, the second half the imaginary
    rotation          (cos(angle) + i sin(angle)) * x: complex_diagonal of modulus 1 (arXiv:1902.10197)

A static relation owns one set of parameters. With dynamic relations one tensor holds a row for each
relation. To add an operator, add its name in `registry`, its entry in `OPERATORS`, and new parameters in
`_PLURALS` and in `initial`. Formulas take tensors of torch and arrays of numpy. Operators of users are found
by name in `registry`, and have the same interface (`plug_ins`). Source: docs/formats/pbg_v1.md.

Shapes: D dimension, `...` any number of leading dimensions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from graphmill.errors import ConfigError
from graphmill.model import registry
from graphmill.model.arrays import Array, halves, library

if TYPE_CHECKING:
    from torch import Generator, Tensor

Init = Literal["identity", "random", "small"]


class Operator(Protocol):
    """Interface of built-in operators and of those of users."""

    @property
    def is_complex(self) -> bool:
        """Whether the first half of a vector holds real parts, the second half imaginary parts."""

    @property
    def takes_rows(self) -> bool:
        """Whether a step may pass the rows of some dynamic relations instead of whole parameters."""

    def parameter_names(self, dynamic: bool, dimension: int) -> tuple[str, ...]:
        """Names of the parameters in a checkpoint, in their order."""

    def apply(self, vectors: Array, parameters: Sequence[Array], rel: Any = None) -> Array:
        """Transform vectors [..., D], by the rows `rel` [...] of the parameters if it is given."""

    def apply_one(self, vectors: Array, parameters: Sequence[Array], *, dynamic: bool) -> Array:
        """Transform vectors [..., D] by one relation, whose parameters are rows of dynamic ones if so."""

    def initial(
        self,
        dimension: int,
        num_relations: int | None,
        init: Init,
        init_scale: float,
        generator: "Generator",
    ) -> "dict[str, Tensor]":
        """Make new parameters by their names in a checkpoint."""


@dataclass(frozen=True)
class BuiltIn:
    """A built-in operator: parameters in the order of PBG, and the formula of vectors and parameters.

    `slope` turns gradients with respect to transformed vectors into those with respect to the vectors.
    """

    parameters: tuple[str, ...]
    formula: Callable[..., Any]
    slope: Callable[..., Any]
    is_complex: bool = False
    takes_rows: bool = True

    def parameter_names(self, dynamic: bool, dimension: int) -> tuple[str, ...]:
        """Names of the parameters in a checkpoint, in their order."""
        return tuple(_PLURALS.get(name, name) for name in self.parameters) if dynamic else self.parameters

    def apply(self, vectors: Array, parameters: Sequence[Array], rel: Any = None) -> Array:
        """Transform vectors [..., D], by the rows `rel` [...] of the parameters if it is given."""
        own = parameters if rel is None else [_rows(each, rel) for each in parameters]
        transformed: Array = self.formula(vectors, *own)
        return transformed

    def apply_one(self, vectors: Array, parameters: Sequence[Array], *, dynamic: bool) -> Array:
        """Transform vectors [..., D] by one relation; a row is that of a static relation."""
        return self.apply(vectors, parameters)

    def slopes(self, gradients: Array, parameters: Sequence[Array]) -> Array:
        """Gradients [..., D] with respect to vectors, from those of the transformed vectors."""
        found: Array = self.slope(gradients, *parameters)
        return found

    def initial(
        self,
        dimension: int,
        num_relations: int | None,
        init: Init,
        init_scale: float,
        generator: "Generator",
    ) -> "dict[str, Tensor]":
        """Make new parameters by their names in a checkpoint."""
        lead = () if num_relations is None else (num_relations,)
        shapes = {name: (*lead, *_shape(name, dimension)) for name in self.parameters}
        if self.parameters == ("real", "imag") and init == "random":
            angle = _initial("angle", shapes["real"], init, init_scale, generator)
            values = [angle.cos(), angle.sin()]
        else:
            values = [_initial(name, shape, init, init_scale, generator) for name, shape in shapes.items()]
        return dict(zip(self.parameter_names(num_relations is not None, dimension), values, strict=True))


def _matrix_product(x: Array, matrix: Array) -> Array:
    product: Array = x @ matrix.T if matrix.ndim == 2 else (matrix @ x[..., None])[..., 0]
    return product


def _transposed_product(x: Array, matrix: Array) -> Array:
    product: Array = x @ matrix if matrix.ndim == 2 else (matrix.mT @ x[..., None])[..., 0]
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


def _conjugate_product(x: Array, real: Array, imag: Array) -> Array:
    return _complex_product(x, real, -imag)


OPERATORS: dict[str, BuiltIn] = {
    "none": BuiltIn((), lambda x: x, lambda slope: slope),
    "diagonal": BuiltIn(("diagonal",), lambda x, diagonal: diagonal * x, lambda x, diagonal: diagonal * x),
    "linear": BuiltIn(("linear_transformation",), _matrix_product, _transposed_product),
    "translation": BuiltIn(
        ("translation",), lambda x, translation: x + translation, lambda slope, translation: slope
    ),
    "affine": BuiltIn(
        ("linear_transformation", "translation"),
        lambda x, matrix, translation: _matrix_product(x, matrix) + translation,
        lambda slope, matrix, translation: _transposed_product(slope, matrix),
    ),
    "complex_diagonal": BuiltIn(("real", "imag"), _complex_product, _conjugate_product, is_complex=True),
    "rotation": BuiltIn(("angle",), _rotation, lambda x, angle: _rotation(x, -angle), is_complex=True),
}
# Names in a checkpoint of the tensors that hold a row for each relation.
_PLURALS = {
    "diagonal": "diagonals",
    "translation": "translations",
    "linear_transformation": "linear_transformations",
    "angle": "angles",
}
_ORDER = [*dict.fromkeys(name for each in OPERATORS.values() for name in each.parameters)]
UNKNOWN = len(_ORDER)
"""Position of a parameter that no built-in operator has."""


def operator_of(name: str) -> Operator:
    """Look up an operator.

    Raises:
        ConfigError: the name is unknown.
    """
    if (built_in := OPERATORS.get(name)) is not None:
        return built_in
    try:
        registry.check_operator(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    from graphmill.model.plug_ins import PlugInOperator  # imports torch

    return PlugInOperator(name)


def parameter_names(operator: str, dynamic: bool, dimension: int = 0) -> tuple[str, ...]:
    """Names of the operator's parameters in a checkpoint, in their order; plug-ins need the dimension."""
    return operator_of(operator).parameter_names(dynamic, dimension)


def position(parameter: str) -> int:
    """Position of a parameter among the parameters of its operator, by its name in a checkpoint."""
    singular = {plural: name for name, plural in _PLURALS.items()}.get(parameter, parameter)
    return _ORDER.index(singular) if singular in _ORDER else UNKNOWN


def apply(operator: str, vectors: Array, parameters: Sequence[Array], rel: Any = None) -> Array:
    """Transform vectors [..., D].

    `parameters` follow the order of `parameter_names`. With `rel` [...], they are those of dynamic relations,
    and each vector has its own row of them. Without, they are one set for all vectors, or, for built-in
    operators, have the leading dimensions of `vectors`.
    """
    return operator_of(operator).apply(vectors, parameters, rel)


def apply_one(operator: str, vectors: Array, parameters: Sequence[Array], *, dynamic: bool) -> Array:
    """Transform vectors [..., D] by one relation, whose parameters are rows of dynamic ones if `dynamic`."""
    return operator_of(operator).apply_one(vectors, parameters, dynamic=dynamic)


def _rows(parameter: Array, rel: Any) -> Array:
    """Gather a parameter's row of each vector's relation: [R, ...] and [*E] -> [*E, ...]."""
    import torch.nn.functional as F

    whole: Any = parameter
    rows: Any = F.embedding(rel, whole.flatten(1)).view(*rel.shape, *whole.shape[1:])
    found: Array = rows
    return found


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
    all parameters like embeddings, but angles like `random`. A plug-in makes its own choice.
    """
    return operator_of(operator).initial(dimension, num_relations, init, init_scale, generator)


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
