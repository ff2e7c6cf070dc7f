"""Finds the files that the paths of a table's configuration name."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

from etl.config import EtlConfig, FilesConfig
from etl.tables import lakehouse
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import NotFoundError

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def files_of(config: Config, table: FilesConfig) -> list[str]:
    """List the URIs of the table's files, sorted, each once.

    In a folder, names that begin with `_` or `.` are skipped, and so are the outputs of this run.

    Raises:
        NotFoundError: a path names no file.
        RawTableError: a path lies in a table of Delta Lake, Iceberg or Hudi.
    """
    found: set[str] = set()
    for path in table.path:
        root = _place(config, path)
        fixed = _fixed(root)
        lakehouse.refuse_around(fixed)
        files = list(files_at(root, _written_below(config, fixed)))
        if not files:
            raise NotFoundError(
                f"{root}: no file there to read rows from (path {path!r} of a table); relative paths "
                f"start at input, which is {config.input or 'not set'}"
            )
        found.update(files)
    return sorted(found)


def path_values(uri: str) -> dict[str, str | None]:
    """Return the columns that Hive folders (`key=value`) give to all rows of a file."""
    folders = [part.partition("=") for part in uri.split("/")[:-1] if "=" in part]
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, _, value in folders if key}


def table_roots(config: Config) -> list[str]:
    """List the files and folders of all tables; for a glob pattern, the folder that it begins with."""
    if not config.etl:
        return []
    etl = config.section(EtlConfig)
    roots = (_fixed(_place(config, path)) for table in (*etl.tables, *etl.entities) for path in table.path)
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
    etl = config.section(EtlConfig)
    written = [config.output, config.entity_path, config.split_root, config.checkpoint_path]
    written += [config.embedding_path, etl.quarantine_path, *map(config.split_path, etl.splits())]
    return [place for root in written if root for place in storage.path_below(uri, root)]


def files_at(uri: str, skipped: Sequence[str] = ()) -> Iterator[str]:
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
        lakehouse.refuse(entries)
        for entry in entries:
            below = entry.uri[len(uri.rstrip("/")) :]
            if not (entry.is_dir or _is_note(below) or _is_within(entry.uri, skipped)):
                yield entry.uri
    else:
        yield uri


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
        listed = [entry for folder in folders for entry in lakehouse.list_plain(folder)]
        found = [entry for entry in listed if _is_matched(storage.name(entry.uri), part)]
        folders = [entry.uri for entry in found if entry.is_dir]
    return [entry.uri for entry in found]


def _is_matched(name: str, part: str) -> bool:
    return fnmatchcase(name, part) and (part.startswith("_") or not _is_note(name))
