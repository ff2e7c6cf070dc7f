"""Checked rows of raw tables in pieces, for jobs that need no buckets: `graphmill fold-in`.

    {folder}/edges-{group:06d}-{number:06d}.parquet     lhs, rhs: string   relation: int32   weight: float32
    {folder}/ids-{group:06d}-{number:06d}.parquet       id: string

Pieces have at most PIECE_ROWS rows, or one block. The rows of a group of file ranges are in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from etl.run.checks import refuse_ignored, warn_of_left_out
from etl.tables.check_rows import Rules
from etl.tables.files import find_files
from etl.tables.formats import FileRange
from etl.tables.ranges import grouped, ranges_of_files
from etl.tables.read import read_blocks
from graphmill import storage
from graphmill.ask.run import relation_names
from graphmill.cluster import run_tasks
from graphmill.config import Config, validated
from graphmill.config.sections.etl import EntityTableConfig, EtlConfig, FileFormat, Table, TableConfig
from graphmill.errors import ConfigError, RawTableError
from graphmill.storage.as_json import Int32
from graphmill.vocab import Side

PIECE_ROWS = 1 << 18
EDGES = pa.schema(
    [("lhs", pa.string()), ("rhs", pa.string()), ("relation", pa.int32()), ("weight", pa.float32())]
)
IDS = pa.schema([("id", pa.string())])
_GROUPS_LIKE_WORKERS = 4  # groups must not depend on the workers
_COLUMNS = ("lhs", "rhs", "relation", "relation_column", "weight")
# Not of new edges:
_OF_RUN = {"path", "split", "filters", "snapshot", "catalog", "data_path", "missing_paths"}
_SHOWN = 10


@dataclass(frozen=True)
class Relations:
    """Relations that rows may name: numbers by name, and those that have featurized ends."""

    numbers: Mapping[str, int]
    featurized: frozenset[str]


def edge_table(config: Config, paths: Sequence[str], given: Mapping[str, Any]) -> TableConfig:
    """Describe a table of new edges: like the run's own tables, but for the options that are `given`."""
    tables = config.section(EtlConfig).tables if config.etl else ()
    kinds = [table.model_dump(exclude=_OF_RUN) for table in tables]
    for kind in kinds:
        if kind["format"] not in get_args(FileFormat):
            kind["format"] = "auto"  # new edges may be plain files
    distinct = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    asked = {key for key in _COLUMNS if key in given}
    if len(distinct) == 1:
        like = dict(distinct[0])
    elif {"lhs", "rhs"} <= asked and asked & {"relation", "relation_column"}:
        like = {}
    elif not distinct:
        like = {"lhs": "lhs", "rhs": "rhs", "relation_column": "relation"}
    else:
        raise ConfigError(
            f"--edges: the run has {len(distinct)} kinds of tables, and none says how to read this one; add "
            "--lhs, --rhs, and --relation or --relation-column"
        )
    if asked & {"relation", "relation_column"}:
        like |= {"relation": None, "relation_column": None}
    content = like | dict(given) | {"path": [storage.absolute(path) for path in paths]}
    table: TableConfig = validated(TableConfig, content, prefix=("--edges",))
    refuse_ignored(find_files(config, table), given)
    return table


def id_table(paths: Sequence[str], entity_type: str, given: Mapping[str, Any]) -> EntityTableConfig:
    """Describe a table of ids of one type."""
    content = {"id": "id", "type": entity_type, "path": [storage.absolute(path) for path in paths]}
    return validated(EntityTableConfig, content | dict(given), prefix=("--ids",))


def relations_of(settings: Config) -> Relations:
    """Numbers of the run's relations, and those with featurized ends."""
    names = relation_names(settings)
    position = {name: 0 if settings.dynamic_relations else place for place, name in enumerate(names)}
    featurized = frozenset(
        name
        for name, place in position.items()
        if any(settings.entities[settings.relations[place].entity_type(side)].featurized for side in Side)
    )
    numbers = {name: place for place, name in enumerate(names)}
    return Relations(numbers, featurized)


