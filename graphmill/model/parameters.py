"""Keys of a model's parameters in a checkpoint, and the order in which the optimizer numbers them.

    {side}_operators.{relation}.{parameter}     rhs_operators.0.real
    global_embs.emb_{entity type}               global_embs.emb_user

Order: operators of lhs, then of rhs, each by relation; the parameters of an operator as PBG defines them;
then global embeddings in the order of the entity types. Source: docs/formats/pbg_v1.md.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from graphmill.model import operators
from graphmill.vocab import Side

_OPERATOR_KEY = re.compile(r"^(lhs|rhs)_operators\.(0|[1-9]\d*)\.([^./]+)$")
_GLOBAL_KEY = re.compile(r"^global_embs\.emb_([^./]+)$")


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


def in_order(keys: Iterable[str], entity_types: Sequence[str]) -> list[str]:
    """Sort keys into the order in which the optimizer numbers the parameters."""
    types = {name: number for number, name in enumerate(entity_types)}

    def place(key: str) -> tuple[int, str, int, int, str]:
        if found := parse_operator_key(key):
            return 0, found.side, found.relation, operators.position(found.parameter), found.parameter
        entity_type = parse_global_key(key) or key
        return 1, "", types.get(entity_type, len(types)), 0, entity_type

    return sorted(keys, key=place)
