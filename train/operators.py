"""Relation operators: what a relation does to the embedding of an entity before it is compared.

    none              x
    diagonal          diagonal * x
    translation       x + translation
    linear            linear_transformation @ x
    affine            linear_transformation @ x + translation
    complex_diagonal  (real + i imag) * x; x's first half is its real part, its second half the imaginary one

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

Init = Literal["identity", "random"]

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "diagonal": ("diagonal",),
    "translation": ("translation",),
    "linear": ("linear_transformation",),
    "affine": ("linear_transformation", "translation"),
    "complex_diagonal": ("real", "imag"),
}
_DYNAMIC_NAMES = {  # the checkpoint's names for the tensors that hold all relations
    "diagonal": "diagonals",
    "translation": "translations",
    "linear_transformation": "linear_transformations",
}


def parameter_names(operator: str, dynamic: bool) -> tuple[str, ...]:
    """Names of the operator's parameters in a checkpoint, in the order of `apply`."""
    names = _PARAMETERS[operator]
    return tuple(_DYNAMIC_NAMES.get(name, name) for name in names) if dynamic else names


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
    """
    lead = () if num_relations is None else (num_relations,)
    names = parameter_names(operator, num_relations is not None)
    if operator == "complex_diagonal" and init == "random":
        angle = 2 * math.pi * torch.rand(*lead, dimension // 2, generator=generator)
        return dict(zip(names, (angle.cos(), angle.sin()), strict=True))
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
        case "imag":
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
    return torch.randn(*lead, dimension, generator=generator) * scale


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
            real_a, imag_a = embeddings.chunk(2, dim=-1)
            real_b, imag_b = values
            return torch.cat([real_a * real_b - imag_a * imag_b, real_a * imag_b + imag_a * real_b], dim=-1)
    raise ValueError(f"unknown operator {operator!r}")


def _linear(matrix: Tensor, embeddings: Tensor) -> Tensor:
    if matrix.dim() == 2:
        return embeddings @ matrix.T
    return (matrix @ embeddings.unsqueeze(-1)).squeeze(-1)
