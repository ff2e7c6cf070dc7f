"""Solves the new rows of a partition from the edges that etl has added: Dask tasks of `folded_rows`.

Shapes: E edges of new rows, K edges between new rows, N new rows, D dimension.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.ask.entities import EntityTable, read_tables
from graphmill.ask.fold_in.frozen import FrozenModel, read_model
from graphmill.ask.fold_in.new_edges import NO_MENTIONS, Mentions, NewEdges
from graphmill.ask.fold_in.settings import FoldInOptions, solvable_types
from graphmill.ask.fold_in.solver import OF_JOB, Solver
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets, key_of
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.origins import added_rows
from graphmill.formats.parquet.vectors import new_table
from graphmill.storage import Checksums
from graphmill.vocab import Bucket, Side
from train.tables.earlier_rows import EarlierRows
from train.tables.given_rows import part_uri, schema

MAX_EDGES = 256
"""Edges that a row is solved from; of more, some are drawn."""


class EarlierRun(NamedTuple):
    """The earlier run, as a task has it."""

    model: FrozenModel
    tables: dict[str, EntityTable]
    rows: dict[PartitionKey, npt.NDArray[np.int64]]
    """Row in the earlier run of each first row of a partition; the rows after these are new."""


def read_earlier(config: Config, entity_path: str) -> EarlierRun:
    """Read the model of the earlier run, which has these settings; `entity_path` has the ids of this run."""
    trained = TrainedRun.with_ids(config)
    tables = read_tables(trained, solvable_types(config))
    kept = EarlierRows(entity_path).kept
    rows = {
        (name, number): kept(name, number, part.num_rows, trained.checkpoint_path)
        for name, table in tables.items()
        for number, part in enumerate(table.parts)
    }
    return EarlierRun(read_model(trained, tables, FoldInOptions()), tables, rows)


def solve_partition(
    earlier: EarlierRun,
    config: Config,
    key: PartitionKey,
    starts: dict[str, list[int]],
    num_rows: int,
    folder: str,
) -> tuple[dict[str, int], Checksums]:
    """Write the new rows of one partition, of `num_rows` rows; return counts, and the file's checksum."""
    name, partition = key
    first, dimension = starts[name][partition], config.entity_dimension(name)
    edges, mentions = _edges_of(earlier, config, key, starts)
    edges = _limited(edges, config.seed)
    uri = part_uri(folder, name, partition)
    checksums: Checksums = {}
    global_D = earlier.model.global_of(name)
    solver = Solver(earlier.model, name)
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        new_table(stream, schema(dimension), is_plain=True, compression="zstd") as table,
    ):
        for start in range(0, num_rows - first, OF_JOB.ids):
            stop = min(start + OF_JOB.ids, num_rows - first)
            some = edges.take(slice(*np.searchsorted(edges.id_E, [start, stop]).tolist()))
            own = slice(*np.searchsorted(mentions.id_K, [start, stop]).tolist())
            of_ids = Mentions(*(column[own] for column in mentions))
            some = _with_vectors(earlier, config, some._replace(id_E=some.id_E - start), dimension)
            found = solver.solve(some, stop - start, of_ids._replace(id_K=of_ids.id_K - start)).vectors_BD
            rows_ND = found if global_D is None else found - global_D.numpy()
            table.append([pa.array(np.arange(first + start, first + stop)), rows_ND])
    has_edges = len(np.unique(edges.id_E))
    counts = {"num_new": num_rows - first, "num_edges": len(edges.id_E)}
    return counts | {"num_without_edges": num_rows - first - has_edges}, checksums


