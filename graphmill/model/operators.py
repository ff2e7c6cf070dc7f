"""Relation operators by name: the built-in ones, and those of users, which have the same interface.

Shapes: D dimension, `...` any number of leading dimensions.
"""

from typing import TYPE_CHECKING

from graphmill.errors import ConfigError
from graphmill.model import registry
from graphmill.model.arrays import Array, split
from graphmill.model.built_in import OPERATORS, Init, Operator

if TYPE_CHECKING:
    from graphmill.model.plug_ins import PlugInOperator

__all__ = ["OPERATORS", "UNKNOWN", "Init", "operator_of", "parts", "position"]

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


def position(parameter: str) -> int:
    """Position of a parameter among the parameters of its operator, by its name in a checkpoint."""
    every = (names for each in OPERATORS.values() for names in map(each.parameter_names, (False, True)))
    return max((names.index(parameter) for names in every if parameter in names), default=UNKNOWN)


def parts(operator: str, vectors: Array) -> tuple[Array, ...]:
    """Split vectors [..., D] like the operator: none, or real and imaginary parts [..., D / 2]."""
    return split(vectors, operator_of(operator).parts)
