"""Keys of a model's parameters in a checkpoint, and the order in which the optimizer numbers them.

    {side}_operators.{relation}.{parameter}     rhs_operators.0.real
    global_embs.emb_{entity type}               global_embs.emb_user

Order: operators of lhs, then of rhs, each by relation; the parameters of an operator as PBG, or the class of
a plug-in, defines them; then global embeddings in the order of the entity types. Files have no order: that of
a plug-in with several parameters is known where its class is. Source: docs/formats/pbg_v1.md.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
    known, operators = _orders(config or {}), _operators(config or {})
    parsed = filter(None, map(parse_operator_key, keys))
    num_parameters = Counter(key[:2] for key in parsed if _position(key.parameter) == _UNKNOWN)
    several = {number for (_, number), count in num_parameters.items() if count > 1}
    return sorted({str(operators.get(number)) for number in several - known.keys()})


def shapes_by(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of parameters by key, as far as PBG's configuration tells; -1 is the number of relations."""
    entities, dynamic = config.get("entities", {}), config.get("dynamic_relations")
    sizes = {name: own.get("dimension") or config.get("dimension", 0) for name, own in entities.items()}
    shapes: dict[str, tuple[int, ...]] = {global_key(name): (size,) for name, size in sizes.items() if size}
    for number, name in _operators(config).items():
        operator, size = OPERATORS.get(name), sizes.get(config["relations"][number]["rhs"], 0)
        for own in operator.parameters if operator and size else ():
            parameter, lead = (own.plural, (-1,)) if dynamic else (own.name, ())
            shapes |= {operator_key(number, side, parameter): (*lead, *own.shape(size)) for side in Side}
    return shapes


def _position(parameter: str) -> int:
    """Position of a parameter among the parameters of its operator, by its name in a checkpoint."""
    every = (names for kind in OPERATORS.values() for names in map(kind.parameter_names, (False, True)))
    return max((names.index(parameter) for names in every if parameter in names), default=_UNKNOWN)


def _orders(config: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Parameters of each relation whose operator is there, in their order."""
    dynamic = bool(config.get("dynamic_relations"))
    orders: dict[int, tuple[str, ...]] = {}
    for number, name in _operators(config).items() if config.get("dimension") else ():
        with suppress(ConfigError):  # the plug-in is not there
            orders[number] = operator_of(name).parameter_names(dynamic, config["dimension"])
    return orders


def _operators(config: Mapping[str, Any]) -> dict[int, str]:
    return {number: str(own.get("operator")) for number, own in enumerate(config.get("relations", ()))}
