"""Relation operators: what a relation does to the embedding of an entity before it is compared.

    none              x
    diagonal          diagonal * x
    translation       x + translation
    linear            linear_transformation @ x
    affine            linear_transformation @ x + translation
    complex_diagonal  (real + i imag) * x; x's first half is its real part, its second half the imaginary one
    rotation          (cos(angle) + i sin(angle)) * x: as complex_diagonal, of modulus 1 (arXiv:1902.10197)

A static relation owns one set of parameters; with dynamic relations one tensor holds the rows of all
relations, and every edge picks its own. Source: docs/formats/pbg_v1.md.

Shapes: D dimension, R relations, `...` any number of leading dimensions.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Init = Literal["identity", "random", "small"]

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "diagonal": ("diagonal",),
    "linear": ("linear_transformation",),
    "translation": ("translation",),
    "affine": ("linear_transformation", "translation"),
    "complex_diagonal": ("real", "imag"),
    "rotation": ("angle",),
}
_COMPLEX = frozenset({"complex_diagonal", "rotation"})  # they take vectors for complex ones
_DYNAMIC_NAMES = {  # the checkpoint's names for the tensors that hold all relations
    "diagonal": "diagonals",
    "translation": "translations",
    "linear_transformation": "linear_transformations",
    "angle": "angles",
}


def parameter_names(operator: str, dynamic: bool) -> tuple[str, ...]:
    """Names of the operator's parameters in a checkpoint, in the order of `apply`."""
    names = _PARAMETERS[operator]
    return tuple(_DYNAMIC_NAMES.get(name, name) for name in names) if dynamic else names


def place(name: str) -> int:
    """Where a parameter stands among those of its operator, by its name in a checkpoint."""
    order = dict.fromkeys(each for names in _PARAMETERS.values() for each in names)
    plain = {dynamic: static for static, dynamic in _DYNAMIC_NAMES.items()}.get(name, name)
    return list(order).index(plain) if plain in order else len(order)


def initial(
    operator: str,
    dimension: int,
    num_relations: int | None,
    init: Init,
    init_scale: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Fresh parameters, keyed by their checkpoint names; `num_relations` None means static.

    `identity` is PBG's choice: every relation starts as the same, do-nothing operator. `random` lets
    relations differ from the first step on: random rotations, random matrices of spectral norm about 1.
    `small` draws all parameters as embeddings are drawn (angles stay random ones).
    """
    lead = () if num_relations is None else (num_relations,)
    names = parameter_names(operator, num_relations is not None)
    if operator == "complex_diagonal" and init == "random":
        angle = 2 * math.pi * torch.rand(*lead, dimension // 2, generator=generator)
        return dict(zip(names, (angle.cos(), angle.sin()), strict=True))
    if init == "small" and operator != "rotation":
        shapes = [_identity(name, lead, dimension).shape for name in _PARAMETERS[operator]]
        drawn = [torch.randn(shape, generator=generator) * init_scale for shape in shapes]
        return dict(zip(names, drawn, strict=True))
    fill = _identity if init == "identity" else partial(_random, scale=init_scale, generator=generator)
    values = (fill(name, lead, dimension) for name in _PARAMETERS[operator])
    return dict(zip(names, values, strict=True))


def _identity(name: str, lead: tuple[int, ...], dimension: int) -> Tensor:
    match name:
        case "diagonal":
            return torch.ones(*lead, dimension)
        case "linear_transformation":
            return torch.eye(dimension).expand(*lead, dimension, dimension).contiguous()
        case "real":
            return torch.ones(*lead, dimension // 2)
        case "imag" | "angle":
            return torch.zeros(*lead, dimension // 2)
    return torch.zeros(*lead, dimension)


def _random(
    name: str, lead: tuple[int, ...], dimension: int, *, scale: float, generator: torch.Generator
) -> Tensor:
    match name:
        case "diagonal":
            return torch.randn(*lead, dimension, generator=generator)
        case "linear_transformation":
            noise = torch.randn(*lead, dimension, dimension, generator=generator)
            return noise / (2 * math.sqrt(dimension))
        case "angle":
            return 2 * math.pi * torch.rand(*lead, dimension // 2, generator=generator)
    return torch.randn(*lead, dimension, generator=generator) * scale


def parts(operator: str, embeddings: Tensor) -> tuple[Tensor, ...]:
    """Embeddings [..., D] as the operator takes them: whole, or as real and imaginary parts [..., D / 2]."""
    return embeddings.chunk(2, dim=-1) if operator in _COMPLEX else (embeddings,)


def rows(parameters: Mapping[str, Tensor], rel: Tensor) -> dict[str, Tensor]:
    """Each edge's own parameters out of those of all relations: [R, ...] and [*E] -> [*E, ...]."""
    return {
        name: F.embedding(rel, stacked.flatten(1)).view(*rel.shape, *stacked.shape[1:])
        for name, stacked in parameters.items()
    }


def apply(operator: str, parameters: Mapping[str, Tensor], embeddings: Tensor) -> Tensor:
    """Transform embeddings [..., D].

    `parameters` are a static relation's own, shared by all embeddings, or what `rows` gave: one set
    for each embedding. Only their order counts, which is that of `parameter_names`.
    """
    values = tuple(parameters.values())
    match operator:
        case "none":
            return embeddings
        case "diagonal":
            return values[0] * embeddings
        case "translation":
            return embeddings + values[0]
        case "linear":
            return _linear(values[0], embeddings)
        case "affine":
            return _linear(values[0], embeddings) + values[1]
        case "complex_diagonal":
            return _complex_product(embeddings, *values)
        case "rotation":
            return _complex_product(embeddings, values[0].cos(), values[0].sin())
    raise ValueError(f"unknown operator {operator!r}")


def _complex_product(embeddings: Tensor, real_b: Tensor, imag_b: Tensor) -> Tensor:
    real_a, imag_a = embeddings.chunk(2, dim=-1)
    return torch.cat([real_a * real_b - imag_a * imag_b, real_a * imag_b + imag_a * real_b], dim=-1)


def _linear(matrix: Tensor, embeddings: Tensor) -> Tensor:
    if matrix.dim() == 2:
        return embeddings @ matrix.T
    return (matrix @ embeddings.unsqueeze(-1)).squeeze(-1)
