"""Encodes the rows of a chunk, block by block: keeps numbers, and each distinct id once.

Shapes: N edges of the chunk so far.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps.task_settings import TaskSettings
from etl.strings.native import take
from etl.strings.table import Distinct, new_table, number_column, number_names
from graphmill.config.sections.etl import EntityTableConfig, TableConfig
from graphmill.storage.as_json import Int32
from graphmill.vocab import Side


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """The rows of a whole chunk; a position is one in all `ids`, type after type."""

    ids: list[Distinct]
    """By type."""
    relations: list[str] = field(default_factory=list)
    """Names of the relations that `rel` numbers."""
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    """[N] lhs, rhs: int32 positions, -1 for a list of features; rel: int32; weight: float32, if there are
    weights."""
    features: dict[Side, pa.ListArray] = field(default_factory=dict)
    """[N] lists of positions, of a featurized side."""


class ChunkIds:
    """The ids of a chunk of a table of entities."""

    def __init__(self, settings: TaskSettings, table: EntityTableConfig) -> None:
        self._type = settings.entity_types.index(table.type)
        self._num_types = len(settings.entity_types)
        self._ids = new_table(settings.seed)

    def add(self, block: pa.Table) -> int:
        """Add the rows of a block that `check_rows` has checked; return the number of rows added."""
        type_N = np.full(block.num_rows, self._type, np.int32)
        return len(number_column(self._ids, block["id"], type_N))

    def finish(self) -> EncodedRows:
        """Return all ids, sorted, by type."""
        return EncodedRows(self._ids.in_order(self._num_types)[0])


class ChunkRows:
    """The edges of a chunk of a table of edges."""

    def __init__(self, settings: TaskSettings, table: TableConfig) -> None:
        self._settings = settings
        self._table = table
        self._featurized = settings.feature_types(table)
        self._ids = new_table(settings.seed)
        self._relations = (
            {} if settings.dynamic else {relation.name: n for n, relation in enumerate(settings.relations)}
        )
        self._type_of_relation = {
            side: np.array(
                [settings.entity_types.index(relation.entity_type(side)) for relation in settings.relations],
                np.int32,
            )
            for side in Side
        }
        self._columns: dict[str, list[npt.NDArray[Any]]] = {}

    def add(self, block: pa.Table) -> int:
        """Add the rows of a block that `check_rows` has checked; return the number of edges added."""
        rel_N = self._number_relations(block)
        if self._settings.etl.self_loops == "drop" and not self._featurized:
            is_one_type_N = self._types(Side.LHS, rel_N) == self._types(Side.RHS, rel_N)
            kept_N = ~(pc.equal(block["lhs"], block["rhs"]).to_numpy() & is_one_type_N)
            block, rel_N = block.filter(pa.array(kept_N)), rel_N[kept_N]
        self._keep("rel", rel_N)
        if self._settings.weighted:
            weighted = "weight" in block.column_names
            self._keep("weight", block["weight"].to_numpy() if weighted else np.ones(len(rel_N), np.float32))
        for side in Side:
            self._number_ends(block, side, rel_N)
        return len(rel_N)

    def finish(self) -> EncodedRows:
        """Return all rows, with sorted ids."""
        ids, position_of = self._ids.in_order(len(self._settings.entity_types))
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        features = {}
        for side in Side:
            positions = take(position_of, columns[side])
            columns[side] = positions
            if side in self._featurized:
                starts = np.cumsum(np.append(0, columns.pop(f"{side}_features")), dtype=np.int32)
                features[side] = pa.ListArray.from_arrays(starts, positions)
                columns[side] = np.full(len(columns["rel"]), -1, np.int32)
        return EncodedRows(ids, list(self._relations), columns, features)

    def _keep(self, name: str, values: npt.NDArray[Any]) -> None:
        self._columns.setdefault(name, []).append(values)

    def _number_relations(self, block: pa.Table) -> Int32:
        if self._table.relation is not None:
            return np.full(block.num_rows, self._number_relation(self._table.relation), np.int32)
        return number_names(block["relation"], self._number_relation)

    def _number_relation(self, name: str) -> int:
        return self._relations.setdefault(name, len(self._relations))

    def _number_ends(self, block: pa.Table, side: Side, rel_N: Int32) -> None:
        column = block[side]
        type_N = self._types(side, rel_N)
        if side in self._featurized:
            counts = pc.list_value_length(column).to_numpy().astype(np.int32)
            self._keep(f"{side}_features", counts)
            column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], pa.string())
            type_N = np.repeat(type_N, counts)
        self._keep(side, number_column(self._ids, column, type_N))

    def _types(self, side: Side, rel_N: Int32) -> Int32:
        types = self._type_of_relation[side]
        return take(types, np.zeros_like(rel_N) if self._settings.dynamic else rel_N)
