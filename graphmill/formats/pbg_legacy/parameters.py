"""The legacy names of operators' parameters, and states of optimizers as an old torch saved them.

legacy          v1
rotation(s)     linear_transformation(s), transposed: the legacy operator multiplied from the other side
others          the same
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_LEGACY = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)rotation(s?)$")
_V1 = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)linear_transformation(s?)$")


def to_legacy(
    parameters: Mapping[str, Tensor], optimizer_state: Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """v1's parameters, and the state of their optimizer, under the legacy names."""
    return _renamed(parameters, optimizer_state, _V1, "rotation")


def from_legacy(
    parameters: Mapping[str, Tensor], optimizer_state: Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Legacy parameters, and the state of their optimizer, under v1's names."""
    state = None if optimizer_state is None else numbered(optimizer_state)
    return _renamed(parameters, state, _LEGACY, "linear_transformation")


def numbered(optimizer_state: Mapping[str, Any]) -> dict[str, Any]:
    """A torch optimizer's state_dict() with parameters numbered from 0; an old torch used addresses."""
    groups = optimizer_state.get("param_groups")
    state = optimizer_state.get("state")
    if not isinstance(groups, list) or not isinstance(state, Mapping):
        return dict(optimizer_state)
    numbers: dict[Any, int] = {}
    for group in groups:
        for parameter in group["params"]:
            numbers[parameter] = len(numbers)
    renumbered = [group | {"params": [numbers[each] for each in group["params"]]} for group in groups]
    states = {numbers[parameter]: value for parameter, value in state.items() if parameter in numbers}
    return dict(optimizer_state) | {"state": states, "param_groups": renumbered}


def _renamed(
    parameters: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None,
    pattern: re.Pattern[str],
    name: str,
) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    renamed: dict[str, Tensor] = {}
    turned: set[int] = set()
    for number, (key, value) in enumerate(parameters.items()):
        if (match := pattern.match(key)) and value.dim() >= 2:
            renamed[f"{match[1]}{name}{match[2]}"] = value.transpose(-1, -2).contiguous()
            turned.add(number)
        else:
            renamed[key] = value
    if optimizer_state is None or not isinstance(optimizer_state.get("state"), Mapping):
        return renamed, None if optimizer_state is None else dict(optimizer_state)
    states = {
        number: {each: _transposed(value) for each, value in state.items()} if number in turned else state
        for number, state in optimizer_state["state"].items()
    }
    return renamed, dict(optimizer_state) | {"state": states}


def _transposed(value: Any) -> Any:
    return value.transpose(-1, -2).contiguous() if isinstance(value, Tensor) and value.dim() >= 2 else value
