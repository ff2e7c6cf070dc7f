"""Vectors for new ids by a call, in the process that has opened a run: for services.

All vectors and raw ids of the run are in memory, in float32, with hashes of the ids.

Shapes: N entities of a type, E edges, Q ids, D dimension.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from graphmill.ask.entities import ID_ROWS, UNKNOWN, EntityTable, Numbers, iter_ids, read_tables
from graphmill.ask.fold_in.frozen import FrozenModel, read_model
from graphmill.ask.fold_in.new_edges import parted, side_of
from graphmill.ask.fold_in.settings import FoldInOptions, solvable_types
from graphmill.ask.fold_in.solver import OF_CALL, Solver
from graphmill.ask.ids import IdSearch
from graphmill.ask.run import TrainedRun, find_model
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.errors import BadInputError
from graphmill.formats.raw_ids import strings_given
from graphmill.vocab import Side

Edge = tuple[str, str, str] | tuple[str, str, str, float]
_COLUMNS = ("lhs", "relation", "rhs")


class FoldedId(NamedTuple):
    """A new id, its vector [D], float32, its confidence from 0 to 1, and its edges with known ids."""

    type: str
    id: str
    embedding: Floats
    confidence: float
    num_edges: int


class _Entities:
    def __init__(self, table: EntityTable) -> None:
        self.vectors_ND = np.empty((table.num_entities, table.dimension), np.float32)
        self._ids: list[tuple[int, IdSearch]] = []
        for partition, first in enumerate(table.first[:-1].tolist()):
            batches = iter_ids(table.trained, table.parts[partition], ID_ROWS)
            self._ids.append((first, IdSearch(pa.concat_arrays([pa.array([], pa.string()), *batches]))))
            for row, rows_ND in table.blocks(partition, ID_ROWS):
                self.vectors_ND[first + row : first + row + len(rows_ND)] = rows_ND

    def find(self, names: Sequence[str]) -> list[int]:
        """Numbers of raw ids; UNKNOWN for those that the run does not know."""
        wanted, numbers = pa.array(names, pa.string()), np.full(len(names), UNKNOWN)
        for first, search in self._ids:
            places, rows = search.among(wanted)
            numbers[rows] = first + places
        return list(map(int, numbers))


class FoldIn:
    """Solves new ids of a run.

    Raises:
        NotFoundError: the run has no checkpoint, or no raw ids.
        ConfigError: all types of the run are featurized, or its training has not ended.
        FormatError: checkpoint, raw ids or published vectors are damaged, or do not fit each other.
        LockedError: the run trains now.
    """

    def __init__(self, config: Config, embedding_path: str, options: FoldInOptions | None = None) -> None:
        version = config.remap.checkpoint_version
        find_model(config, version, embedding_path)  # its vectors are used beside the published ones
        trained = TrainedRun.with_ids(config, version)
        tables = read_tables(trained, solvable_types(config))
        self._model: FrozenModel = read_model(trained, tables, options or FoldInOptions())
        self._entities = {name: _Entities(table) for name, table in tables.items()}
        self._solvers = {name: Solver(self._model, name, OF_CALL) for name in tables}
        self._numbers = {name: place for place, name in enumerate(self._model.run.relation_names)}

    def __call__(self, edges: Iterable[Edge] | pa.Table) -> list[FoldedId]:
        """Solve the ids of edges that the run does not know; see `Run.fold_in`."""
        rows = _rows(edges)
        ends = {side: self._find(rows, side) for side in Side}
        edges_of: dict[tuple[str, str], list[tuple[int, int, int, float]]] = {}
        for number, (lhs, relation, rhs, weight) in enumerate(rows):
            names = {Side.LHS: lhs, Side.RHS: rhs}
            for side in Side:
                if ends[side][number] == UNKNOWN:
                    key = self._model.type_of(self._numbers[relation], side), names[side]
                    edge = self._numbers[relation], int(side is Side.RHS), ends[side.other][number], weight
                    edges_of.setdefault(key, []).append(edge)
        solved = {name: self._solve(name, edges_of) for name in self._entities}
        return [solved[entity_type][raw_id] for entity_type, raw_id in edges_of]

    def _find(self, rows: Sequence[tuple[str, str, str, float]], side: Side) -> list[int]:
        by_type: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            if row[1] not in self._numbers:
                raise BadInputError(
                    f"edges: row {number}: relation {row[1]!r}: the run was trained without it, and has "
                    f"{', '.join(self._model.run.relation_names[:10])}"
                )
            by_type.setdefault(self._model.type_of(self._numbers[row[1]], side), []).append(number)
        places = [UNKNOWN] * len(rows)
        for name, numbers in by_type.items():
            if name not in self._entities:
                raise BadInputError(f"edges: row {numbers[0]}: {name!r} is featurized, and has no vectors")
            names = [rows[number][0] if side is Side.LHS else rows[number][2] for number in numbers]
            for number, place in zip(numbers, self._entities[name].find(names), strict=True):
                places[number] = place
        return places

    def _solve(
        self, entity_type: str, edges_of: Mapping[tuple[str, str], list[tuple[int, int, int, float]]]
    ) -> dict[str, FoldedId]:
        ids = [raw_id for name, raw_id in edges_of if name == entity_type]
        if not ids:
            return {}
        rows = [  # the order of an id's edges is part of the result
            (place, *edge)
            for place, raw_id in enumerate(ids)
            for edge in sorted(edges_of[entity_type, raw_id])
        ]
        *ends, weights = zip(*rows, strict=True)
        id_K, relation_K, is_rhs_K, known_K = (np.array(end, np.int64) for end in ends)
        edges, mentions = parted(id_K, relation_K, is_rhs_K, known_K, np.array(weights, np.float32))
        known_ED = np.empty((len(edges.id_E), self._entities[entity_type].vectors_ND.shape[1]), np.float32)
        ends_E = np.stack([edges.relation_E, edges.is_rhs_E, edges.known_E], 1).tolist()
        for row, (relation, is_rhs, known) in enumerate(ends_E):
            name = self._model.type_of(relation, side_of(is_rhs).other)
            known_ED[row] = self._entities[name].vectors_ND[known]
        edges = edges._replace(known_ED=known_ED)
        solution = self._solvers[entity_type].solve(edges, len(ids), mentions)
        counts: Numbers = np.bincount(edges.id_E, minlength=len(ids))
        return {
            raw_id: FoldedId(entity_type, raw_id, vector_D, float(confidence), int(count))
            for raw_id, vector_D, confidence, count in zip(
                ids, solution.vectors_BD, solution.confidence_B, counts, strict=True
            )
        }


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
    texts = [str(text) if isinstance(text, int | np.integer) else text for text in edge[:3]]
    weight = edge[3] if len(edge) > 3 else 1.0
    texts_fit = all(isinstance(text, str) and text for text in texts)
    is_number = isinstance(weight, int | float | np.integer | np.floating)
    if not (texts_fit and is_number and 0 <= weight < float("inf")):
        raise BadInputError(
            f"edges: row {number}: expected three texts or integers, none of them empty, and a weight of 0 "
            f"or more, found {edge!r}"
        )
    return texts[0], texts[1], texts[2], float(weight)
