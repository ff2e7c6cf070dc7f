"""Scores of one relation's edges, on arrays of numpy or on tensors: the trained model.

Vectors are as remap writes them: embedding plus the global embedding of the type. A static relation
transforms the right-hand side. A dynamic or reciprocal relation transforms the known end.

The parameters of all relations are a table too, beside the embeddings of remap and in an export:

embeddings/_relations.parquet       readers of folders skip names that begin with _
    relation    string              its name
    lhs, rhs    string              its entity types
    operator    string
    side        string              the side of an edge that the operator transforms
    parameter   string              name in a checkpoint: diagonal, real, ...
    shape       list<int64>
    values      list<float>         in the order of rows

Source: docs/formats/pbg_v1.md. Shapes: D dimension, P queries, N candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import Floats
from graphmill.config import NO_PLUGINS, Config, Plugins, RelationConfig
from graphmill.errors import ConfigError, FormatError, suggestion
from graphmill.model import comparators
from graphmill.model.built_in import Array
from graphmill.model.operators import OPERATORS, operator_of
from graphmill.model.parameters import operator_key, parse_operator_key
from graphmill.storage import Checksums
from graphmill.vocab import Side

_LARGEST = 1e18  # the square of a number below, times any dimension, is a float32

Parameters = Mapping[str, Floats]

RELATIONS = "_relations.parquet"
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("relation", "lhs", "rhs", "operator", "side", "parameter")),
        ("shape", pa.list_(pa.int64())),
        ("values", pa.list_(pa.float32())),
    ]
)


@dataclass(frozen=True)
class Relation:
    """One relation, and the parameters of its operators.

    Attributes:
        number: number of the relation in the bucket files.
        transforms: parameters of the operator on each side that has one.
    """

    name: str
    number: int
    types: Mapping[Side, str]
    operator: str
    comparator: str
    bias: bool
    transforms: Mapping[Side, list[Any]]
    is_dynamic: bool = False
    plugins: Plugins = NO_PLUGINS

    @property
    def is_two_sided(self) -> bool:
        """Tell whether each side has its own operator, for the known end."""
        return Side.LHS in self.transforms

    def with_tensors(self) -> "Relation":
        """Return the relation with tensors as parameters: all vectors must be tensors too."""
        import torch

        tensors = {
            side: [torch.from_numpy(np.array(parameter)) for parameter in parameters]
            for side, parameters in self.transforms.items()
        }
        return replace(self, transforms=tensors)

    def queries(self, side: Side, vectors_PD: Array) -> Array:
        """Make queries for `side` from vectors of the other side, [P, D]."""
        return self._prepared(side.other, vectors_PD, self.is_two_sided or side is Side.LHS)

    def candidates(self, side: Side, vectors_ND: Array) -> Array:
        """Make candidates for `side` from vectors of that side, [N, D]."""
        return self._prepared(side, vectors_ND, not self.is_two_sided and side is Side.RHS)

    @property
    def has_slopes(self) -> bool:
        """Tell whether `query_slopes` and `candidate_slopes` know gradients: for dot, without plug-ins."""
        is_built_in = self.operator in OPERATORS
        return is_built_in and self.comparator == "dot" and not self.bias

    def query_slopes(self, side: Side, gradients_PD: Array) -> Array:
        """Gradients with respect to vectors, from those with respect to their `queries`, [P, D]."""
        return self._slopes(side.other, gradients_PD, self.is_two_sided or side is Side.LHS)

    def candidate_slopes(self, side: Side, gradients_ND: Array) -> Array:
        """Gradients with respect to vectors, from those with respect to their `candidates`, [N, D]."""
        return self._slopes(side, gradients_ND, not self.is_two_sided and side is Side.RHS)

    def matrix_scores(self, side: Side, queries_PD: Array, candidates_ND: Array) -> Array:
        """Score every query against every candidate for `side`, [P, N]."""
        roles = {"candidates_are_lhs": self._candidates_are_lhs(side)}
        return comparators.matrix_scores(self.comparator, self.bias, queries_PD, candidates_ND, **roles)

    def edge_scores(self, side: Side, queries_PD: Array, candidates_PD: Array) -> Array:
        """Score pairs of a query and a candidate for `side`, [P]."""
        roles = {"candidates_are_lhs": self._candidates_are_lhs(side)}
        return comparators.edge_scores(self.comparator, self.bias, queries_PD, candidates_PD, **roles)

    def _candidates_are_lhs(self, side: Side) -> bool:
        return self.is_two_sided or side is Side.LHS

    def _prepared(self, side: Side, vectors: Array, is_transformed: bool) -> Array:
        if is_transformed:
            own = self.transforms[side]
            vectors = operator_of(self.operator).apply_one(vectors, own, dynamic=self.is_dynamic)
        return comparators.prepare(self.comparator, self.bias, vectors)

    def _slopes(self, side: Side, gradients: Array, is_transformed: bool) -> Array:
        if not is_transformed:
            return gradients
        slopes: Array = OPERATORS[self.operator].slopes(gradients, self.transforms[side])
        return slopes


def check_magnitude(vectors: Floats, where: str) -> None:
    """Refuse prepared vectors whose scores may be no finite numbers."""
    if len(vectors) and not np.abs(vectors).max() < _LARGEST / max(vectors.shape[1], 1) ** 0.5:
        raise FormatError(
            f"{where}: vectors or parameters are not finite, or too large for scores in float32; go back to "
            "a preserved epoch, or train again with a lower lr"
        )


def number_of(run: TrainedRun, name: str) -> int:
    """Find the number of the relation `name`."""
    names = run.relation_names
    if name not in names:
        raise ConfigError(f"--relation {name}: {suggestion(name, names, 'expected one of')}")
    return names.index(name)


def read_parameters(run: TrainedRun, *, allow_non_finite: bool = True) -> Parameters:
    """Read the parameters of all relations by their keys."""
    return run.open_checkpoint(allow_non_finite=allow_non_finite).read_parameters() or {}


def relation_of(run: TrainedRun, parameters: Parameters, number: int) -> Relation:
    """Make the relation of this number."""
    config, entry = run.config, run.config.entry(number)
    dimension, position = config.entity_dimension(entry.rhs), 0 if config.dynamic_relations else number
    names = operator_of(entry.operator).parameter_names(config.dynamic_relations, dimension)
    keys = {side: [operator_key(position, side, name) for name in names] for side in Side}
    if not config.dynamic_relations and not any(key in parameters for key in keys[Side.LHS]):
        del keys[Side.LHS]
    return Relation(
        run.relation_names[number],
        number,
        {side: entry.entity_type(side) for side in Side},
        entry.operator,
        config.comparator,
        config.bias,
        {side: _transform(run, parameters, number, own) for side, own in keys.items()},
        config.dynamic_relations,
        config.train.plugins,
    )


def _transform(run: TrainedRun, parameters: Parameters, number: int, keys: list[str]) -> list[Floats]:
    entry, where = run.config.entry(number), run.checkpoint_path
    if missing := [key for key in keys if key not in parameters]:
        raise ConfigError(
            f"relation {entry.name}: {where} has no parameter {missing[0]!r} of the operator "
            f"{entry.operator}; set the operator that was trained"
        )
    if not run.config.dynamic_relations:
        return [np.ascontiguousarray(parameters[key]) for key in keys]
    if any(number >= len(parameters[key]) for key in keys):
        raise ConfigError(f"relation {number}: {where} was trained before it was added; train again")
    return [np.ascontiguousarray(parameters[key][number]) for key in keys]


def write_relation_parameters(trained: TrainedRun, uri: str, checksums: Checksums) -> int:
    """Write the table of parameters, and add its checksum; return its rows: one for each of each relation."""
    config = trained.config
    parameters = trained.open_checkpoint(allow_non_finite=trained.allow_non_finite).read_parameters()
    if parameters is None:
        raise ConfigError(f"remap.relations: {trained.checkpoint_path} holds no relations; set it to false")
    rows: list[dict[str, Any]] = []
    for key, value in parameters.items():
        parsed = parse_operator_key(key)
        if parsed is None:
            continue
        relation = _relation(config, parsed.relation, f"{trained.checkpoint_path}: {key}")
        names = trained.relation_names if config.dynamic_relations else [relation.name]
        arrays = value if config.dynamic_relations else value[None]
        if len(names) != len(arrays):
            raise ConfigError(
                f"remap.relations: {trained.checkpoint_path}: {key}: expected {len(names)} relations, as "
                f"{config.entity_path} counts, found {len(arrays)}"
            )
        for name, array in zip(names, arrays, strict=True):
            rows.append(
                {
                    "relation": name,
                    "lhs": relation.lhs,
                    "rhs": relation.rhs,
                    "operator": relation.operator,
                    "side": parsed.side.value,
                    "parameter": parsed.parameter,
                    "shape": list(array.shape),
                    "values": np.asarray(array, np.float32).reshape(-1),
                }
            )
    with storage.atomic_output(uri, checksums=checksums) as stream:
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), stream, write_page_checksum=True)
    return len(rows)


def _relation(config: Config, number: int, where: str) -> RelationConfig:
    if number < len(config.relations) and config.relations[number].operator != "none":
        return config.relations[number]
    raise ConfigError(
        f"remap.relations: {where}: the configuration has no operator of a relation {number}; "
        "give --conf with the relations that were trained, or set it to false"
    )