def write_pieces(
    config: Config, tables: Sequence[Table], relations: Relations, folder: str, client: Client
) -> list[dict[str, Any]]:
    """Write the rows of all tables; return the uri, the number of rows, and the type (of ids) of each piece.

    Raises:
        NotFoundError: a path names no file.
        RawTableError: a file cannot be read, lacks a column, or has a row that is no edge of the relations.
    """
    inputs = [find_files(config, table, f"table {number}") for number, table in enumerate(tables)]
    warn_of_left_out(inputs)
    files = [(0, of_table.label, of_table.table, file) for of_table in inputs for file in of_table.files()]
    _check_constants(tables, relations)
    ranges = ranges_of_files(files, PIECE_ROWS)
    groups = grouped(ranges, _GROUPS_LIKE_WORKERS, PIECE_ROWS)
    tasks = [(group, relations, folder, number) for number, group in enumerate(groups)]
    written = run_tasks(client, write_group, tasks, description="reading tables", unit="ranges")
    return [piece for pieces in written for piece in pieces]


def write_group(
    ranges: Sequence[FileRange], relations: Relations, folder: str, number: int
) -> list[dict[str, Any]]:
    """Write the rows of some ranges of one table; a Dask task."""
    table = ranges[0].table
    is_edges = isinstance(table, TableConfig)
    rules = Rules(None, frozenset())
    pending: list[pa.Table] = []
    pieces: list[dict[str, Any]] = []

    def write() -> None:
        rows = pa.concat_tables(pending)
        pending.clear()
        uri = storage.join(folder, f"{'edges' if is_edges else 'ids'}-{number:06d}-{len(pieces):06d}.parquet")
        with storage.atomic_output(uri) as stream:
            pq.write_table(rows, stream, compression="zstd")
        pieces.append(
            {
                "uri": uri,
                "num_rows": rows.num_rows,
                "type": None if is_edges else getattr(table, "type", None),
            }
        )

    for file_range in ranges:
        for block, _ in read_blocks(file_range, PIECE_ROWS, rules):
            if block.num_rows:
                pending.append(_edges(block, file_range, relations) if is_edges else block.cast(IDS))
            if sum(map(len, pending)) >= PIECE_ROWS:
                write()
    if pending:
        write()
    return pieces


def _edges(block: pa.Table, at: FileRange, relations: Relations) -> pa.Table:
    num_rows = block.num_rows
    constant = getattr(at.table, "relation", None)
    if constant is not None:
        number_N: Int32 = np.full(num_rows, relations.numbers[constant], np.int32)
    else:
        number_N = _numbered(block["relation"], at.uri, relations)
    weights = block["weight"] if "weight" in block.column_names else pa.array(np.ones(num_rows, np.float32))
    return pa.table([block["lhs"], block["rhs"], pa.array(number_N), weights], schema=EDGES)


def _numbered(column: pa.ChunkedArray, uri: str, relations: Relations) -> Int32:
    """Number the relations of rows, which `check_rows` has encoded."""
    encoded = column.unify_dictionaries()
    code_N = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    names = encoded.chunk(0).dictionary.to_pylist()
    number_of = np.zeros(len(names), np.int32)
    for code in np.unique(code_N).tolist():
        number_of[code] = _number(names[code], uri, relations)
    numbered: Int32 = number_of[code_N]
    return numbered


def _number(name: str, where: str, relations: Relations) -> int:
    if name not in relations.numbers:
        known = list(relations.numbers)
        some = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        raise RawTableError(
            f"{where}: relation {name!r}: the run was trained without it, and has {some}; leave such edges "
            "out, or train with them"
        )
    if name in relations.featurized:
        raise RawTableError(
            f"{where}: relation {name!r} joins a featurized type, whose entities are means of features: such "
            "ids have no vectors to solve for, or to solve with; leave these edges out"
        )
    return relations.numbers[name]


def _check_constants(tables: Sequence[Table], relations: Relations) -> None:
    for table in tables:
        if isinstance(table, TableConfig) and table.relation is not None:
            _number(table.relation, "--edges", relations)
