"""Neighbours along a relation: entities that complete an edge with the highest scores of the model.

Shapes: D dimension, N vectors.
"""

from graphmill.ask.edges import loopless
from graphmill.ask.nearest import Floats, Neighbor, Score, nearest
from graphmill.ask.neighbors.lookup import find_id
from graphmill.ask.neighbors.vector_tables import batches, find_types
from graphmill.ask.relation import Relation, number_of, read_parameters, relation_of
from graphmill.ask.run import TrainedRun, find_model
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.vocab import Side


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool, with_itself: bool = False
) -> tuple[str, list[Neighbor]]:
    """Find the `k` entities at the other end of a relation with the best scores for an id; and their type.

    The id itself is among them only `with_itself`, or where a training edge of the relation is a loop.

    Raises:
        ConfigError: there is no such relation, the model has a bias, or its training has not ended.
        NotFoundError: the type at this end has no such id, or there is no checkpoint.
        FormatError: the vectors of `folder`, the ids or the parameters are not of one model.
    """
    relation = _find_relation(config, folder, name)
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    _, vector_D = find_id(tables, raw_id, relation.types[side.other])
    if len(vector_D) != (dimension := config.entity_dimension(relation.types[side.other])):
        raise ConfigError(f"{folder}: expected vectors of length {dimension}, found {len(vector_D)}")
    wanted = relation.types[side]
    leave_out = None if with_itself or not loopless(config, [relation.number]) else raw_id
    score = _score(relation, side, vector_D)
    return wanted, nearest(batches(tables.get(wanted, [])), score, [leave_out], k)[0]


def _find_relation(config: Config, folder: str, name: str) -> Relation:
    if config.bias:
        raise ConfigError("--relation: a model with bias cannot be asked")
    trained = TrainedRun(config, *find_model(config, config.remap.checkpoint_version, folder))
    number = number_of(trained, name)
    return relation_of(trained, read_parameters(trained), number)


def _score(relation: Relation, side: Side, vector_D: Floats) -> Score:
    """Return a score of vectors of `side`: that of the edge between each vector and `vector_D`."""
    query_1D = relation.queries(side, vector_D[None])

    def score(rows_ND: Floats) -> Floats:
        return relation.edge_scores(side, query_1D, relation.candidates(side, rows_ND))[:, None]

    return score
