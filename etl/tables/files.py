"""Finds the files that the paths of a table's configuration name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from etl.config import EtlConfig, Filters, Table
from etl.tables.data_file import DataFile, plain_file
from etl.tables.filters import described, left_for_rows
from etl.tables.lake import logs
from etl.tables.lake.opened import place_in_catalog, snapshot_at
from etl.tables.lake.snapshot import Snapshot
from etl.tables.lake.snapshot import described as described_snapshot
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import NotFoundError, RawTableError


@dataclass(frozen=True)
class TableFiles:
    """Plain files, and snapshots of tables that have a log, that the paths of a table name."""

    label: str
    """Name of the table in figures."""
    table: Table
    plain: tuple[DataFile, ...]
    """Files with rows that may pass the filters."""
    snapshots: tuple[Snapshot, ...] = ()
    missing: tuple[str, ...] = ()
    """Paths that name no file and are skipped."""

    def describe(self) -> list[dict[str, Any]]:
        """Describe the snapshots for a fingerprint."""
        return [described_snapshot(snapshot) for snapshot in self.snapshots]

    def files(self) -> list[DataFile]:
        """List the files with rows that may pass the filters, sorted by URI, each once.

        Raises:
            RawTableError: a log cannot be read, or no file has such rows.
            FormatError: a log names a file outside the table's folder.
        """
        of_logs = [each for snapshot in self.snapshots for each in snapshot.files(self.table.filters)]
        found = {each.uri: each for each in (*of_logs, *self.plain)}
        return [found[uri] for uri in sorted(found)]


def find_all(config: Config) -> list[TableFiles]:
    """Find what the paths of all tables name: those of edges, then those of entities; see `find_files`."""
    etl = config.section(EtlConfig)
    return [
        *(find_files(config, table, f"tables[{number}]") for number, table in enumerate(etl.tables)),
        *(find_files(config, table, f"entities[{number}]") for number, table in enumerate(etl.entities)),
    ]


def find_files(config: Config, table: Table, label: str = "") -> TableFiles:
    """Find what the paths of a table name; files of snapshots are listed later.

    In a folder, names that begin with `_` or `.` are skipped, and so are the outputs of this run.

    Raises:
        NotFoundError: a path names no file.
        RawTableError: a path lies in a table of Delta Lake, Iceberg or Hudi, or no file passes the filters.
    """
    found: dict[str, DataFile] = {}
    snapshots: list[Snapshot] = []
    missing: list[str] = []
    plain_folders: set[str] = set()
    allowed = [_place(config, path) for path in table.data_path]
    for path in table.path:
        root = _place(config, path)
        fixed = _fixed(root)
        if snapshot := snapshot_at(root, table, allowed, is_pattern=fixed != root):
            snapshots.append(snapshot)
            continue
        logs.refuse_around(fixed, plain_folders)
        files = {each.uri: each for each in files_at(root, _written_below(config, fixed))}
        if not files:
            missing.append(root)
        found |= files
    if missing and (table.missing_paths == "fail" or not (found or snapshots)):
        raise _none_there(config, table, missing)
    plain = [found[uri] for uri in sorted(found)]
    chosen = chosen_by_path(table.filters, plain)
    if plain and not (chosen or snapshots):
        raise RawTableError(
            f"{plain[0].uri}: by the columns in their paths, none of {len(plain)} files has rows that pass "
            f"{described(table.filters)}; correct the filters of the table"
        )
    return TableFiles(label, table, tuple(chosen), tuple(snapshots), tuple(missing))


def _none_there(config: Config, table: Table, missing: Sequence[str]) -> NotFoundError:
    if len(table.path) == 1:
        return NotFoundError(
            f"{missing[0]}: no file there to read rows from; relative paths start at input, which is "
            f"{config.input or 'not set'}"
        )
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    return NotFoundError(
        f"{', '.join(missing[:10])}{more}: no file there to read rows from; write them, or set the table's "
        "missing_paths: skip to go on without them"
    )


def chosen_by_path(filters: Filters, files: Sequence[DataFile]) -> list[DataFile]:
    """Select plain files by the columns in their paths, with the conditions that remain for the rows."""
    if not filters:
        return list(files)
    names = dict.fromkeys(name for each in files for name in each.values)
    shared = {
        name: pa.chunked_array([pa.array([each.values.get(name) for each in files], pa.string())])
        for name in names
        if all(name in each.values for each in files)
    }
    left = left_for_rows(filters, shared, {}, len(files))
    return [
        replace(each, filters=of_rows)
        for each, of_rows in zip(files, left, strict=True)
        if of_rows is not None
    ]


def table_roots(config: Config) -> list[str]:
    """List the files and folders of all tables; for a glob pattern, the folder that it begins with."""
    if not config.etl:
        return []
    etl = config.section(EtlConfig)
    roots = [
        _fixed(_place(config, path)) if table.catalog is None else place_in_catalog(table)
        for table in (*etl.tables, *etl.entities)
        for path in table.path
    ]
    return list(dict.fromkeys(roots))


def _place(config: Config, path: str) -> str:
    return storage.absolute(storage.join(config.input, path) if config.input else path)


def _fixed(uri: str) -> str:
    folder, patterns = _split(uri)
    return uri if not patterns or storage.exists(uri) else folder


def _split(uri: str) -> tuple[str, list[str]]:
    """Return the folder that a glob pattern begins with, and its components from the first pattern on."""
    parts = uri.rstrip("/").split("/")
    first = next((number for number, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    return "/".join(parts[:first]) or "/", parts[first:]


def _written_below(config: Config, uri: str) -> list[str]:
    """List the folders below `uri` that this run writes."""
    written = [config.output, config.entity_path, config.split_root, config.checkpoint_path]
    written.append(config.embedding_path)
    if config.etl:
        etl = config.section(EtlConfig)
        written += [etl.quarantine_path, *map(config.split_path, etl.splits())]
    return [place for root in written if root for place in storage.path_below(uri, root)]


def files_at(uri: str, skipped: Sequence[str] = ()) -> Iterator[DataFile]:
    """List a file, the files of a folder, or the files that a pattern matches; but none in `skipped`.

    Raises:
        RawTableError: the folder is a table of Delta Lake, Iceberg or Hudi.
    """
    status = storage.status(uri)
    if status is None:
        for match in _matches(uri):
            if not _is_within(match, skipped):
                yield from files_at(match, skipped)
    elif status.is_dir:
        entries = storage.list_dir(uri, recursive=True, hidden=True)
        logs.refuse_listed(entries)
        for entry in entries:
            below = entry.uri[len(uri.rstrip("/")) :]
            if not (entry.is_dir or _is_note(below) or _is_within(entry.uri, skipped)):
                yield plain_file(entry.uri, entry)
    else:
        yield plain_file(uri, status)


def _is_within(uri: str, places: Sequence[str]) -> bool:
    return any((uri + "/").startswith(place + "/") for place in places)


def _is_note(path: str) -> bool:
    """Whether a path is no table file: `_SUCCESS`, files below `_temporary`, hidden files."""
    parts = path.split("/")
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _matches(pattern: str) -> list[str]:
    """List the files that the glob pattern matches; `*`, `?` and `[...]` match within one component.

    Only patterns that begin with `_` match names that do; no pattern matches hidden names.
    """
    folder, patterns = _split(pattern)
    folders = [folder]
    found: list[storage.FileStatus] = []
    for part in patterns:
        listed = [entry for folder in folders for entry in logs.list_plain(folder)]
        found = [entry for entry in listed if _is_matched(storage.name(entry.uri), part)]
        folders = [entry.uri for entry in found if entry.is_dir]
    return [entry.uri for entry in found]


def _is_matched(name: str, part: str) -> bool:
    return fnmatchcase(name, part) and (part.startswith("_") or not _is_note(name))
