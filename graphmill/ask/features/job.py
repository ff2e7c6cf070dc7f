"""A table with vectors joined in by raw id.

{to}/                           takes its place as a whole, once every file is written
    part-{number:05d}.parquet   the rows of one piece of the table, in their order, with more columns
    _features.json              what was asked, and figures
    _checksums.xxh128           checksums of the files
    _SUCCESS
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from distributed import Client

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.entities import UNKNOWN, EntityTable, read_tables
from graphmill.ask.features.joined import (
    COUNTS,
    MOST_SIMILAR,
    Form,
    IdColumn,
    Joining,
    ReadRows,
    Similar,
    find_vectors,
    write_part,
)
from graphmill.ask.features.settings import FeaturesOptions
from graphmill.ask.fold_in import job as fold_in
from graphmill.ask.principal import Components, Moments, moments_of_partition
from graphmill.ask.run import TrainedRun
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.display.readable import quoted
from graphmill.errors import ConfigError
from graphmill.formats import remapped
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_result_folder
from graphmill.run.work import Made, Work, make_result

RECORD = "_features.json"
_SHOWN = 5

FoldIn = Callable[[str, Client], Any]
"""Folds ids in, and writes the result of `graphmill fold-in` into a folder."""

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class TableToRead:
    """The table: its columns, its pieces, how to read one, and a hash of its files."""

    described: Sequence[str]
    schema: pa.Schema
    pieces: Sequence[Any]
    read: ReadRows
    made_from: str


def check(config: Config, request: FeaturesOptions, to: str) -> TrainedRun:
    """Refuse wrong options before anything is started or written.

    Raises:
        ConfigError: there is no such type, it is featurized, or the folder holds other files.
        NotFoundError: there is no checkpoint, no raw ids, or no such file.
    """
    check_result_folder(to, RECORD)
    for name in dict.fromkeys(request.columns.values()):
        if name not in config.entities:
            raise ConfigError(f"--type: expected one of {', '.join(config.entities)}, found {name!r}")
        if config.entities[name].featurized:
            raise ConfigError(f"--type: {name!r} is featurized: its entities have no vectors of their own")
        if request.components is not None and request.components > config.entity_dimension(name):
            raise ConfigError(
                f"--components: expected {config.entity_dimension(name)} at most, the length of the vectors "
                f"of {name!r}, found {request.components}"
            )
    if request.similar_to is not None:
        if len(set(request.columns.values())) > 1:
            raise ConfigError("--similar-to: expected columns of one type, as its ids are of that type")
        given.files(request.similar_to, "--similar-to")
    return TrainedRun.chosen(config)


def run(
    config: Config,
    request: FeaturesOptions,
    table: TableToRead,
    to: str,
    client: Client,
    claim: Claim = NO_CLAIM,
    fold_ids_in: FoldIn | None = None,
) -> dict[str, Any]:
    """Write the table with its new columns; return the figures, which `_features.json` has too.

    Raises:
        RawTableError: the table cannot be read.
        ConfigError: the table lacks a column or has one of a new name, or the run knows none of its ids.
        FormatError: checkpoint or raw ids are damaged or do not fit each other.
    """
    began_s = time.monotonic()
    trained = check(config, request, to)
    names = table.schema.names
    if unknown := [column for column in request.columns if column not in names]:
        raise ConfigError(f"--column: expected one of {', '.join(names)}, found {unknown[0]!r}")
    options = request.model_dump(mode="json", exclude={"columns", "memory_bytes"})
    asked = {"table": list(table.described), "ids": dict(request.columns), **options}
    uris = [config.entity_path, config.checkpoint_path, *request.fold_in, *filter(None, [request.similar_to])]
    made_from = {
        "features": asked | {"memory_bytes": request.memory_bytes},
        "inputs": [*fingerprints.describe_inputs(uris), {"table": table.made_from}],
    }

    def write(work: Work) -> Made:
        joining = _joining(trained, request, table, work, fold_ids_in)
        counts, checksums = _write(joining, table, work)
        figures = asked | {"checkpoint_version": trained.version, "num_files": len(checksums)} | counts
        return figures | _told(joining) | {"seconds": round(time.monotonic() - began_s, 3)}, checksums

    return make_result("features", to, RECORD, made_from, write, client, claim, version=trained.version)


def _joining(
    trained: TrainedRun, request: FeaturesOptions, table: TableToRead, work: Work, fold_ids_in: FoldIn | None
) -> Joining:
    tables = read_tables(trained, list(dict.fromkeys(request.columns.values())), work.client)
    components = {name: components_of(request, entities, work.client) for name, entities in tables.items()}
    similar = {name: similar_of(request, entities, work.client) for name, entities in tables.items()}
    folded = _folded_folders(request, work, fold_ids_in)
    columns = tuple(
        IdColumn(
            column,
            tables[name],
            Form(
                tables[name].dimension,
                request.stem(column),
                components[name],
                similar[name],
                request.as_columns,
                bool(request.fold_in),
            ),
            tuple(uri for folder in folded for uri in folded_parts(folder, name, tables[name].dimension)),
        )
        for column, name in request.columns.items()
    )
    joining = Joining(table.schema, columns, request.memory_bytes)
    names = joining.result.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"--prefix: the result would have two columns named {twice!r}; choose another beginning of the "
            "names of new columns"
        )
    return joining


def _folded_folders(request: FeaturesOptions, work: Work, fold_ids_in: FoldIn | None) -> list[str]:
    """Folders of folded ids: those that were given, and one for the edges that were given."""
    folders = [uri for uri in request.fold_in if is_folded(uri)]
    if len(folders) < len(request.fold_in) and fold_ids_in is not None:
        made = work.uri("folded")
        if not storage.exists(storage.join(made, storage.MARKER)):
            try:
                fold_ids_in(made, work.client)
            except fold_in.NothingNewError as error:
                log.warning("features: %s", error)
        folders.append(made)
    return folders


def is_folded(uri: str) -> bool:
    """Tell whether a folder is a result of `graphmill fold-in`."""
    return storage.exists(storage.join(uri, fold_in.RECORD))


def _write(joining: Joining, table: TableToRead, work: Work) -> Made:
    pieces = list(table.pieces) or [()]
    files = [work.part_uri(number) for number in range(len(pieces))]
    tasks = {
        f"part-{number:05d}": (joining, table.read, piece, uri)
        for number, (piece, uri) in enumerate(zip(pieces, files, strict=True))
    }
    written = work.run_tasks(write_part, tasks, description="joining", unit="files")
    columns = {
        column.name: {
            "type": column.table.entity_type,
            **_added([part["columns"][place] for part in written]),
        }
        for place, column in enumerate(joining.columns)
    }
    for name, counts in columns.items():
        _check_ids(name, counts)
    checksums = {uri: str(part["checksum"]) for uri, part in zip(files, written, strict=True)}
    return {"num_rows": sum(part["num_rows"] for part in written), "columns": columns}, checksums


def _added(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {key: sum(part[key] for part in parts) for key in COUNTS}
    missing = dict.fromkeys(name for part in parts for name in part["missing"])
    return sums | {"missing": list(missing)[:_SHOWN]}


def _check_ids(column: str, counts: Mapping[str, Any]) -> None:
    """Refuse a column of other ids; warn of missing ones."""
    num_with_vector, num_missing = counts["num_found"] + counts["num_folded_in"], counts["num_missing"]
    if not num_missing:
        return
    shown = quoted(counts["missing"])
    if not num_with_vector:
        raise ConfigError(
            f"--column {column}: expected ids of {counts['type']!r}, found none of them in {num_missing:,} "
            f"rows, but others, such as {shown}; choose another column or another --type"
        )
    more = ", ..." if len(counts["missing"]) == _SHOWN else ""
    told = "features: %s: rows with ids that are no %s of the run have no vector (%d of %d): %s%s"
    log.warning(told, column, counts["type"], num_missing, num_missing + num_with_vector, shown, more)


def _told(joining: Joining) -> dict[str, Any]:
    """Shares of the variance that the components explain, by type."""
    shares = {
        column.table.entity_type: [round(float(share), 6) for share in column.form.components.share_K]
        for column in joining.columns
        if column.form.components is not None
    }
    return {"explained_variance": shares} if shares else {}


def components_of(request: FeaturesOptions, table: EntityTable, client: Client) -> Components | None:
    """Compute the principal components of a type, in the order of its partitions."""
    if request.components is None:
        return None
    waiting: dict[int, Moments | None] = {}
    total: Moments | None = None
    num_added = 0

    def add(part: tuple[int, Moments | None]) -> None:
        nonlocal total, num_added
        waiting[part[0]] = part[1]
        while num_added in waiting:
            moments = waiting.pop(num_added)
            num_added += 1
            if moments is not None:
                total = moments if total is None else total.merged(moments)

    tasks = [(table, partition) for partition in range(len(table.parts))]
    run_tasks(client, moments_of_partition, tasks, description="components", unit="partitions", keep=add)
    if total is None:
        raise ConfigError(f"--components: expected vectors of {table.entity_type!r}, found none")
    return Components.of(total, request.components)


def similar_of(request: FeaturesOptions, table: EntityTable, client: Client) -> Similar | None:
    """Read the ids to compare with, and their vectors."""
    if request.similar_to is None:
        return None
    uri, names = request.similar_to, dict[str, None]()
    for batch in given.iter_ids(uri):
        names.update(dict.fromkeys(batch["id"].to_pylist()))
        if len(names) > MOST_SIMILAR + 1:  # the first may be a header
            break
    ids = list(names)
    arguments = [(table, pa.array(ids, pa.string()))]
    numbers, vectors_QD = run_tasks(client, find_vectors, arguments, description="finding the ids")[0]
    if given.may_have_header(uri) and numbers[0] == UNKNOWN:
        ids, numbers, vectors_QD = ids[1:], numbers[1:], vectors_QD[1:]
    if not 0 < len(ids) <= MOST_SIMILAR:
        count = f"at least {len(ids)}" if ids else "none"
        raise ConfigError(f"--similar-to {uri}: expected 1 to {MOST_SIMILAR} ids, found {count}")
    unknown = [name for name, number in zip(ids, numbers.tolist(), strict=True) if number == UNKNOWN]
    if unknown:
        found = f"{len(unknown)} others: {quoted(unknown[:_SHOWN])}"
        raise ConfigError(f"--similar-to {uri}: expected ids of {table.entity_type!r}, found {found}")
    return Similar(ids, vectors_QD)


def folded_parts(folder: str, entity_type: str, dimension: int) -> list[str]:
    """Files of folded ids of a type."""
    uri = storage.join(folder, entity_type)
    files = sorted(entry.uri for entry in storage.list_dir(uri) if remapped.is_part(entry.uri))
    if files and (length := remapped.shape_of(folder, entity_type, 0)[1]) != dimension:
        raise ConfigError(
            f"--fold-in {folder}: expected vectors of {entity_type!r} of length {dimension}, found {length}; "
            "give the result of `graphmill fold-in` with this run"
        )
    return files
