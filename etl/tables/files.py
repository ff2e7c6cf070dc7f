"""Finds the files that the paths of a table's configuration name."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from etl.tables.data_file import DataFile, plain_file
from etl.tables.filters import described, left_for_rows
from etl.tables.lake import logs
from etl.tables.lake.opened import snapshot_at
from etl.tables.lake.snapshot import Snapshot
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig, Filters, Table, TableConfig
from graphmill.errors import NotFoundError, RawTableError
from graphmill.storage import checksums

_READERS = 8


@dataclass(frozen=True)
class TableFiles:
    """Plain files, and snapshots of tables that have a log, that the paths of a table name."""

    label: str
    """Name of the table in figures."""
    table: Table
    plain: tuple[DataFile, ...]
    """Files with rows that may pass the filters."""
    snapshots: tuple[Snapshot, ...]
    missing: tuple[str, ...]
    """Paths that name no file and are skipped."""
    unfinished: tuple[str, ...]
    """Files and folders of writers at work, which are left out."""
    twice: tuple[str, ...]
    """Symbolic links to files that are there under another name, which are left out."""

    def describe(self) -> list[dict[str, Any]]:
        """Describe the snapshots for a fingerprint, as JSON types; no data file is listed or read."""
        return [{"uri": snapshot.places.root, "snapshot": snapshot.name} for snapshot in self.snapshots]

    def files(self) -> list[DataFile]:
        """List the files with rows that may pass the filters, sorted by URI, each once."""
        of_logs = [file for snapshot in self.snapshots for file in snapshot.files(self.table.filters)]
        by_uri = {file.uri: file for file in (*of_logs, *self.plain)}
        return [by_uri[uri] for uri in sorted(by_uri)]


def find_all(config: Config) -> list[TableFiles]:
    """Find what the paths of all tables name: those of edges, then those of entities; see `find_files`."""
    etl = config.section(EtlConfig)
    inputs = [
        *(find_files(config, table, f"tables[{number}]") for number, table in enumerate(etl.tables)),
        *(find_files(config, table, f"entities[{number}]") for number, table in enumerate(etl.entities)),
    ]
    return _with_checksums(inputs) if etl.compare_files == "content" else inputs


def _with_checksums(inputs: Sequence[TableFiles]) -> list[TableFiles]:
    uris = list({file.uri: None for of_table in inputs for file in of_table.plain})
    with ThreadPoolExecutor(_READERS) as pool:
        of_uri = dict(zip(uris, pool.map(checksums.of_file, uris), strict=True))
    return [
        replace(of_table, plain=tuple(replace(file, checksum=of_uri[file.uri]) for file in of_table.plain))
        for of_table in inputs
    ]


def find_files(config: Config, table: Table, label: str = "") -> TableFiles:
    """Find what the paths of a table name; files of snapshots are listed later.

    In a folder, names that begin with `_` or `.` are skipped, and so are the outputs of this run and what
    writers have not finished.
    """
    plain_files: list[DataFile] = []
    snapshots: list[Snapshot] = []
    missing: list[str] = []
    unfinished: list[str] = []
    waiting: list[str] = []
    plain_folders: set[str] = set()
    allowed = [_named(config, path)[0] for path in table.data_path]
    for path in table.path:
        uri, patterns = _named(config, path)
        root = storage.join(uri, *patterns)
        if snapshot := snapshot_at(root, table, allowed, is_pattern=bool(patterns)):
            snapshots.append(snapshot)
            continue
        files, at_work = files_at(uri, patterns, _written_below(config, uri), plain_folders)
        plain_files += files
        unfinished += at_work
        if not files:
            missing.append(root)
            waiting += at_work
    skips = table.missing_paths == "skip"
    may_be_empty = skips and isinstance(table, TableConfig) and table.removes
    if missing and not (skips and (plain_files or snapshots or may_be_empty)):
        raise _none_there(config, table, missing, waiting)
    plain, twice = _without_links(plain_files)
    chosen = chosen_by_path(table.filters, plain)
    if plain and not (chosen or snapshots or may_be_empty):
        raise RawTableError(
            f"{plain[0].uri}: by the columns in their paths, none of {len(plain)} files has rows that pass "
            f"{described(table.filters)}; correct the filters of the table"
        )
    left_out = tuple(dict.fromkeys(unfinished))
    return TableFiles(label, table, tuple(chosen), tuple(snapshots), tuple(missing), left_out, tuple(twice))


def _without_links(files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
    """Return files sorted by URI, each once, and the symbolic links that name one of them again."""
    by_uri = {file.uri: file for file in files}
    names: dict[str, list[str]] = {}
    for uri in sorted(by_uri):
        names.setdefault(storage.resolved(uri), []).append(uri)
    kept = {
        min(uris, key=lambda uri: storage.local_path(uri) not in (None, true)) for true, uris in names.items()
    }
    return [by_uri[uri] for uri in sorted(kept)], sorted(by_uri.keys() - kept)


def _none_there(
    config: Config, table: Table, missing: Sequence[str], unfinished: Sequence[str]
) -> NotFoundError:
    if unfinished:
        return NotFoundError(
            f"{missing[0]}: no finished file there to read rows from; writers are at work on "
            f"{', '.join(unfinished[:10])}: wait for them, or correct the path"
        )
    if len(table.path) == 1:
        start = f"relative paths start at input, which is {config.input or 'not set'}"
        hint = "correct the path" if storage.is_absolute(table.path[0]) else start
        return NotFoundError(f"{missing[0]}: no file there to read rows from; {hint}")
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    return NotFoundError(
        f"{', '.join(missing[:10])}{more}: no file there to read rows from; write them; the table's "
        "missing_paths: skip goes on without some of them, not without all"
    )


def chosen_by_path(filters: Filters, files: Sequence[DataFile]) -> list[DataFile]:
    """Select plain files by the columns in their paths, with the conditions that remain for the rows."""
    if not filters:
        return list(files)
    names = dict.fromkeys(name for file in files for name in file.values)
    shared = {
        name: pa.chunked_array([pa.array([file.values.get(name) for file in files], pa.string())])
        for name in names
        if all(name in file.values for file in files)
    }
    left = left_for_rows(filters, shared, {}, len(files))
    return [
        replace(file, filters=of_rows)
        for file, of_rows in zip(files, left, strict=True)
        if of_rows is not None
    ]


def table_roots(config: Config) -> list[str]:
    """List the files and folders of all tables; for a glob pattern, the folder that it begins with.

    A table of a catalog has a name in the form of a URI, for lineage.
    """
    if not config.etl:
        return []
    etl = config.section(EtlConfig)
    roots = [
        _named(config, path)[0] if table.catalog is None else storage.join(f"iceberg://{table.catalog}", path)
        for table in (*etl.tables, *etl.entities)
        for path in table.path
    ]
    return list(dict.fromkeys(roots))


def _named(config: Config, path: str) -> tuple[str, list[str]]:
    return storage.split_pattern(path, config.input or "")


def _written_below(config: Config, uri: str) -> list[str]:
    written = [config.output, config.entity_path, config.split_root, config.checkpoint_path]
    written.append(config.embedding_path)
    if config.etl:
        etl = config.section(EtlConfig)
        written += [etl.quarantine_path, *map(config.split_path, etl.splits())]
    return [place for root in written if root for place in storage.path_below(uri, root)]


def files_at(
    uri: str, patterns: Sequence[str] = (), skipped: Sequence[str] = (), plain: set[str] | None = None
) -> tuple[list[DataFile], list[str]]:
    """Return the files that a path names but those in `skipped`, and unfinished ones, which are left out.

    `plain` are folders that are known to have no log; those above the path are added.
    """
    logs.refuse_around(uri, set() if plain is None else plain)
    entries, unfinished = storage.files_at(uri, patterns, logs.list_plain, logs.list_below)
    within = tuple(f"{place}/" for place in skipped)
    kept = [entry for entry in entries if not f"{entry.uri}/".startswith(within)]
    return [plain_file(entry.uri, entry) for entry in kept], unfinished
