"""Solves the new rows of a partition from the edges that etl has added: Dask tasks of `folded_rows`.

Shapes: E edges of new rows, K rows of the edges, H edges of a piece.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.edges import Graph, Numbers, RowEdges, edges_of, pieces_of
from graphmill.ask.entities import EntityTable, read_tables
from graphmill.ask.fold_in.frozen import FrozenModel, read_model
from graphmill.ask.fold_in.new_edges import NewEdges, parted
from graphmill.ask.fold_in.settings import FoldInOptions, solvable_types
from graphmill.ask.fold_in.solver import solutions
from graphmill.ask.fold_in.sorting import NONE
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.formats import entity_counts
from graphmill.formats.edge_buckets.origins import added_rows
from graphmill.storage import Checksums
from graphmill.vocab import Side
from train.tables.given_rows import EarlierRows, new_part

MAX_EDGES = 256
"""Edges that a row is solved from; of more, some are drawn."""


class EarlierRun(NamedTuple):
    """The earlier run, as a task has it, and the entities of this run."""

    model: FrozenModel
    tables: dict[str, EntityTable]
    graph: Graph
    numbers: dict[str, Numbers]
    """By type: number in the earlier run of each entity of this run, NONE for a new one."""


def read_earlier(earlier: Config, config: Config) -> EarlierRun:
    """Read the model of the earlier run, and which entities of this run it has."""
    trained = TrainedRun.with_ids(earlier)
    tables = read_tables(trained, solvable_types(earlier))
    partitions = {name: len(table.parts) for name, table in tables.items() if name in config.entities}
    graph = Graph(config, entity_counts.read_counts(config.entity_path, partitions))
    kept = EarlierRows(config.entity_path).kept
    numbers = {name: np.full(first[-1], NONE, np.int64) for name, first in graph.first.items()}
    for name, number_N in numbers.items():
        for part, first in zip(tables[name].parts, graph.first[name].tolist(), strict=False):
            rows = kept(name, part.partition, part.num_rows, trained.checkpoint_path)
            number_N[first : first + len(rows)] = rows + tables[name].first[part.partition]
    return EarlierRun(read_model(trained, tables, FoldInOptions()), tables, graph, numbers)


def solve_partition(
    earlier: EarlierRun, key: PartitionKey, first: int, folder: str
) -> tuple[dict[str, int], Checksums]:
    """Write the rows of one partition from `first` on; return counts, and the file's checksum."""
    (name, partition), config = key, earlier.graph.config
    num_new = earlier.graph.counts[name][partition] - first
    edges, mentions = _edges_of(earlier, key, first + np.arange(num_new))
    edges = _limited(edges, config.seed)
    checksums: Checksums = {}
    global_D = earlier.model.global_of(name)
    with new_part(folder, *key, config.entity_dimension(name), checksums) as table:
        for start, solution in solutions(earlier.model, earlier.tables, name, edges, mentions, num_new):
            rows_ND = solution.vectors_BD
            index = first + start + np.arange(len(rows_ND))
            table.append([pa.array(index), rows_ND if global_D is None else rows_ND - global_D.numpy()])
    num_without = num_new - len(np.unique(edges.id_E))
    return {"num_new": num_new, "num_edges": len(edges.id_E), "num_without_edges": num_without}, checksums


def _edges_of(earlier: EarlierRun, key: PartitionKey, rows: Numbers) -> tuple[NewEdges, NewEdges]:
    """Read the added edges of new rows: those with known ends, without vectors, and the others."""
    graph = earlier.graph
    pieces = (
        piece._replace(start=start, stop=stop)
        for piece in pieces_of(graph.config, graph.config.edge_paths, key)
        for start, stop in added_rows(piece.path, piece.bucket).tolist()
    )
    of_pieces = [_columns(earlier, of_rows) for of_rows in edges_of(graph, {key: rows}, pieces)]
    if not of_pieces:
        none = np.empty(0, np.int64)
        return parted(none, none, none, none, none.astype(np.float32))
    columns = [np.concatenate(column) for column in zip(*of_pieces, strict=True)]
    order_K = np.argsort(columns[0], kind="stable")
    return parted(*(column[order_K] for column in columns))


def _columns(earlier: EarlierRun, of_rows: RowEdges) -> tuple[npt.NDArray[Any], ...]:
    """Edges of relations that the earlier run has: id, relation, whether it is the rhs, known end, weight."""
    graph, edges, other = earlier.graph, of_rows.edges, of_rows.side.other
    known_H = np.full(len(edges), NONE, np.int64)
    types = np.array(graph.types(other))
    for name, number_N in earlier.numbers.items():
        own_H = (types == name)[graph.static(edges.rel)]
        known_H[own_H] = number_N[edges.ends(other)[own_H]]
    is_rhs_H = np.full(len(edges), int(other is Side.LHS), np.int64)
    order_H = np.argsort(edges.rel, kind="stable")
    order_H = order_H[edges.rel[order_H] < earlier.model.run.num_relations]
    columns = of_rows.place_H, edges.rel, is_rhs_H, known_H, edges.weights()
    return tuple(column[order_H] for column in columns)


def _limited(edges: NewEdges, seed: int) -> NewEdges:
    """Keep `MAX_EDGES` edges of each row at most, drawn."""
    order = np.random.default_rng(seed).permutation(len(edges.id_E))
    order = order[np.argsort(edges.id_E[order], kind="stable")]
    id_E = edges.id_E[order]
    return edges.take(np.sort(order[np.arange(len(id_E)) - np.searchsorted(id_E, id_E) < MAX_EDGES]))
