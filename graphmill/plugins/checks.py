"""Checks of a plug-in: what training, evaluation and a checkpoint expect of it.

All numbers are float64. A check that fails is one line of the error.
"""

from collections.abc import Callable
from typing import Any

import torch

from graphmill.errors import ConfigError
from graphmill.model.abstract import (
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
)
from graphmill.plugins import operators, others, scores
from graphmill.plugins.numbers import Failures

_CHECKS: dict[type, Callable[..., Failures]] = {
    AbstractOperator: operators.static_operator,
    AbstractDynamicOperator: operators.dynamic_operator,
    AbstractComparator: scores.comparator,
    AbstractLossFunction: scores.loss,
    AbstractRegularizer: others.regularizer,
    AbstractNegativeSampler: others.negative_sampler,
}


def check(
    class_: type, reference: Any = None, *, dimension: int = 8, seed: int = 0, **arguments: Any
) -> None:
    """Check a class of a user.

    Args:
        class_: subclass of one of the abstract classes.
        reference: what must give the same numbers. For an operator or a comparator, the name of a built-in
            one; for an operator of dynamic relations, also the class for static ones; for a loss or a
            regularizer, a function with the arguments of `forward`. None: nothing is compared.
        dimension: length of the vectors.
        seed: seed of all random numbers.
        arguments: arguments of the class beside the dimension, such as margin=0.1.

    Raises:
        ConfigError: a check fails; the message has a line for each.
    """
    draw = torch.Generator().manual_seed(seed)
    for base, checks in _CHECKS.items():
        if issubclass(class_, base):
            failures = _failures(checks, class_, reference, dimension, draw, arguments)
            if failures:
                raise ConfigError("\n".join(f"{class_.__name__}: {each}" for each in failures))
            return
    names = ", ".join(base.__name__ for base in _CHECKS)
    raise ConfigError(f"{class_.__name__}: expected a subclass of one of {names}")


def _failures(checks: Callable[..., Failures], *given: Any) -> list[str]:
    found: list[str] = []
    try:
        found.extend(checks(*given))
    except Exception as error:  # of the user's own code
        found.append(f"fails with {type(error).__name__}: {error}")
    return found
