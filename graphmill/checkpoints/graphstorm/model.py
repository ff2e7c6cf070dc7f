"""GraphStorm's trained models of learnable embeddings and one decoder as `Checkpoint`.

Rows include the global embedding of their type, which GraphStorm has not: its scores are then ours.
Source, also of the decoders: docs/formats/graphstorm_models.md. A decoder has one row for each edge type, and
one formula for all.

Shapes: R edge types, D dimension.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphmill.checkpoints.checkpoint import Checkpoint, ModelState
from graphmill.checkpoints.graphstorm import saved_models
from graphmill.checkpoints.graphstorm.saved_embeddings import lost_operators, not_kept, open_pieces
from graphmill.checkpoints.graphstorm.saved_ranks import EdgeType
from graphmill.checkpoints.whole_tables import OrderedTable, WholeTablesCheckpoint, open_joined
from graphmill.errors import FormatError
from graphmill.formats.torch_files.write import NewTorchTensor, save
from graphmill.model.operators import OPERATORS
from graphmill.model.parameters import global_key, operator_key, shapes_by
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
    numbers = {
        (relation["lhs"], relation["name"], relation["rhs"]): row for row, relation in enumerate(relations)
    }
    comparator = config.get("comparator", "cos") + (" and bias" if config.get("bias") else "")
    names = {relation.get("operator", "none") for relation in relations} - {"none"} or {"none"}
    decoders = [_DECODERS.get(operator) for operator in names]
    types = {entity_type for lhs, _, rhs in numbers for entity_type in (lhs, rhs)}
    if not relations or config.get("dynamic_relations"):
        raise NoDecoderError("the configuration lists no relations, or leaves them to the edges")
    if len(numbers) < len(relations) or not types <= dimensions.keys():
        raise NoDecoderError("two relations are one edge type, or of a type without embeddings")
    if len({dimensions[entity_type] for entity_type in types}) > 1:
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
    keys = [operator_key(numbers[edge_type], Side.RHS, known.name) for edge_type in edge_types]
    sample = next((parameters[key] for key in keys if key in parameters), None)
    if sample is None:
        raise NoDecoderError(f"the checkpoint lacks {keys[0]}")
    identity = torch.full_like(sample, known.identity)
    rows = torch.stack([parameters.get(key, identity) for key in keys])
    return Decoder(name, edge_types, _as_weight(name, rows, GAMMA))


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
    return relations, {operator_key(row, Side.RHS, parameter): values for row, values in enumerate(rows)}


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


class GraphStormModelCheckpoint(WholeTablesCheckpoint):
    """A folder with model.bin."""

    has_added_globals = True

    def __init__(self, uri: str, entity_path: str | None = None, **_: object) -> None:
        """Counts of partitions are in `entity_path`; by default one. Raises FormatError on damage."""
        mapping = saved_models.read_node_mapping(uri)
        tables = {}
        for name, ranks in saved_models.list_tables(uri).items():
            widths = {rank.shape[1] for rank in ranks}
            if len(widths) > 1:
                raise FormatError(f"{uri}: {name!r}: files differ in dimension: {sorted(widths)}")
            shape = sum(rank.num_rows for rank in ranks), widths.pop()
            ids = mapping[name].numpy() if name in mapping else np.arange(shape[0])
            if len(ids) != shape[0]:
                raise FormatError(
                    f"{uri}: {name!r}: expected {len(ids)} rows, as {saved_models.NODE_MAPPING} has, found "
                    f"{shape[0]}"
                )
            tables[name] = OrderedTable(partial(open_pieces, ranks, ids), shape, f"{uri}: {name}")
        if not tables:
            raise FormatError(
                f"{uri}: expected learnable embeddings, {{type}}/sparse_emb_*.pt, found none; a model of "
                "features has none: convert the embeddings that it saved, at save_embed_path"
            )
        super().__init__(uri, 0, tables, None, entity_path)

    @cached_property
    def _states(self) -> saved_models.States:
        return saved_models.read_states(self.uri)

    @cached_property
    def unread(self) -> list[str]:
        """Parameters of anything but one decoder of link prediction."""
        names = [f"{part}.{name}" for part, state in self._states.items() for name in state]
        known = {"node_embed._dummy"} | ({f"decoder.{saved_models.WEIGHT}"} if self._decodes_rows else set())
        return [name for name in names if name not in known]

    @property
    def _decodes_rows(self) -> bool:
        """Tell whether the decoder compares the embeddings themselves, with no layer in between."""
        layers = [*self._states.get("gnn", ()), *self._states.get("node_embed", ())]
        others = self._states.get("decoder", {}).keys() - {saved_models.WEIGHT}
        return not others and not [name for name in layers if name != "_dummy"]

    @cached_property
    def _decoder(self) -> tuple[Decoder, str] | None:
        """The decoder and our comparator; None if layers of a network lie before it, or nothing names it."""
        weight = self._states.get("decoder", {}).get(saved_models.WEIGHT)
        settings = saved_models.read_settings(self.uri)
        edge_types = saved_models.read_edge_types(self.uri)
        if not self._decodes_rows or (weight is None and not (settings and edge_types)):
            return None
        if settings is None or edge_types is None:
            name = saved_models.CONFIG if settings is None else saved_models.RELATIONS
            raise FormatError(
                f"{self.uri}: expected {name} beside {saved_models.MODEL} or one folder up, found none; copy "
                "it there, from save_model_path or save_embed_path: the weight of the relations has no names"
            )
        kind = str(settings.get("lp_decoder_type", DOT if weight is None else "distmult")).lower()
        comparator = comparator_of(kind, settings, self.uri)
        if (weight is None) != (kind == DOT):
            raise FormatError(f"{self.uri}: the decoder is {kind}, which does not fit {saved_models.MODEL}")
        width = max(self.dimensions.values()) // (2 if kind == "rotate" else 1)
        if weight is not None and tuple(weight.shape) != (len(edge_types), width):
            raise FormatError(
                f"{self.uri}: expected a weight of {kind} of shape {(len(edge_types), width)}, for "
                f"{len(edge_types)} edge types, found {tuple(weight.shape)}"
            )
        gamma = settings.get("gamma") or GAMMA
        if not isinstance(gamma, int | float):
            raise FormatError(f"{self.uri}: gamma: expected a number, found {gamma!r:.80}")
        return Decoder(kind, edge_types, None if weight is None else weight.float(), gamma), comparator

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """Entities and relations in PBG's keys; None if nothing names the relations."""
        if self._decoder is None:
            return None
        decoder, comparator = self._decoder
        relations, _ = relations_of(decoder)
        types = {entity_type for lhs, _, rhs in decoder.edge_types for entity_type in (lhs, rhs)}
        if unknown := types - self.dimensions.keys():
            raise FormatError(f"{self.uri}: an edge type has {min(unknown)!r}, which has no embeddings")
        entities = {name: {"num_partitions": num} for name, num in self.num_partitions.items()}
        return {
            "entities": entities,
            "relations": relations,
            "dimension": max(self.dimensions.values()),
            "comparator": comparator,
            "global_emb": False,
        }

    def _read_model(self) -> ModelState | None:
        return ModelState(relations_of(self._decoder[0])[1], None) if self._decoder else None


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write a model that GraphStorm restores, a rank per partition; return the names of the lost content."""
    model = source.read_model()
    parameters = model.parameters if model else {}
    settings: dict[str, Any] = {
        "basic": {"model_encoder_type": "learnable_embed"},
        "gnn": {"hidden_size": max(source.dimensions.values())},
    }
    states: dict[str, Mapping[str, Any]] = {"node_embed": {}}
    edge_types: list[EdgeType] = []
    lost = lost_operators(parameters)
    config = source.config or {}
    try:
        decoder = decoder_of(config, parameters, source.dimensions)
    except NoDecoderError as error:
        lost.append(f"a decoder: {error}")
    else:
        edge_types = decoder.edge_types
        settings["link_prediction"] = {
            "task_type": "link_prediction",
            "lp_decoder_type": decoder.name,
            "gamma": decoder.gamma,
            "train_etype": [",".join(edge_type) for edge_type in edge_types],
        }
        if config.get("comparator", "cos") == "cos":
            settings["link_prediction"]["lp_embed_normalizer"] = "l2_norm"
        if decoder.weight is not None:
            states["decoder"] = {saved_models.WEIGHT: decoder.weight}
            used = {key for key in shapes_by(config) if key.startswith(Side.RHS)}
            lost = lost_operators(sorted(parameters.keys() - used))
        if decoder.name == "rotate":
            lost.append("the score: rotate adds moduli, the comparator l2 takes the root of their squares")
    for name in source.counts:
        _write_rows(source, target_uri, name, parameters.get(global_key(name)))
    saved_models.write(target_uri, states, settings, edge_types)
    return not_kept(source, lost)


def _write_rows(source: Checkpoint, target_uri: str, name: str, added_D: "Tensor | None") -> None:
    counts, dimension = source.counts[name], source.dimensions[name]
    total, share = sum(counts), -(-sum(counts) // len(counts))

    def batches(places: range) -> Iterator[Any]:
        for piece in rows.batches(places):
            yield piece if added_D is None else piece + added_D.numpy()

    with open_joined(source, name) as rows:
        for rank in range(len(counts)):
            first, last = (min(number * share, total) for number in (rank, rank + 1))
            tensor = NewTorchTensor((last - first, dimension), batches(range(first, last)))
            save(saved_models.sparse_emb_uri(target_uri, name, rank), tensor)