def _edges_of(
    earlier: EarlierRun, config: Config, key: PartitionKey, starts: dict[str, list[int]]
) -> tuple[NewEdges, Mentions]:
    """Read the edges of new rows: those with known ends, without vectors, and the others."""
    edges: list[NewEdges] = []
    mentions: list[Mentions] = []
    for path in config.edge_paths:
        for bucket in all_buckets(config):
            for found, is_known in _of_bucket(earlier, config, key, starts, path, bucket):
                edges.append(found.take(np.flatnonzero(is_known)))
                other = found.take(np.flatnonzero(~is_known))
                mentions.append(Mentions(other.id_E, other.relation_E, other.is_rhs_E))
    if not edges:
        none = np.empty(0, np.int64)
        empty_ED, none_E = np.empty((0, 0), np.float32), np.empty(0, np.float32)
        return NewEdges(none, none, none, none, empty_ED, none_E), NO_MENTIONS
    columns = zip(*edges, strict=True)
    joined = NewEdges(*(np.concatenate(column) for column in columns))
    named = Mentions(*(np.concatenate(column) for column in zip(*mentions, strict=True)))
    return (
        joined.take(np.argsort(joined.id_E, kind="stable")),
        Mentions(*(column[np.argsort(named.id_K, kind="stable")] for column in named)),
    )


def _of_bucket(
    earlier: EarlierRun,
    config: Config,
    key: PartitionKey,
    starts: dict[str, list[int]],
    path: str,
    bucket: Bucket,
) -> Iterator[tuple[NewEdges, npt.NDArray[np.bool_]]]:
    """Read the added edges of a bucket with new rows of a partition; tell which have known other ends."""
    sides = [side for side in Side if _has_side(config, key, side, bucket)]
    if not sides:
        return
    num_known_relations = earlier.model.run.num_relations
    for start, stop in added_rows(path, bucket).tolist():
        edges = edge_buckets.read_bucket(path, bucket, start, stop)
        ends = {Side.LHS: edges.lhs, Side.RHS: edges.rhs}
        weight_E = np.ones(len(edges), np.float32) if edges.weight is None else edges.weight
        position_E = np.zeros_like(edges.rel) if config.dynamic_relations else edges.rel
        for side in sides:
            for number, relation in enumerate(config.relations):
                if key_of(config, relation.entity_type(side), side, bucket) != key:
                    continue
                other = key_of(config, relation.entity_type(side.other), side.other, bucket)
                own_E = (
                    (position_E == number)
                    & (ends[side] >= starts[key[0]][key[1]])
                    & (edges.rel < num_known_relations)
                )
                rows = np.flatnonzero(own_E)
                known_E = ends[side.other][rows].astype(np.int64)
                earlier_row = earlier.rows[other]
                is_known = known_E < len(earlier_row)
                known_E[is_known] = earlier_row[known_E[is_known]]
                yield (
                    NewEdges(
                        ends[side][rows].astype(np.int64) - starts[key[0]][key[1]],
                        edges.rel[rows].astype(np.int64),
                        np.full(len(rows), int(side is Side.RHS), np.int64),
                        known_E + earlier.tables[other[0]].first[other[1]],
                        np.empty((len(rows), 0), np.float32),
                        weight_E[rows],
                    ),
                    is_known,
                )


def _has_side(config: Config, key: PartitionKey, side: Side, bucket: Bucket) -> bool:
    names = {relation.entity_type(side) for relation in config.relations}
    return key[0] in names and key_of(config, key[0], side, bucket) == key


def _limited(edges: NewEdges, seed: int) -> NewEdges:
    """Keep `MAX_EDGES` edges of each row at most, drawn."""
    order = np.random.default_rng(seed).permutation(len(edges.id_E))
    order = order[np.argsort(edges.id_E[order], kind="stable")]
    id_E = edges.id_E[order]
    return edges.take(np.sort(order[np.arange(len(id_E)) - np.searchsorted(id_E, id_E) < MAX_EDGES]))


def _with_vectors(earlier: EarlierRun, config: Config, edges: NewEdges, dimension: int) -> NewEdges:
    """Add the vectors of the known ends."""
    known_ED = np.zeros((len(edges.id_E), dimension), np.float32)
    for side in Side:
        types = [relation.entity_type(side.other) for relation in config.relations]
        position_E = np.zeros_like(edges.relation_E) if config.dynamic_relations else edges.relation_E
        is_side_E = edges.is_rhs_E == int(side is Side.RHS)
        for name in dict.fromkeys(types):
            is_type_R = np.array([each == name for each in types])
            rows = np.flatnonzero(is_side_E & is_type_R[position_E])
            if len(rows):
                known_ED[rows] = earlier.tables[name].gather(edges.known_E[rows])
    return edges._replace(known_ED=known_ED)
