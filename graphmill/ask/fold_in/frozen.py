"""A trained model as new ids meet it: relations, samples of entities and edges, priors. None of it moves.

Samples stand for all entities of a type and all edges of the run, the same for all ids. They are evenly
spaced, from seeded starts, and small: every task gets them, whatever the size of the run.

Shapes: D dimension, M entities of a sample.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from graphmill.ask.fold_in.edge_sample import EdgeSample, sample_edges, spread, thinned
from graphmill.ask.fold_in.priors import RelationPriors, TypePrior, relation_priors
from graphmill.ask.fold_in.settings import FoldInOptions
from graphmill.ask.inputs import Inputs
from graphmill.ask.relation import Parameters, Relation, read_parameters, relation_of
from graphmill.ask.run import relation_names
from graphmill.ask.table import EntityTable, Numbers
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.model.parameters import global_key
from graphmill.vocab import Side

PRIOR_ROWS = 4096
"""Entities of a type that its prior, and sums over all entities that are computed once, come from."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Entities that stand for all of their type.

    Attributes:
        numbers: of the first M rows, ascending.
        vectors_MD: that each edge is compared with.
        more_ND: PRIOR_ROWS rows, for sums that are computed once.
    """

    numbers: Tensor
    vectors_MD: Tensor
    more_ND: Tensor
    num_entities: int


@dataclass(frozen=True, eq=False)
class FrozenModel:
    """Settings and samples that a task needs to solve ids.

    Attributes:
        parameters: those of the checkpoint, by key.
        names: relations in the order of their numbers.
        samples: by type, of the types that have vectors.
        priors: likewise.
        relation_priors: means of the entities on each side of the relations.
        edges: some known edges, whose queries should not find new ids.
        where: URI of the checkpoint.
    """

    config: Config
    options: FoldInOptions
    parameters: Parameters
    names: Sequence[str]
    samples: Mapping[str, Sample]
    priors: Mapping[str, TypePrior]
    relation_priors: RelationPriors
    edges: EdgeSample
    where: str

    @cached_property
    def _relations(self) -> dict[int, Relation]:
        return {}

    def relation(self, number: int) -> Relation:
        """Return a relation, with tensors as parameters.

        Raises:
            ConfigError: the checkpoint lacks a parameter of it.
        """
        if number not in self._relations:
            found = relation_of(self.config, self.parameters, list(self.names), number, self.where)
            self._relations[number] = found.with_tensors()
        return self._relations[number]

    def position(self, number: int) -> int:
        """Place of a relation in the configuration, which has one entry for all dynamic relations."""
        return 0 if self.config.dynamic_relations else number

    def type_of(self, number: int, side: Side) -> str:
        """Type of the entities on a side of a relation."""
        return self.config.relations[self.position(number)].entity_type(side)

    def global_of(self, entity_type: str) -> Tensor | None:
        """The vector that is added to all embeddings of a type, if there is one."""
        found = self.parameters.get(global_key(entity_type))
        return None if found is None else torch.from_numpy(np.array(found))

    @property
    def temperature(self) -> float:
        """Number of models that the checkpoint joins: scores are the sums of theirs."""
        return float(self.config.ensemble)

    def num_negatives(self, number: int, side: Side) -> int:
        """Entities that training has compared an edge's own on this side with."""
        if self.config.relations[self.position(number)].all_negs:
            return self.samples[self.type_of(number, side)].num_entities
        return max(self.config.num_batch_negs + self.config.num_uniform_negs, 1)

    def is_asked(self, side: Side) -> bool:
        """Whether training has asked for this side of edges."""
        return not (self.config.disable_lhs_negs if side is Side.LHS else self.config.disable_rhs_negs)

    def relation_weights(self, relation_E: Numbers) -> Floats:
        """Weights of the relations of edges."""
        weights = np.array([each.weight for each in self.config.relations], np.float32)
        found: Floats = weights[np.zeros_like(relation_E) if self.config.dynamic_relations else relation_E]
        return found


def read_model(
    config: Config, inputs: Inputs, tables: Mapping[str, EntityTable], options: FoldInOptions
) -> FrozenModel:
    """Read the model, and the rows of its samples; `tables` are those of `solvable_types`.

    Raises:
        FormatError: checkpoint or edges are damaged.
    """
    parameters = read_parameters(inputs.open_checkpoint(allow_non_finite=inputs.allow_non_finite))
    samples, priors = {}, {}
    for name, table in tables.items():
        chosen = spread(table.num_entities, PRIOR_ROWS, _seed(config.seed, name))
        vectors_ND = table.gather(chosen)
        priors[name] = TypePrior.of(vectors_ND)
        few = spread(len(chosen), options.num_candidates, _seed(config.seed, name, "candidates"))
        rows = torch.from_numpy(vectors_ND)
        samples[name] = Sample(torch.from_numpy(chosen[few]), rows[few], rows, table.num_entities)
    names = relation_names(config)
    edges = sample_edges(config, tables, len(names))
    of_relations = relation_priors(edges, priors)
    few_edges = thinned(edges, options.num_known_edges, _seed(config.seed, "edges"))
    where = inputs.checkpoint_path
    return FrozenModel(config, options, parameters, names, samples, priors, of_relations, few_edges, where)


def _seed(seed: int, *purpose: str) -> int:
    digest = hashlib.blake2b(repr((seed, "fold-in", *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
