"""Vectors for new ids by a call, in the process that has opened a run: for services.

All vectors and raw ids of the run are in memory, in float32, with hashes of the ids.

Shapes: N entities of a type, E edges, D dimension.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from graphmill.ask.entities import ID_ROWS, UNKNOWN, EntityTable, Numbers, iter_ids, read_tables
from graphmill.ask.fold_in.frozen import FrozenModel, read_model
from graphmill.ask.fold_in.new_edges import parted_rows
from graphmill.ask.fold_in.settings import FoldInOptions, solvable_types
from graphmill.ask.fold_in.solver import OF_CALL, Solver, with_vectors
from graphmill.ask.fold_in.sorting import Sorting, first_edges, rows_of_edges
from graphmill.ask.ids import IdSearch
from graphmill.ask.run import TrainedRun, find_model
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.errors import BadInputError
from graphmill.formats.raw_ids import strings_given
from graphmill.vocab import MAX_WEIGHT, Side

Edge = tuple[str, str, str] | tuple[str, str, str, float]
_COLUMNS = ("lhs", "relation", "rhs")


class FoldedId(NamedTuple):
    """A new id, its vector [D], float32, its confidence from 0 to 1, and its edges with known ids."""

    type: str
    id: str
    embedding: Floats
    confidence: float
    num_edges: int


@dataclass(frozen=True, eq=False)
class _Entities(EntityTable):
    """A type whose raw ids, by partition, and vectors are in memory."""

    ids: list[IdSearch]
    vectors_ND: Floats

    @classmethod
    def read(cls, table: EntityTable) -> Self:
        none, parts = pa.array([], pa.string()), table.parts
        ids = [IdSearch(pa.concat_arrays([none, *iter_ids(table.trained, p, ID_ROWS)])) for p in parts]
        vectors_ND = np.empty((table.num_entities, table.dimension), np.float32)
        for partition, first in enumerate(table.first[:-1].tolist()):
            for row, rows_ND in table.blocks(partition, ID_ROWS):
                vectors_ND[first + row : first + row + len(rows_ND)] = rows_ND
        return cls(table.trained, parts, ids, vectors_ND)

    def find(self, ids: pa.Array) -> Numbers:
        numbers = np.full(len(ids), UNKNOWN)
        for first, search in zip(self.first.tolist(), self.ids, strict=False):
            places, rows = search.among(ids)
            numbers[rows] = first + places
        return numbers

    def gather(self, numbers: Numbers) -> Floats:
        return self.vectors_ND[numbers]


class FoldIn:
    """Solves new ids of a run.

    Raises:
        NotFoundError: the run has no checkpoint, or no raw ids.
        ConfigError: all types of the run are featurized, or its training has not ended.
        FormatError: checkpoint, raw ids or published vectors are damaged, or do not fit each other.
        LockedError: the run trains now.
    """

    def __init__(self, config: Config, embedding_path: str, options: FoldInOptions | None = None) -> None:
        find_model(config, config.remap.checkpoint_version, embedding_path)  # used beside published vectors
        trained = TrainedRun.with_ids(config, config.remap.checkpoint_version)
        tables = read_tables(trained, solvable_types(config))
        self._tables = {name: _Entities.read(table) for name, table in tables.items()}
        self._model: FrozenModel = read_model(trained, self._tables, options or FoldInOptions())
        self._sorting = Sorting(config, self._tables, 1, self._model.options.max_edges)
        self._solvers = {name: Solver(self._model, name, OF_CALL) for name in tables}
        self._numbers = {name: place for place, name in enumerate(self._model.run.relation_names)}

    def __call__(self, edges: Iterable[Edge] | pa.Table) -> list[FoldedId]:
        """Solve the ids of edges that the run does not know; see `Run.fold_in`."""
        rows = _rows(edges)
        if not rows:
            return []
        numbers = [self._number(place, row[1]) for place, row in enumerate(rows)]
        lhs, _, rhs, weights = zip(*rows, strict=True)
        columns = {
            "lhs": strings_given(lhs, "edges: lhs"),
            "relation": np.array(numbers, np.int32),
            "rhs": strings_given(rhs, "edges: rhs"),
            "weight": np.array(weights, np.float32),
        }
        by_type = rows_of_edges(self._sorting, pa.table(columns), {})
        solved = {(one.type, one.id): one for of_type in by_type.items() for one in self._solve(*of_type)}
        keys = dict.fromkeys(
            (self._model.type_of(number, side), ends[place])
            for number, *ends in zip(numbers, lhs, rhs, strict=True)
            for place, side in enumerate(Side)
        )
        return [solved[key] for key in keys if key in solved]

    def _number(self, place: int, relation: str) -> int:
        """The number of the relation of a row, which joins types that have vectors."""
        if (number := self._numbers.get(relation)) is None:
            raise BadInputError(
                f"edges: row {place}: relation {relation!r}: the run was trained without it, and has "
                f"{', '.join(self._model.run.relation_names[:10])}"
            )
        if featurized := {self._model.type_of(number, side) for side in Side} - self._tables.keys():
            raise BadInputError(f"edges: row {place}: {featurized.pop()!r} is featurized, and has no vectors")
        return number

    def _solve(self, entity_type: str, rows: pa.Table) -> list[FoldedId]:
        ids, edges, mentions = parted_rows(first_edges(rows, self._sorting.max_edges))
        edges = with_vectors(self._model, self._tables, edges, self._tables[entity_type].dimension)
        vectors, confidence = self._solvers[entity_type].solve(edges, len(ids), mentions)
        counts = np.bincount(edges.id_E, minlength=len(ids)).tolist()
        columns = ids.to_pylist(), vectors, confidence.tolist(), counts
        return [FoldedId(entity_type, *of_id) for of_id in zip(*columns, strict=True)]


def _rows(edges: Iterable[Edge] | pa.Table) -> list[tuple[str, str, str, float]]:
    if isinstance(edges, pa.Table):
        if missing := [name for name in _COLUMNS if name not in edges.column_names]:
            raise BadInputError(
                f"edges: expected the columns {', '.join(_COLUMNS)}, and maybe weight, not {missing[0]!r}"
            )
        columns = [strings_given(edges[name], f"edges: {name}").to_pylist() for name in _COLUMNS]
        weights = edges["weight"].to_pylist() if "weight" in edges.column_names else [1.0] * len(edges)
        edges = list(zip(*columns, weights, strict=True))
    return [_row(number, edge) for number, edge in enumerate(edges)]


def _row(number: int, edge: Any) -> tuple[str, str, str, float]:
    if not isinstance(edge, tuple | list) or len(edge) not in (3, 4):
        raise BadInputError(
            f"edges: row {number}: expected (lhs, relation, rhs) or a weight too, found {edge!r}"
        )
    texts = [str(t) if isinstance(t, int | np.integer) and not isinstance(t, bool) else t for t in edge[:3]]
    weight = edge[3] if len(edge) > 3 else 1.0
    texts_fit = all(isinstance(text, str) and text for text in texts)
    is_number = isinstance(weight, int | float | np.integer | np.floating)
    if not (texts_fit and is_number and 0 <= weight <= MAX_WEIGHT):
        raise BadInputError(
            f"edges: row {number}: expected three texts or integers, none of them empty, and a weight from 0 "
            f"to 10^15, found {edge!r}"
        )
    return texts[0], texts[1], texts[2], float(weight)
