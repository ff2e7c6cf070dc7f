"""The legacy names of configuration keys and parameters, and states of optimizers as an old torch saved them.

legacy                  v1
outdir, loadPath        checkpoint_path, init_path; all other keys in camelCase
rotation(s)             linear_transformation(s), transposed: the operator multiplied from the other side
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from graphmill.checkpoints.states import checked_state
from graphmill.config import PbgConfig, check_known, from_python

_KEYS = {"checkpoint_path": "outdir", "init_path": "loadPath"}
_ROTATION = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)rotation(s?)$")
_LINEAR = re.compile(r"^((?:lhs|rhs)_operators\.\d+\.)linear_transformation(s?)$")

OptimizerState = Mapping[str, Any] | None
Renamed = tuple[dict[str, Tensor], dict[str, Any] | None]


def legacy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """PBG v1's configuration with the legacy keys."""

    def inner(section: Mapping[str, Any]) -> dict[str, Any]:
        return {_camel(key): value for key, value in section.items()}

    renamed = {_KEYS.get(key) or _camel(key): value for key, value in config.items()}
    if "entities" in renamed:  # the keys are names of types
        renamed["entities"] = {name: inner(entity) for name, entity in renamed["entities"].items()}
    if "relations" in renamed:
        renamed["relations"] = [inner(relation) for relation in renamed["relations"]]
    return renamed


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), key)


def v1_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A legacy configuration, or a part of one, with the keys and values of PBG v1."""
    renamed = from_python(config)
    check_known(PbgConfig, renamed)
    return renamed


def legacy_parameters(parameters: Mapping[str, Tensor], optimizer_state: OptimizerState) -> Renamed:
    """v1's parameters, and the state of their optimizer, under the legacy names."""
    return _renamed_parameters(parameters, optimizer_state, _LINEAR, "rotation")


def v1_parameters(parameters: Mapping[str, Tensor], optimizer_state: OptimizerState, where: str) -> Renamed:
    """Legacy parameters, and the state of their optimizer, under v1's names."""
    state = None if optimizer_state is None else numbered(optimizer_state, where)
    return _renamed_parameters(parameters, state, _ROTATION, "linear_transformation")


def numbered(optimizer_state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A torch optimizer's state_dict() with parameters numbered from 0; an old torch used addresses."""
    optimizer_state = checked_state(optimizer_state, where)
    if not optimizer_state.keys() >= {"param_groups", "state"}:
        return optimizer_state
    groups, state = optimizer_state["param_groups"], optimizer_state["state"]
    parameters = [parameter for group in groups for parameter in group.get("params", ())]
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    renumbered = [group | {"params": [numbers[old] for old in group.get("params", ())]} for group in groups]
    states = {numbers[parameter]: value for parameter, value in state.items() if parameter in numbers}
    return optimizer_state | {"state": states, "param_groups": renumbered}


def _renamed_parameters(
    parameters: Mapping[str, Tensor], optimizer_state: OptimizerState, pattern: re.Pattern[str], name: str
) -> Renamed:
    renamed: dict[str, Tensor] = {}
    turned: set[int] = set()
    for number, (key, value) in enumerate(parameters.items()):
        if (match := pattern.match(key)) and value.dim() >= 2:
            renamed[f"{match[1]}{name}{match[2]}"] = _transposed(value)
            turned.add(number)
        else:
            renamed[key] = value
    if optimizer_state is None:
        return renamed, None
    states = {
        number: {kind: _transposed(value) for kind, value in sums.items()} if number in turned else sums
        for number, sums in optimizer_state.get("state", {}).items()
    }
    return renamed, dict(optimizer_state) | ({"state": states} if "state" in optimizer_state else {})


def _transposed(value: Any) -> Any:
    return value.transpose(-1, -2).contiguous() if isinstance(value, Tensor) and value.dim() >= 2 else value
