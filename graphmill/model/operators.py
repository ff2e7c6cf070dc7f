"""Relation operators by name: the built-in ones, and those of users, which have the same interface.

Shapes: D dimension, `...` any number of leading dimensions.
"""

from typing import TYPE_CHECKING

from graphmill.errors import ConfigError
from graphmill.model import registry
from graphmill.model.built_in import OPERATORS, Array, Init, Operator, split

if TYPE_CHECKING:
    from graphmill.model.plug_ins import PlugInOperator

__all__ = ["OPERATORS", "Init", "operator_of", "parts"]


def operator_of(name: str) -> "Operator | PlugInOperator":
    """Look up an operator; an unknown name is a ConfigError."""
    if (built_in := OPERATORS.get(name)) is not None:
        return built_in
    try:
        registry.check_operator(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    from graphmill.model.plug_ins import PlugInOperator  # imports torch

    return PlugInOperator(name)


def parts(operator: str, vectors: Array) -> tuple[Array, ...]:
    """Split vectors [..., D] like the operator: none, or real and imaginary parts [..., D / 2]."""
    return split(vectors, operator_of(operator).parts)
