"""From the paths that a table's configuration names to its files, and what kind of files they are."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote

from etl.config import FilesConfig
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

    Raises:
        NotFoundError: a path names no file.
    """
    found: set[str] = set()
    for path in table.path:
        root = storage.join(config.input, path) if config.input else path
        files = list(_files_at(storage.absolute(root)))
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


def _files_at(uri: str) -> Iterator[str]:
    status = storage.status(uri)
    if status is None:
        for match in _matches(uri):
            yield from _files_at(match)
    elif status.is_dir:
        entries = storage.list_dir(uri, recursive=True)
        yield from (e.uri for e in entries if not e.is_dir and not _is_note(e.uri[len(uri) :]))
    else:
        yield uri


def _is_note(path: str) -> bool:
    """Whether Hadoop's tools left it beside the rows: `_SUCCESS`, `_metadata`, all below `_temporary`."""
    return any(part.startswith("_") and "=" not in part for part in path.split("/"))


def _matches(pattern: str) -> list[str]:
    """What the glob pattern matches, component by component: `*`, `?` and `[...]` stay within one."""
    parts = pattern.rstrip("/").split("/")
    magic = [number for number, part in enumerate(parts) if set(part) & set("*?[")]
    if not magic:
        return []
    roots = ["/".join(parts[: magic[0]]) or "/"]
    for part in parts[magic[0] :]:
        entries = [entry.uri for root in roots for entry in storage.list_dir(root)]
        roots = [uri for uri in entries if fnmatchcase(storage.name(uri), part)]
    return roots
