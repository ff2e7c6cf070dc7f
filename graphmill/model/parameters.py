"""Keys of a model's parameters in a checkpoint, and the order in which the optimizer numbers them.

    {side}_operators.{relation}.{parameter}     rhs_operators.0.real
    global_embs.emb_{entity type}               global_embs.emb_user

Order: operators of lhs, then of rhs, each by relation; the parameters of an operator as PBG, or the class of
a plug-in, defines them; then global embeddings in the order of the entity types. Files have no order: that of
a plug-in with several parameters is known where its class is. Source: docs/formats/pbg_v1.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from graphmill.errors import ConfigError
from graphmill.model.operators import OPERATORS, operator_of
from graphmill.vocab import Side

_OPERATOR_KEY = re.compile(r"^(lhs|rhs)_operators\.(0|[1-9]\d*)\.([^./]+)$")
_GLOBAL_KEY = re.compile(r"^global_embs\.emb_([^./]+)$")
_UNKNOWN = 1 << 30  # position of a parameter that no built-in operator has


class OperatorKey(NamedTuple):
    """The parts of an operator parameter's key."""

    side: Side
    relation: int
    parameter: str


def operator_key(relation: int, side: Side, parameter: str) -> str:
    """Key of an operator's parameter."""
    return f"{side}_operators.{relation}.{parameter}"


def global_key(entity_type: str) -> str:
    """Key of a global embedding."""
    return f"global_embs.emb_{entity_type}"


def parse_operator_key(key: str) -> OperatorKey | None:
    """Parse the key of an operator's parameter; None for another key."""
    match = _OPERATOR_KEY.match(key)
    return OperatorKey(Side(match[1]), int(match[2]), match[3]) if match else None


def parse_global_key(key: str) -> str | None:
    """Parse the entity type in the key of a global embedding; None for another key."""
    match = _GLOBAL_KEY.match(key)
    return match[1] if match else None


def is_parameter_key(key: str) -> bool:
    """Whether the key names an operator's parameter or a global embedding."""
    return bool(_OPERATOR_KEY.match(key) or _GLOBAL_KEY.match(key))


def in_order(
    keys: Iterable[str], entity_types: Sequence[str], config: Mapping[str, Any] | None = None
) -> list[str]:
    """Sort keys as the optimizer numbers the parameters, by `config` where an operator is a plug-in's."""
    types = {name: number for number, name in enumerate(entity_types)}
    orders = _orders(config or {})

    def place(key: str) -> tuple[int, str, int, int, str]:
        if parsed := parse_operator_key(key):
            own = orders.get(parsed.relation, ())
            at = own.index(parsed.parameter) if parsed.parameter in own else _position(parsed.parameter)
            return 0, parsed.side, parsed.relation, at, parsed.parameter
        entity_type = parse_global_key(key) or key
        return 1, "", types.get(entity_type, len(types)), 0, entity_type

    return sorted(keys, key=place)


def relations_without_order(keys: Iterable[str], config: Mapping[str, Any] | None) -> list[str]:
    """Operators of several parameters among the keys, whose order needs a class that is not there."""
    known = _orders(config or {})
    num_parameters: dict[tuple[Side, int], int] = {}
    for key in keys:
        if (parsed := parse_operator_key(key)) and _position(parsed.parameter) == _UNKNOWN:
            num_parameters[parsed[:2]] = num_parameters.get(parsed[:2], 0) + 1
    return sorted(
        {
            str(_operator(config or {}, number))
            for (_, number), count in num_parameters.items()
            if count > 1 and number not in known
        }
    )


def _position(parameter: str) -> int:
    """Position of a parameter among the parameters of its operator, by its name in a checkpoint."""
    every = (names for kind in OPERATORS.values() for names in map(kind.parameter_names, (False, True)))
    return max((names.index(parameter) for names in every if parameter in names), default=_UNKNOWN)


def _orders(config: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Parameters of each relation whose operator is there, in their order."""
    relations = config.get("relations")
    numbers = range(len(relations)) if isinstance(relations, list | tuple) else range(0)
    dimension, dynamic = config.get("dimension"), bool(config.get("dynamic_relations"))
    orders: dict[int, tuple[str, ...]] = {}
    for number in numbers:
        name = _operator(config, number)
        if isinstance(name, str) and isinstance(dimension, int):
            try:
                orders[number] = operator_of(name).parameter_names(dynamic, dimension)
            except ConfigError:  # the plug-in is not there
                continue
    return orders


def _operator(config: Mapping[str, Any], number: int) -> Any:
    relations = config.get("relations")
    is_known = isinstance(relations, list | tuple) and number < len(relations)
    relation = relations[number] if is_known and relations else None
    return relation.get("operator") if isinstance(relation, Mapping) else None
