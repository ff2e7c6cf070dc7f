"""Model without the entities' embeddings: relation parameters, global embeddings, scores.

The score of an edge is comparator(lhs, operator(rhs)). To corrupt one side of an edge, compare the *query*,
made of the entity of the other side and the relation, with *candidates* for that side:

    side          static relations                     dynamic or reciprocal relations
    lhs           query operator(rhs), candidate lhs   query rhs_operator(rhs), candidate lhs
    rhs           query lhs, candidate operator(rhs)   query lhs_operator(lhs), candidate rhs

A global embedding is added to every entity of its type before the operator. Keys of parameters are those of
a checkpoint (`graphmill.model.parameters`). Source: docs/formats/pbg_v1.md.

Shapes: D dimension, P queries, N candidates, `...` any number of leading dimensions.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from graphmill.checkpoints.finite import check_finite
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.machine.variants import has_bfloat16_products
from graphmill.model import comparators
from graphmill.model.operators import Init, operator_of
from graphmill.model.parameters import global_key, operator_key
from graphmill.vocab import Side

_CHANGED = "; set dimension, operator and global_emb as they were, or start without this checkpoint"
_RELATIONS_ADDED = (
    ". If relations were added, train into another checkpoint_path, with this checkpoint as init_path"
)


class Model:
    """Relation parameters and global embeddings of a run, and the scores that they define."""

    def __init__(
        self,
        config: Config,
        num_relations: int | None = None,
        *,
        relation_init: Init = "identity",
        seed: int = 0,
    ) -> None:
        """`num_relations` counts the dynamic relations; None with static ones."""
        self.config = config
        self.num_relations = num_relations
        self._cpu_takes_half = config.half_precision and has_bfloat16_products()
        reciprocal = config.train.reciprocal_relations
        self.two_sided = config.dynamic_relations or reciprocal  # an operator for each side
        self.parameters: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        for side in (Side.LHS, Side.RHS) if self.two_sided else (Side.RHS,):
            for number, relation in enumerate(config.relations):
                fresh = operator_of(relation.operator).initial(
                    config.entity_dimension(relation.rhs),
                    num_relations,
                    relation_init,
                    config.init_scale,
                    generator,
                )
                self.parameters |= {operator_key(number, side, name): fresh[name] for name in fresh}
        if config.global_emb:
            for entity_type in config.entities:
                dimension = config.entity_dimension(entity_type)
                self.parameters[global_key(entity_type)] = torch.zeros(dimension)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all parameters, with the keys and in the order of a checkpoint."""
        return dict(self.parameters)

    def load_state(
        self, state: Mapping[str, Tensor], uri: str = "the checkpoint", *, grown: bool = False
    ) -> None:
        """Load saved parameters; those that `state` lacks stay. With `grown` it may have fewer relations."""
        for key, value in state.items():
            own = self.parameters.get(key)
            if own is None:
                raise FormatError(
                    f"{uri}: unknown parameter {key!r}; the configuration has "
                    f"{', '.join(self.parameters) or 'none'}{_CHANGED}"
                )
            check_finite(value.detach().cpu().numpy(), f"{uri}: parameter {key!r}")
            if value.shape == own.shape:
                self.parameters[key] = value.to(own)
            elif grown and is_beginning(value, own):
                self.parameters[key] = torch.cat([value.to(own), own[len(value) :]])
            else:
                raise FormatError(
                    f"{uri}: parameter {key!r} has shape {tuple(value.shape)}; "
                    f"the configuration asks for {tuple(own.shape)}"
                    f"{_CHANGED if self.num_relations is None else _RELATIONS_ADDED}"
                )

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Model":
        """Move all parameters."""
        self.parameters = {key: value.to(device, dtype) for key, value in self.parameters.items()}
        return self

    def operator_keys(self, relation: int, side: Side) -> tuple[str, ...]:
        """Keys of the operator that transforms entities of `side`; empty for a side without operator."""
        if side is Side.LHS and not self.two_sided:
            return ()
        entry, dynamic = self.config.relations[relation], self.config.dynamic_relations
        names = operator_of(entry.operator).parameter_names(dynamic, self.config.entity_dimension(entry.rhs))
        return tuple(operator_key(relation, side, name) for name in names)

    def keys_of(self, relation: int) -> tuple[str, ...]:
        """Keys of all parameters that the relation's edges touch."""
        keys = [key for side in Side for key in self.operator_keys(relation, side)]
        if self.config.global_emb:
            keys += [global_key(self.config.relations[relation].entity_type(side)) for side in Side]
        return tuple(dict.fromkeys(keys))

    def with_parameters(self, parameters: dict[str, Tensor]) -> "Model":
        """Copy the model with other parameters, such as some rows of these parameters."""
        other = copy.copy(self)
        other.parameters = parameters
        return other

    def query(self, relation: int, side: Side, embeddings: Tensor, rel: Tensor | None = None) -> Tensor:
        """Make queries for `side`, from embeddings of the other side: [..., D] -> [..., D].

        With dynamic relations, `rel` [...] holds each edge's relation.
        """
        is_transformed = self.two_sided or side is Side.LHS
        return self._vectors(relation, side.other, embeddings, rel, is_transformed=is_transformed)

    def candidates(self, relation: int, side: Side, embeddings: Tensor) -> Tensor:
        """Make candidates for `side`, from embeddings of that side: [..., D] -> [..., D]."""
        is_transformed = not self.two_sided and side is Side.RHS
        return self._vectors(relation, side, embeddings, None, is_transformed=is_transformed)

    def edge_scores(self, queries: Tensor, candidates: Tensor, side: Side = Side.LHS) -> Tensor:
        """Score pairs of a query and a candidate for `side`: [..., D] and [..., D] -> [...]."""
        comparator, bias = self.config.comparator, self.config.bias
        are_lhs = self._candidates_are_lhs(side)
        return comparators.edge_scores(comparator, bias, queries, candidates, candidates_are_lhs=are_lhs)

    def takes_half(self, device: torch.device) -> bool:
        """Tell whether products of training take bfloat16 operands, as half_precision asks."""
        return self.config.half_precision if device.type != "cpu" else self._cpu_takes_half

    def matrix_scores(
        self, queries: Tensor, candidates: Tensor, side: Side = Side.LHS, *, half: bool = False
    ) -> Tensor:
        """Score queries [..., P, D] against candidates [..., N, D]; `half` (bfloat16) is for training."""
        return comparators.matrix_scores(
            self.config.comparator,
            self.config.bias,
            queries,
            candidates,
            half=half,
            candidates_are_lhs=self._candidates_are_lhs(side),
        )

    def _candidates_are_lhs(self, side: Side) -> bool:
        """Tell whether comparators take candidates as lhs, as PBG does with an operator on each side."""
        return self.two_sided or side is Side.LHS

    def _vectors(
        self, relation: int, side: Side, embeddings: Tensor, rel: Tensor | None, *, is_transformed: bool
    ) -> Tensor:
        entry = self.config.relations[relation]
        if self.config.global_emb:
            embeddings = embeddings + self.parameters[global_key(entry.entity_type(side))]
        if is_transformed:
            own = [self.parameters[key] for key in self.operator_keys(relation, side)]
            embeddings = operator_of(entry.operator).apply(embeddings, own, rel)
        return comparators.prepare(self.config.comparator, self.config.bias, embeddings)


def is_beginning(first: Tensor, whole: Tensor) -> bool:
    """Tell whether `first` can be the first rows of `whole`."""
    same_rows = first.dim() > 0 and first.shape[1:] == whole.shape[1:]
    return same_rows and len(first) <= len(whole)
