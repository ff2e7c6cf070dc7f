"""Filters of an entry as an expression of pyiceberg, which prunes manifests and files by it."""

from functools import reduce
from typing import Any

from pyiceberg import expressions as ice
from pyiceberg.schema import Schema

from graphmill.config.sections.etl import Filters

_OPERATORS: dict[str, Any] = {
    "==": ice.EqualTo,
    "=": ice.EqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
}
_LISTED: Any = ice.In
_IS_NULL: dict[str, Any] = {"==": ice.IsNull, "=": ice.IsNull, "!=": ice.NotNull}


def expression(filters: Filters, schema: Schema) -> ice.BooleanExpression:
    """Return an expression that all rows that pass fulfil."""
    every = [reduce(ice.And, [_condition(schema, *one) for one in conditions]) for conditions in filters]
    return reduce(ice.Or, every)


def _condition(schema: Schema, column: str, operator: str, value: Any) -> ice.BooleanExpression:
    condition: Any
    if value is None:
        condition = _IS_NULL[operator](ice.Reference(column))
    elif operator == "in" and None not in value:
        condition = _LISTED(ice.Reference(column), literals=set(value))
    elif operator in _OPERATORS:
        condition = _OPERATORS[operator](ice.Reference(column), value)
    else:  # != and not in say little about a file
        return ice.AlwaysTrue()
    try:
        condition.bind(schema, case_sensitive=True)
    except (ValueError, TypeError):  # a value of another type than the column: compared row by row
        return ice.AlwaysTrue()
    bound: ice.BooleanExpression = condition
    return bound
