"""Neighbours along a relation: entities that complete an edge with the highest scores of the model.

Source: docs/formats/pbg_v1.md. Shapes: D dimension, N vectors.
"""

from graphmill.checkpoints import open_checkpoint
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats import entity_counts
from graphmill.library.nearest import Floats, Neighbor, Score, nearest
from graphmill.model import comparators, operators
from graphmill.model.parameters import operator_key
from graphmill.vocab import Side
from remap.neighbors.lookup import find_id
from remap.neighbors.vector_tables import batches, find_types


class TrainedRelation:
    """One relation of a trained model."""

    def __init__(self, config: Config, name: str) -> None:
        """Raises ConfigError for an unknown relation, and for a model with bias."""
        if config.bias:
            raise ConfigError("--relation: a model with bias cannot be asked")
        names = [relation.name for relation in config.relations]
        if config.dynamic_relations:
            names = entity_counts.read_relation_names(config.entity_path) or []
        if name not in names:
            some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ConfigError(f"--relation {name}: expected one of {some}")
        position = names.index(name)
        self.config = config
        self.number = 0 if config.dynamic_relations else position
        self.row = position if config.dynamic_relations else None
        self.relation = config.relations[self.number]
        model = open_checkpoint(config.checkpoint_path, allow_non_finite=True).read_model()
        self.parameters = {key: value.numpy() for key, value in (model.parameters if model else {}).items()}
        lhs_keys = operator_key(self.number, Side.LHS, "")
        self.is_two_sided = any(key.startswith(lhs_keys) for key in self.parameters)

    def score(self, side: Side, vector_D: Floats) -> Score:
        """Return a score of vectors of `side`: that of the edge between each vector and `vector_D`.

        A static relation transforms the right-hand side. A dynamic relation transforms the known end.
        """
        query_1D = vector_D[None]
        if self.is_two_sided or side is Side.LHS:
            query_1D = self._transformed(side.other, query_1D)
            return lambda rows_ND: self._compared(query_1D, rows_ND)
        return lambda rows_ND: self._compared(query_1D, self._transformed(side, rows_ND))

    def _compared(self, query_1D: Floats, rows_ND: Floats) -> Floats:
        comparator = self.config.comparator
        query_1D, rows_ND = (comparators.prepare(comparator, False, each) for each in (query_1D, rows_ND))
        return comparators.edge_scores(comparator, False, query_1D, rows_ND)[:, None]

    def _transformed(self, side: Side, rows_ND: Floats) -> Floats:
        operator = self.relation.operator
        names = operators.parameter_names(operator, self.config.dynamic_relations)
        keys = [operator_key(self.number, side, name) for name in names]
        if missing := [key for key in keys if key not in self.parameters]:
            raise ConfigError(
                f"--relation {self.relation.name}: {self.config.checkpoint_path} has no parameter "
                f"{missing[0]!r} of the operator {operator}; set the operator that was trained"
            )
        values = [self.parameters[key] for key in keys]
        own = values if self.row is None else [value[self.row] for value in values]
        return operators.apply(operator, rows_ND, own)


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool
) -> tuple[str, list[Neighbor]]:
    """Find the `k` entities at the other end of a relation with the best scores for an id; and their type.

    Raises:
        ConfigError: there is no such relation, or the model cannot be asked.
        NotFoundError: the type at this end has no such id.
    """
    trained = TrainedRelation(config, name)
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    found = find_id(tables, raw_id, trained.relation.entity_type(side.other))
    wanted = trained.relation.entity_type(side)
    leave_out = raw_id if wanted == found.entity_type else None
    score = trained.score(side, found.vector_D)
    return wanted, nearest(batches(tables.get(wanted, [])), score, [leave_out], k)[0]
