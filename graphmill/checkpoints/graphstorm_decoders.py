"""Operators of relations as rows of GraphStorm's decoders, and back.

    decoder         GraphStorm's score of h, r, t           our operator and comparator         r
    dot_product     h . t                                   none, dot; none, cos with l2_norm   (no weight)
    distmult        (h * r) . t                             diagonal, dot                       diagonal
    transe_l2       gamma - |h + r - t|                     translation, l2                     -translation
    rotate          gamma - sum of |h * e^(i phase) - t|    rotation, l2                        phase = -angle

    phase = r * pi * (D / 2) / gamma

A decoder has one row for each edge type, and one formula for all. The operator `none` fits each of them.
transe_l2 has our score plus gamma. rotate adds the moduli of D / 2 complex numbers, where our distance takes
the root of their squares: it has our parameters, not our score. Other operators have no decoder there.

Shapes: R edge types, D dimension.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from graphmill.errors import FormatError
from graphmill.formats.graphstorm.saved_predictions import EdgeType
from graphmill.model.operators import OPERATORS
from graphmill.model.parameters import operator_key
from graphmill.vocab import Side

if TYPE_CHECKING:
    from torch import Tensor

DOT, GAMMA = "dot_product", 12.0  # GraphStorm's own gamma
_DECODERS = {"none": DOT, "diagonal": "distmult", "translation": "transe_l2", "rotation": "rotate"}
_COMPARATORS = {DOT: ("dot", "cos"), "distmult": ("dot",), "transe_l2": ("l2",), "rotate": ("l2",)}


class Decoder(NamedTuple):
    """A decoder of GraphStorm: its name, its edge types in the order of the rows, its weight [R, .]."""

    name: str
    edge_types: list[EdgeType]
    weight: "Tensor | None"
    gamma: float = GAMMA


class NoDecoderError(Exception):
    """GraphStorm has no decoder of this model; the message says why."""


def decoder_of(
    config: Mapping[str, Any], parameters: Mapping[str, "Tensor"], dimensions: Mapping[str, int]
) -> Decoder:
    """The decoder of a PBG configuration, with edge types in GraphStorm's order: sorted."""
    relations = config.get("relations", [])
    numbers = {_edge_type(each): number for number, each in enumerate(relations)}
    comparator = config.get("comparator", "cos") + (" and bias" if config.get("bias") else "")
    names = {each.get("operator", "none") for each in relations} - {"none"} or {"none"}
    decoders = [_DECODERS.get(each) for each in names]
    types = {entity_type for lhs, _, rhs in numbers for entity_type in (lhs, rhs)}
    if not relations or config.get("dynamic_relations"):
        raise NoDecoderError("the configuration lists no relations, or leaves them to the edges")
    if len(numbers) < len(relations) or not types <= dimensions.keys():
        raise NoDecoderError("two relations are one edge type, or of a type without embeddings")
    if len({dimensions[each] for each in types}) > 1:
        raise NoDecoderError("GraphStorm's embeddings have one dimension")
    if len(names) > 1 or comparator not in _COMPARATORS.get(str(decoders[0]), ()):
        raise NoDecoderError(
            f"GraphStorm has none for the operator {' and '.join(sorted(names))} with the comparator "
            f"{comparator}"
        )
    (operator,), name, edge_types = names, str(decoders[0]), sorted(numbers)
    if operator == "none":
        return Decoder(name, edge_types, None)
    import torch

    (known,) = OPERATORS[operator].parameters
    keys = [operator_key(numbers[each], Side.RHS, known.name) for each in edge_types]
    sample = next((parameters[key] for key in keys if key in parameters), None)
    if sample is None:
        raise NoDecoderError(f"the checkpoint lacks {keys[0]}")
    identity = torch.full_like(sample, known.identity)
    rows = torch.stack([parameters.get(key, identity) for key in keys])
    return Decoder(name, edge_types, _as_weight(name, rows, GAMMA))


def used_keys(config: Mapping[str, Any]) -> set[str]:
    """Keys of the parameters of a PBG configuration's static relations."""
    return {
        operator_key(number, Side.RHS, parameter)
        for number, each in enumerate(config["relations"])
        for parameter in OPERATORS[each.get("operator", "none")].parameter_names(dynamic=False)
    }


def relations_of(decoder: Decoder) -> tuple[list[dict[str, Any]], dict[str, "Tensor"]]:
    """The relations of a PBG configuration, and their parameters by key."""
    operator = next(ours for ours, theirs in _DECODERS.items() if theirs == decoder.name)
    relations = [
        {"name": name, "lhs": lhs, "rhs": rhs, "operator": operator} for lhs, name, rhs in decoder.edge_types
    ]
    if decoder.weight is None:
        return relations, {}
    (parameter,) = OPERATORS[operator].parameter_names(dynamic=False)
    rows = _as_parameter(decoder.name, decoder.weight, decoder.gamma)
    return relations, {operator_key(row, Side.RHS, parameter): each for row, each in enumerate(rows)}


def comparator_of(decoder_name: str, settings: Mapping[str, Any], where: str) -> str:
    """The comparator that compares as the decoder does."""
    if decoder_name not in _COMPARATORS:
        raise FormatError(
            f"{where}: the decoder {decoder_name!r} has no operator here; expected {', '.join(_COMPARATORS)}"
        )
    loss_norm = "l2_norm" if settings.get("lp_loss_func") == "contrastive" else ""  # GraphStorm's default
    is_normal = str(settings.get("lp_embed_normalizer") or loss_norm).lower() == "l2_norm"
    if is_normal and decoder_name != DOT:
        raise FormatError(f"{where}: lp_embed_normalizer has no equal here with the decoder {decoder_name!r}")
    return "cos" if is_normal else _COMPARATORS[decoder_name][0]


def _as_weight(name: str, rows: "Tensor", gamma: float) -> "Tensor":
    if name == "rotate":  # phases within a turn, as GraphStorm keeps them
        turned = -rows - 2 * math.pi * (-rows / (2 * math.pi)).round()
        return turned * (gamma / (math.pi * rows.shape[1]))
    return -rows if name == "transe_l2" else rows


def _as_parameter(name: str, weight: "Tensor", gamma: float) -> "Tensor":
    if name == "rotate":
        return -weight * (math.pi * weight.shape[1] / gamma)
    return -weight if name == "transe_l2" else weight


def _edge_type(relation: Mapping[str, Any]) -> EdgeType:
    return relation["lhs"], relation["name"], relation["rhs"]
