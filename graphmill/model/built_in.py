"""Built-in operators, comparators and losses: an entry holds all that others ask of one of them.

To add an operator, add its entry to `OPERATORS`: kernels leave what they do not know to PyTorch. Formulas
take tensors of torch and arrays of numpy, by the names that both libraries share.
Source: docs/formats/pbg_v1.md.

Shapes: D dimension, `...` any number of leading dimensions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = TypeVar("Array", "Tensor", "npt.NDArray[np.float32]")
Init = Literal["identity", "random", "small"]


def library(array: Any) -> Any:
    """Return the library of an array: the module numpy or the module torch."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def split(vectors: Array, num_parts: int) -> tuple[Array, ...]:
    """Split the coordinates into equal parts, [..., D / num_parts] each."""
    if num_parts == 1:
        return (vectors,)
    if isinstance(vectors, np.ndarray):
        return tuple(np.split(vectors, num_parts, -1))
    return tuple(vectors.chunk(num_parts, -1))


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operator.

    Attributes:
        name: name in a checkpoint.
        plural: name of the tensor that holds a row for each dynamic relation.
        shape: shape, by the dimension of a vector.
        identity: its numbers, or those on a matrix's diagonal, in the operator that changes nothing.
        random: numbers that differ by relation, from normal ones; None: small ones.
        is_angle: whether its numbers are angles, which are drawn from a whole turn.
    """

    name: str
    plural: str
    shape: Callable[[int], tuple[int, ...]]
    identity: float = 0.0
    random: "Callable[[Tensor], Tensor] | None" = None
    is_angle: bool = False

    def initial(self, shape: tuple[int, ...], init: Init, init_scale: float, draw: "Generator") -> "Tensor":
        """Make new numbers, those of all dynamic relations if `shape` has a row for each."""
        import torch

        if init == "identity":
            if len(self.shape(1)) == 2:
                return (self.identity * torch.eye(shape[-1])).expand(shape).contiguous()
            return torch.full(shape, self.identity)
        if self.is_angle:
            return 2 * math.pi * torch.rand(shape, generator=draw)
        normal = torch.randn(shape, generator=draw)
        return self.random(normal) if init == "random" and self.random else normal * init_scale


@dataclass(frozen=True)
class Operator:
    """The transformation of an embedding x before the comparison.

    A static relation owns one set of parameters. With dynamic relations one tensor holds a row for each.

    Attributes:
        words: the formula, in numpy's words.
        parameters: parameters in the order of PBG.
        formula: transforms vectors [..., D] by the parameters.
        slope: turns gradients with respect to transformed vectors into those with respect to the vectors.
        parts: parts of a vector that belong together: 2, all real parts before all imaginary ones.
        is_linear: whether it is linear in the vector: then it keeps scales, and its slope is its adjoint.
        is_product: whether it multiplies the numbers of x by parameters, which could trade places with x.
        has_length: whether N3 keeps its parameters short; angles have no length.
        random: draws all parameters at once, where they depend on each other.
    """

    words: str
    parameters: tuple[Parameter, ...]
    formula: Callable[..., Any]
    slope: Callable[..., Any]
    parts: int = 1
    is_linear: bool = True
    is_product: bool = False
    has_length: bool = True
    random: "Callable[[tuple[int, ...], Generator], list[Tensor]] | None" = None
    takes_rows = True
    """Whether a step may pass the rows of some dynamic relations instead of whole parameters."""

    @property
    def has_matrices(self) -> bool:
        """Tell whether a relation has more parameters than a few vectors."""
        return any(len(parameter.shape(1)) > 1 for parameter in self.parameters)

    def parameter_names(self, dynamic: bool, dimension: int = 0) -> tuple[str, ...]:
        """Names of the parameters in a checkpoint, in their order."""
        return tuple(parameter.plural if dynamic else parameter.name for parameter in self.parameters)

    def apply(self, vectors: Array, parameters: Sequence[Array], rel: Any = None) -> Array:
        """Transform vectors [..., D].

        With `rel` [...], the parameters are those of dynamic relations: a vector has the row of its relation.
        Without, they are one set for all vectors, or have the leading dimensions of `vectors`.
        """
        own = parameters if rel is None else [_rows(parameter, rel) for parameter in parameters]
        transformed: Array = self.formula(vectors, *own)
        return transformed

    def apply_one(self, vectors: Array, parameters: Sequence[Array], *, dynamic: bool) -> Array:
        """Transform vectors [..., D] by one relation; a row is that of a static relation."""
        return self.apply(vectors, parameters)

    def slopes(self, gradients: Array, parameters: Sequence[Array]) -> Array:
        """Gradients [..., D] with respect to vectors, from those of the transformed vectors."""
        slopes: Array = self.slope(gradients, *parameters)
        return slopes

    def moduli(self, parameters: Sequence[Array]) -> list[tuple[Array, ...]]:
        """Group parameters for N3: the parts of one complex number together."""
        if not parameters or not self.has_length:
            return []
        return [tuple(parameters)] if self.parts > 1 else [(parameter,) for parameter in parameters]

    def initial(
        self, dimension: int, num_relations: int | None, init: Init, init_scale: float, generator: "Generator"
    ) -> "dict[str, Tensor]":
        """Make new parameters by their names in a checkpoint; `num_relations` is None for a static relation.

        `identity` is PBG's choice: every relation starts as the operator that changes nothing. `random` gives
        relations different parameters: random rotations, random matrices of spectral norm about 1. `small`
        draws all parameters like embeddings, but angles like `random`.
        """
        lead = () if num_relations is None else (num_relations,)
        shapes = [(*lead, *parameter.shape(dimension)) for parameter in self.parameters]
        if init == "random" and self.random:
            values = self.random(shapes[0], generator)
        else:
            pairs = zip(self.parameters, shapes, strict=True)
            values = [parameter.initial(shape, init, init_scale, generator) for parameter, shape in pairs]
        return dict(zip(self.parameter_names(num_relations is not None), values, strict=True))


def _rows(parameter: Any, rel: Any) -> Any:
    """Gather a parameter's row of each vector's relation: [R, ...] and [*E] -> [*E, ...]."""
    import torch.nn.functional as F

    return F.embedding(rel, parameter.flatten(1)).view(*rel.shape, *parameter.shape[1:])


def _product(x: Array, diagonal: Array) -> Array:
    return diagonal * x


def _matrix_product(x: Array, matrix: Array) -> Array:
    return x @ matrix.T if matrix.ndim == 2 else (matrix @ x[..., None])[..., 0]


def _transposed_product(x: Array, matrix: Array) -> Array:
    return x @ matrix if matrix.ndim == 2 else (matrix.mT @ x[..., None])[..., 0]


def _complex_product(x: Array, real: Array, imag: Array) -> Array:
    x_real, x_imag = split(x, 2)
    product: Array = library(x).concatenate(
        [x_real * real - x_imag * imag, x_real * imag + x_imag * real], -1
    )
    return product


def _rotation(x: Array, angle: Array) -> Array:
    rotated: Array = _complex_product(x, library(x).cos(angle), library(x).sin(angle))
    return rotated


def _random_rotations(shape: tuple[int, ...], generator: "Generator") -> "list[Tensor]":
    angle = _ANGLE.initial(shape, "random", 0, generator)
    return [angle.cos(), angle.sin()]


_DIAGONAL = Parameter("diagonal", "diagonals", lambda d: (d,), identity=1.0, random=lambda normal: normal)
_TRANSLATION = Parameter("translation", "translations", lambda d: (d,))
_MATRIX = Parameter(
    "linear_transformation",
    "linear_transformations",
    lambda d: (d, d),
    identity=1.0,
    random=lambda normal: normal / (2 * math.sqrt(normal.shape[-1])),  # of spectral norm about 1
)
_REAL = Parameter("real", "real", lambda d: (d // 2,), identity=1.0)
_IMAG = Parameter("imag", "imag", lambda d: (d // 2,))
_ANGLE = Parameter("angle", "angles", lambda d: (d // 2,), is_angle=True)

OPERATORS: dict[str, Operator] = {
    "none": Operator("x", (), lambda x: x, lambda slope: slope),
    "diagonal": Operator("diagonal * x", (_DIAGONAL,), _product, _product, is_product=True),
    "translation": Operator(
        "x + translation",
        (_TRANSLATION,),
        lambda x, translation: x + translation,
        lambda slope, translation: slope,
        is_linear=False,
    ),
    "linear": Operator("linear_transformation @ x", (_MATRIX,), _matrix_product, _transposed_product),
    "affine": Operator(
        "linear_transformation @ x + translation",
        (_MATRIX, _TRANSLATION),
        lambda x, matrix, translation: _matrix_product(x, matrix) + translation,
        lambda slope, matrix, translation: _transposed_product(slope, matrix),
        is_linear=False,
    ),
    "complex_diagonal": Operator(
        "with x = [re, im], two halves: [re * real - im * imag, re * imag + im * real]",
        (_REAL, _IMAG),
        _complex_product,
        lambda slope, real, imag: _complex_product(slope, real, -imag),
        parts=2,
        is_product=True,
        random=_random_rotations,
    ),
    "rotation": Operator(  # arXiv:1902.10197
        "complex_diagonal with real = cos(angle), imag = sin(angle)",
        (_ANGLE,),
        _rotation,
        lambda slope, angle: _rotation(slope, -angle),
        parts=2,
        has_length=False,
    ),
}


@dataclass(frozen=True)
class Comparator:
    """The similarity of two vectors a and b; a higher score is a likelier edge.

    Attributes:
        words: the formula, in numpy's words.
        is_product: whether it is the dot product of prepared vectors; else a distance decides.
        is_unit: whether vectors are scaled to length 1.
        is_root: whether it is the negative distance; else its negative square.
    """

    words: str
    is_product: bool = False
    is_unit: bool = False
    is_root: bool = False


COMPARATORS: dict[str, Comparator] = {
    "dot": Comparator("sum(a * b)", is_product=True),
    "cos": Comparator("sum(a * b) / (norm(a) * norm(b))", is_product=True, is_unit=True),
    "l2": Comparator("-norm(a - b)", is_root=True),
    "squared_l2": Comparator("-norm(a - b) ** 2"),
}


LOSSES = ("ranking", "logistic", "softmax")
"""Losses of an edge's score against those of its negatives; their gradients are functions of `losses`."""
OF_NEGATIVES = ("ranking", "softmax")
"""Losses that are zero without negatives."""
