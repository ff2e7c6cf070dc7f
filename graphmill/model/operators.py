"""Relation operators by name: the built-in ones, and those of users, which have the same interface.

Shapes: D dimension, `...` any number of leading dimensions.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphmill.errors import ConfigError
from graphmill.model import registry
from graphmill.model.arrays import Array, split
from graphmill.model.built_in import OPERATORS, Init, Operator

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from graphmill.model.plug_ins import PlugInOperator

__all__ = ["OPERATORS", "UNKNOWN", "Init", "apply", "apply_one", "initial", "operator_of", "parameter_names"]

UNKNOWN = 1 << 30
"""Position of a parameter that no built-in operator has."""


def operator_of(name: str) -> "Operator | PlugInOperator":
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
    every = (names for each in OPERATORS.values() for names in map(each.parameter_names, (False, True)))
    return max((names.index(parameter) for names in every if parameter in names), default=UNKNOWN)


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


def parts(operator: str, vectors: Array) -> tuple[Array, ...]:
    """Split vectors [..., D] like the operator: none, or real and imaginary parts [..., D / 2]."""
    return split(vectors, operator_of(operator).parts)


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
