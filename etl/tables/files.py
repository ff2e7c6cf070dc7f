"""From the paths that a table's configuration names to its files, and what kind of files they are."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote

from etl.config import EtlConfig, FilesConfig
from etl.tables import formats
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import NotFoundError, RawTableError

FileFormat = Literal["parquet", "csv", "orc", "json"]

_FORMATS: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".orc": "orc",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_TAB_SUFFIXES = (".tsv", ".tab", ".txt")
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def files_of(config: Config, table: FilesConfig) -> list[str]:
    """URIs of the table's files, sorted, each once, whatever way its paths name them.

    Neither names that begin with `_` or `.` count in a folder, nor what this run writes.

    Raises:
        NotFoundError: a path names no file.
        RawTableError: a path lies in a table of Delta Lake, Iceberg or Hudi.
    """
    found: set[str] = set()
    for path in table.path:
        root = _place(config, path)
        fixed = _fixed(root)
        formats.refuse_around(fixed)
        files = list(_files_at(root, _written_below(config, fixed)))
        if not files:
            raise NotFoundError(
                f"{root}: no file there to read rows from (path {path!r} of a table); relative paths "
                f"start at input, which is {config.input or 'not set'}"
            )
        found.update(files)
    return sorted(found)


def format_of(uri: str, table: FilesConfig) -> FileFormat:
    """The file's format: as configured, else by its suffix.

    Raises:
        RawTableError: the suffix tells nothing.
    """
    if table.format != "auto":
        return table.format
    suffix, _ = suffixes_of(uri)
    if suffix not in _FORMATS:
        raise RawTableError(
            f"{uri}: its name does not tell its format (known: {', '.join(_FORMATS)}, text and JSON also "
            f"with {', '.join(CODECS)}); set the table's format: parquet, csv, orc or json"
        )
    return _FORMATS[suffix]


def suffixes_of(uri: str) -> tuple[str, str]:
    """The suffix that names the format, and the one that names the compression (`""`: none)."""
    stem, codec = _split_suffix(storage.name(uri))
    if codec not in CODECS:
        return codec, ""
    return _split_suffix(stem)[1], codec


def delimiter_of(uri: str, table: FilesConfig) -> str:
    """What separates the fields of a text file."""
    return table.delimiter or ("\t" if suffixes_of(uri)[0] in _TAB_SUFFIXES else ",")


def quoting_of(uri: str, table: FilesConfig) -> bool:
    """Whether a double quote opens a quoted field; in tab-separated triples it is mostly part of a name."""
    return delimiter_of(uri, table) != "\t" if table.quoting is None else table.quoting


def path_values(uri: str) -> dict[str, str | None]:
    """The columns that Hive's folders (`key=value`) give to all rows of a file."""
    folders = [part.partition("=") for part in uri.split("/")[:-1] if "=" in part]
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, _, value in folders if key}


def _split_suffix(name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix.lower()) if dot else (name, "")


def table_roots(config: Config) -> list[str]:
    """The files and folders that tables are looked for in: of a pattern, the folder that it begins with.

    Raises:
        ConfigError: the section `etl` is wrong.
    """
    if not config.etl:
        return []
    etl = config.section(EtlConfig)
    roots = (_fixed(_place(config, path)) for table in (*etl.tables, *etl.entities) for path in table.path)
    return list(dict.fromkeys(roots))


def _place(config: Config, path: str) -> str:
    return storage.absolute(storage.join(config.input, path) if config.input else path)


def _fixed(uri: str) -> str:
    parts = uri.rstrip("/").split("/")
    magic = _magic(parts)
    return "/".join(parts[: magic[0]]) or "/" if magic and not storage.exists(uri) else uri


def _magic(parts: list[str]) -> list[int]:
    """Numbers of the components that are patterns."""
    return [number for number, part in enumerate(parts) if set(part) & set("*?[")]


def _written_below(config: Config, uri: str) -> list[str]:
    """The places below the folder `uri` that this run writes, as a listing of it calls them."""
    written = [config.output, config.entity_path, config.edge_root, config.checkpoint_path]
    written += [config.embedding_path, config.section(EtlConfig).quarantine_path]
    return [place for root in written if root for place in storage.path_below(uri, root)]


def _files_at(uri: str, skipped: Sequence[str]) -> Iterator[str]:
    """The file, or the files of the folder; of a pattern those of all that it matches."""
    status = storage.status(uri)
    if status is None:
        for match in _matches(uri):
            if not _is_within(match, skipped):
                yield from _files_at(match, skipped)
    elif status.is_dir:
        entries = storage.list_dir(uri, recursive=True, hidden=True)
        formats.refuse(entries)
        for entry in entries:
            below = entry.uri[len(uri.rstrip("/")) :]
            if not (entry.is_dir or _is_note(below) or _is_within(entry.uri, skipped)):
                yield entry.uri
    else:
        yield uri


def _is_within(uri: str, places: Sequence[str]) -> bool:
    return any((uri + "/").startswith(place + "/") for place in places)


def _is_note(path: str) -> bool:
    """Whether somebody left it beside the rows: `_SUCCESS`, all below `_temporary`, what is hidden."""
    parts = path.split("/")
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _matches(pattern: str) -> list[str]:
    """Files that the glob pattern matches, component by component: `*`, `?` and `[...]` stay within one.

    A name that begins with `_` is matched by a pattern that does, a hidden one by none.
    """
    parts = pattern.rstrip("/").split("/")
    magic = _magic(parts)
    if not magic:
        return []
    folders = ["/".join(parts[: magic[0]]) or "/"]
    found: list[storage.FileStatus] = []
    for part in parts[magic[0] :]:
        listed = [entry for folder in folders for entry in formats.list_plain(folder)]
        found = [entry for entry in listed if _is_matched(storage.name(entry.uri), part)]
        folders = [entry.uri for entry in found if entry.is_dir]
    return [entry.uri for entry in found]


def _is_matched(name: str, part: str) -> bool:
    return fnmatchcase(name, part) and (part.startswith("_") or not _is_note(name))
