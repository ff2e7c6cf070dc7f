"""Rows of raw tables in pieces, for jobs that need no buckets.

For `graphmill fold-in`, rows are checked, and written to files of at most PIECE_ROWS rows:

    {folder}/edges-{group:06d}-{number:06d}.parquet     lhs, rhs: string   relation: int32   weight: float32
    {folder}/ids-{group:06d}-{number:06d}.parquet       id: string

For `graphmill features`, rows have all columns of their table, with their types; text has none, its columns
are strings. Columns that only the folders of a file name (`day=2026-11-01`) follow the others.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from etl.run.checks import refuse_ignored, warn_of_left_out
from etl.strings.table import number_names
from etl.tables.check_rows import CORRECT, WITHOUT_VIEWS, RangePosition, Rules, ids_or_null
from etl.tables.data_file import DataFile
from etl.tables.files import TableFiles, find_files
from etl.tables.formats import FileRange, format_of
from etl.tables.ranges import grouped, ranges_of_files
from etl.tables.read import read_blocks, read_whole
from graphmill import storage
from graphmill.ask.features.job import TableToRead
from graphmill.ask.run import relation_names
from graphmill.cluster import run_tasks
from graphmill.config import Config, validated
from graphmill.config.sections.etl import (
    EntityTableConfig,
    EtlConfig,
    FileFormat,
    Table,
    TableConfig,
    WholeTableConfig,
)
from graphmill.errors import ConfigError, NotFoundError, RawTableError
from graphmill.formats.raw_tables import cut
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


def edge_table(config: Config, paths: Sequence[str], given: Mapping[str, Any], option: str) -> TableConfig:
    """Describe new edges, which `option` names: like tables of the run, but for what is `given`."""
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
            f"{option}: the run has {len(distinct)} kinds of tables, and none says how to read this one; run "
            "`graphmill fold-in` with --lhs, --rhs, and --relation or --relation-column"
        )
    if asked & {"relation", "relation_column"}:
        like |= {"relation": None, "relation_column": None}
    content = like | dict(given) | {"path": [storage.absolute(path) for path in paths]}
    table: TableConfig = validated(TableConfig, content, prefix=(option,))
    refuse_ignored(_files_of(config, table, option), given)
    return table


def id_table(config: Config, path: str, entity_type: str) -> EntityTableConfig:
    """Describe a table of ids of one type."""
    content = {"id": "id", "type": entity_type, "path": [storage.absolute(path)]}
    table: EntityTableConfig = validated(EntityTableConfig, content, prefix=("--ids",))
    _files_of(config, table, "--ids")
    return table


def _files_of(config: Config, table: Table, option: str) -> TableFiles:
    try:
        return find_files(config, table)
    except NotFoundError as error:
        raise NotFoundError(f"{option}: {error}") from error


def relations_of(settings: Config) -> Relations:
    """Numbers of the run's relations, and those with featurized ends."""
    numbers = {name: number for number, name in enumerate(relation_names(settings))}
    featurized = frozenset(
        name
        for name, number in numbers.items()
        if any(settings.entities[settings.entry(number).entity_type(side)].featurized for side in Side)
    )
    return Relations(numbers, featurized)


def write_pieces(
    config: Config, tables: Sequence[Table], relations: Relations, folder: str, client: Client
) -> list[dict[str, Any]]:
    """Write the rows of all tables; return the uri, the number of rows, and the type of ids of each piece."""
    inputs = [find_files(config, table, f"table {number}") for number, table in enumerate(tables)]
    warn_of_left_out(inputs)
    for table in tables:
        if isinstance(table, TableConfig) and table.relation is not None:
            _number(table.relation, "new edges", relations)
    files = [(of_table.table, file) for of_table in inputs for file in of_table.files()]
    tasks = [(group, relations, folder, number) for number, group in enumerate(_groups(files))]
    written = run_tasks(client, write_group, tasks, description="reading tables", unit="ranges")
    return [piece for pieces in written for piece in pieces]


def _groups(files: Iterable[tuple[Table, DataFile]]) -> list[list[FileRange]]:
    """Cut files into ranges, one group for each task: the same for any number of workers."""
    ranges = ranges_of_files([(0, "table", table, file) for table, file in files], PIECE_ROWS)
    return grouped(ranges, _GROUPS_LIKE_WORKERS, PIECE_ROWS)


