"""Recognises tables of Delta Lake, Apache Iceberg and Apache Hudi, which are more than their files.

A log beside the files says which files belong to the table, and which rows have been deleted. Reading all
files would return deleted rows: they are refused, unless a path names the table itself.

    {table}/_delta_log/                     Delta Lake
    {table}/metadata/*.metadata.json        Iceberg, with or without a catalog
    {table}/.hoodie/                        Hudi
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from graphmill import storage
from graphmill.errors import RawTableError, StorageError

Log = Literal["Delta Lake", "Iceberg", "Hudi"]

METADATA = re.compile(r"(.*)/metadata/[^/]+\.metadata\.json(\.gz)?")

_LOGS: dict[Log, re.Pattern[str]] = {
    "Delta Lake": re.compile(r"(.*)/_delta_log(/.*)?"),
    "Iceberg": METADATA,
    "Hudi": re.compile(r"(.*)/\.hoodie(/.*)?"),
}
_SNAPSHOT = (
    "set the path of the table to {uri}: its newest snapshot is read, or the one that `snapshot` names, and "
    "`filters` choose rows"
)
_SPARK = (
    'write its present rows to plain parquet, and read that: spark.read.format("hudi").load("{uri}")'
    '.write.parquet("FOLDER")'
)


def log_at(uri: str) -> Log | None:
    """Return the kind of log that a folder itself has."""
    beside = [storage.status(storage.join(uri, name)) for name in ("_delta_log", ".hoodie")]
    found = _found([*filter(None, beside), *storage.list_dir(storage.join(uri, "metadata"))])
    return found[0] if found else None


def refuse_listed(listed: Iterable[storage.FileStatus]) -> None:
    """Refuse a listing of files that contains a table with a log.

    Raises:
        RawTableError: the listing contains a table with a log.
    """
    if found := _found(listed):
        raise RawTableError(_refusal(*found))


def list_plain(uri: str) -> list[storage.FileStatus]:
    """List the entries of a folder.

    Raises:
        RawTableError: the folder is a table with a log.
    """
    entries = storage.list_dir(uri, hidden=True)
    refuse_listed(entries)
    if any(entry.is_dir and storage.name(entry.uri) == "metadata" for entry in entries):
        refuse(uri)
    return entries


def refuse(uri: str) -> None:
    """Refuse a folder that has a log itself.

    Raises:
        RawTableError: the folder is a table with a log.
    """
    if name := log_at(uri):
        raise RawTableError(_refusal(name, uri))


def refuse_around(uri: str, plain: set[str]) -> None:
    """Refuse files and folders inside a table with a log; add the folders above to those known as `plain`.

    Raises:
        RawTableError: the URI lies in a table with a log.
    """
    while (above := storage.parent(uri)) != uri and storage.is_absolute(above):
        uri = above
        if uri in plain:
            return
        plain.add(uri)
        with suppress(StorageError):  # a folder further up may not be readable
            refuse(uri)


def _found(listed: Iterable[storage.FileStatus]) -> tuple[Log, str] | None:
    for entry in listed:
        for name, log in _LOGS.items():
            if found := log.fullmatch(entry.uri):
                return name, found[1]
    return None


def _refusal(name: Log, uri: str) -> str:
    remedy = (_SPARK if name == "Hudi" else _SNAPSHOT).format(uri=uri)
    return (
        f"{uri}: expected plain files, found a table of {name}, whose log says which files and rows count; "
        f"{remedy}"
    )
