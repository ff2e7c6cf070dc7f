"""Filters of an entry as an expression of pyiceberg, which prunes manifests and files by it."""

from functools import reduce
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    Reference,
)
from pyiceberg.schema import Schema

from graphmill.config.sections.etl import Filters

_OPERATORS: dict[str, Any] = {
    "==": EqualTo,
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_LISTED: Any = In
_IS_NULL: dict[str, Any] = {"==": IsNull, "=": IsNull, "!=": NotNull}


def expression(filters: Filters, schema: Schema) -> BooleanExpression:
    """Return an expression that all rows that pass fulfil."""
    every = [reduce(And, [_condition(schema, *one) for one in conditions]) for conditions in filters]
    return reduce(Or, every)


def _condition(schema: Schema, column: str, operator: str, value: Any) -> BooleanExpression:
    condition: Any
    if value is None:
        condition = _IS_NULL[operator](Reference(column))
    elif operator == "in" and None not in value:
        condition = _LISTED(Reference(column), literals=set(value))
    elif operator in _OPERATORS:
        condition = _OPERATORS[operator](Reference(column), value)
    else:  # != and not in say little about a file
        return AlwaysTrue()
    try:
        condition.bind(schema, case_sensitive=True)
    except (ValueError, TypeError):  # a value of another type than the column: compared row by row
        return AlwaysTrue()
    bound: BooleanExpression = condition
    return bound
