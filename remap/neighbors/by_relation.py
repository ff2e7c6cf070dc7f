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


def along_relation(
    config: Config, folder: str, raw_id: str, k: int, name: str, inverse: bool
) -> tuple[str, list[Neighbor]]:
    """Find the `k` entities at the other end of a relation with the best scores for an id; and their type.

    Raises:
        ConfigError: there is no such relation, or the model has a bias.
        NotFoundError: the type at this end has no such id.
    """
    number, row = _find_relation(config, name)
    relation = config.relations[number]
    side = Side.LHS if inverse else Side.RHS
    tables = find_types(folder)
    own_type, vector_D = find_id(tables, raw_id, relation.entity_type(side.other))
    wanted = relation.entity_type(side)
    leave_out = raw_id if wanted == own_type else None
    score = _score(config, number, row, side, vector_D)
    return wanted, nearest(batches(tables.get(wanted, [])), score, [leave_out], k)[0]


def _find_relation(config: Config, name: str) -> tuple[int, int | None]:
    """Find the number of a relation in the configuration, and its row among dynamic relations."""
    if config.bias:
        raise ConfigError("--relation: a model with bias cannot be asked")
    names = [relation.name for relation in config.relations]
    if config.dynamic_relations:
        names = entity_counts.read_relation_names(config.entity_path) or []
    if name not in names:
        some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise ConfigError(f"--relation {name}: expected one of {some}")
    position = names.index(name)
    return (0, position) if config.dynamic_relations else (position, None)


def _score(config: Config, number: int, row: int | None, side: Side, vector_D: Floats) -> Score:
    """Return a score of vectors of `side`: that of the edge between each vector and `vector_D`.

    A static relation transforms the right-hand side. A dynamic relation transforms the known end.
    """
    model = open_checkpoint(config.checkpoint_path, allow_non_finite=True).read_model()
    parameters = {key: value.numpy() for key, value in (model.parameters if model else {}).items()}
    relation, comparator = config.relations[number], config.comparator

    def transformed(side: Side, rows_ND: Floats) -> Floats:
        names = operators.parameter_names(relation.operator, config.dynamic_relations)
        keys = [operator_key(number, side, name) for name in names]
        if missing := [key for key in keys if key not in parameters]:
            raise ConfigError(
                f"--relation {relation.name}: {config.checkpoint_path} has no parameter {missing[0]!r} of "
                f"the operator {relation.operator}; set the operator that was trained"
            )
        own = [parameters[key] if row is None else parameters[key][row] for key in keys]
        return operators.apply(relation.operator, rows_ND, own)

    is_two_sided = any(key.startswith(operator_key(number, Side.LHS, "")) for key in parameters)
    transforms_query = is_two_sided or side is Side.LHS
    query_1D = transformed(side.other, vector_D[None]) if transforms_query else vector_D[None]
    query_1D = comparators.prepare(comparator, False, query_1D)

    def score(rows_ND: Floats) -> Floats:
        rows_ND = rows_ND if transforms_query else transformed(side, rows_ND)
        rows_ND = comparators.prepare(comparator, False, rows_ND)
        return comparators.edge_scores(comparator, False, query_1D, rows_ND)[:, None]

    return score