def write_group(
    ranges: Sequence[FileRange], relations: Relations, folder: str, number: int
) -> list[dict[str, Any]]:
    """Write the rows of some ranges of one table; a Dask task."""
    table = ranges[0].table
    kind, entity_type = (
        ("edges", None) if isinstance(table, TableConfig) else ("ids", getattr(table, "type", None))
    )
    rows = (
        _edges(block, file_range, relations) if kind == "edges" else block.cast(IDS)
        for file_range in ranges
        for block, _ in read_blocks(file_range, PIECE_ROWS, Rules(remedy=CORRECT))
        if block.num_rows
    )
    pieces = []
    for place, piece in enumerate(cut(rows, PIECE_ROWS)):
        uri = storage.join(folder, f"{kind}-{number:06d}-{place:06d}.parquet")
        with storage.atomic_output(uri) as stream:
            pq.write_table(piece, stream, compression="zstd")
        pieces.append({"uri": uri, "num_rows": piece.num_rows, "type": entity_type})
    return pieces


def _edges(block: pa.Table, at: FileRange, relations: Relations) -> pa.Table:
    num_rows = block.num_rows
    constant = getattr(at.table, "relation", None)
    if constant is not None:
        number_N: Int32 = np.full(num_rows, relations.numbers[constant], np.int32)
    else:
        number_N = number_names(block["relation"], lambda name: _number(name, at.uri, relations))
    weights = block["weight"] if "weight" in block.column_names else pa.array(np.ones(num_rows, np.float32))
    return pa.table([block["lhs"], block["rhs"], pa.array(number_N), weights], schema=EDGES)


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


def whole_table(config: Config, paths: Sequence[str], given: Mapping[str, Any]) -> TableToRead:
    """Find the columns and the pieces of a table; `given` are keys of `FilesConfig`."""
    paths = [storage.absolute(path) for path in paths]
    named: WholeTableConfig = validated(WholeTableConfig, {**given, "path": paths}, prefix=("TABLE",))
    inputs = find_files(config, named, "table")
    warn_of_left_out([inputs])
    refuse_ignored(inputs, given)
    files = inputs.files()
    names, schema = _columns(files, named)
    table = named.model_copy(update={"names": names})
    pieces = _groups((table, file) for file in files)
    for file_range in (file_range for piece in pieces for file_range in piece if not file_range.snapshot):
        if file_range.num_columns > len(names):  # they would be lost
            raise RawTableError(
                f"{file_range.uri}: expected {len(names)} columns as in the first file, found "
                f"{file_range.num_columns}; give files of one kind"
            )
    described = [inputs.describe(), [[file.uri, file.size_bytes, file.mtime_ns] for file in files]]
    made_from = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    return TableToRead(paths, schema, pieces, read_rows, made_from)


def read_rows(
    schema: pa.Schema, id_columns: Sequence[str], group: Sequence[FileRange]
) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Read the rows of a piece in blocks: all columns, and the raw ids of some, null where missing."""
    for file_range in group:
        fields = list(file_range.table.columns())  # those that all rows of a file share end its blocks
        at = RangePosition(file_range.uri, dict(zip(schema.names, schema.names, strict=True)))
        for block in read_whole(file_range):
            columns = [
                _as(wanted.type, block[field], wanted.name, at)
                for field, wanted in zip(fields, schema, strict=True)
            ]
            rows = pa.table(columns, schema=schema)
            yield rows, [ids_or_null(rows[name], name, at) for name in id_columns]


def _columns(files: Sequence[DataFile], table: WholeTableConfig) -> tuple[tuple[str, ...], pa.Schema]:
    """Names and types of the columns of the first file that has any."""
    for file in files:
        if file.schema is not None:
            names, types = file.schema.names, dict(zip(file.schema.names, file.schema.types, strict=True))
        else:
            head = format_of(file.uri, table).read_head(file.uri, table, PIECE_ROWS)
            names, types = head.names, head.types
            if not names:
                continue
            names = [*names, *(value for value in file.values if value not in names)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise RawTableError(f"{file.uri}: two columns are named {twice!r}; rename one")
        kinds = [WITHOUT_VIEWS.get(kind := types.get(name, pa.string()), kind) for name in names]
        return tuple(names), pa.schema(list(zip(names, kinds, strict=True)))
    raise RawTableError(f"{', '.join(table.path)}: expected a table, found files without columns")


def _as(kind: pa.DataType, column: pa.ChunkedArray, name: str, at: RangePosition) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise at.error(name, f"expected {kind}, as in the first file, found {column.type}: {error}") from None
