"""Refuses tables of Delta Lake, Apache Iceberg and Apache Hudi, which are more than their files.

A log beside the files says which files belong to the table, and which rows have been deleted. Reading all
files would return deleted rows.

    {table}/_delta_log/                     Delta Lake
    {table}/metadata/*.metadata.json        Iceberg, of a catalogue in files
    {table}/.hoodie/                        Hudi
"""

import re
from collections.abc import Iterable
from contextlib import suppress

from graphmill import storage
from graphmill.errors import RawTableError, StorageError

_LOGS = {
    "Delta Lake": re.compile(r"(.*)/_delta_log(/.*)?"),
    "Iceberg": re.compile(r"(.*)/metadata/[^/]+\.metadata\.json(\.gz)?"),
    "Hudi": re.compile(r"(.*)/\.hoodie(/.*)?"),
}
_SPARK = 'spark.read.format("{format}").load("{uri}").write.parquet("FOLDER")'
_READERS = {
    "Delta Lake": 'deltalake: pq.write_table(DeltaTable("{uri}").to_pyarrow_table(), "x.parquet"); Spark: ',
    "Iceberg": 'pyiceberg: catalog.load_table("NAME").scan().to_arrow(), written by pq.write_table; Spark: ',
    "Hudi": "Spark: ",
}


def refuse(listed: Iterable[storage.FileStatus]) -> None:
    """Refuse a listing of files that contains a table with a log.

    Raises:
        RawTableError: the listing contains a table with a log.
    """
    for entry in listed:
        for name, log in _LOGS.items():
            if found := log.fullmatch(entry.uri):
                raise RawTableError(_refusal(name, found[1]))


def list_plain(uri: str) -> list[storage.FileStatus]:
    """List the entries of a folder.

    Raises:
        RawTableError: the folder is a table with a log.
    """
    entries = storage.list_dir(uri, hidden=True)
    refuse(entries)
    if any(entry.is_dir and storage.name(entry.uri) == "metadata" for entry in entries):
        refuse(storage.list_dir(storage.join(uri, "metadata")))
    return entries


def refuse_around(uri: str) -> None:
    """Refuse a table with a log, and files and folders inside one.

    Raises:
        RawTableError: the URI is a table with a log, or lies in one.
    """
    _refuse_at(uri)
    while (above := storage.parent(uri)) != uri and storage.is_absolute(above):
        uri = above
        with suppress(StorageError):  # a folder further up may not be readable
            _refuse_at(uri)


def _refuse_at(uri: str) -> None:
    beside = [storage.status(storage.join(uri, name)) for name in ("_delta_log", ".hoodie")]
    refuse([*filter(None, beside), *storage.list_dir(storage.join(uri, "metadata"))])


def _refusal(name: str, uri: str) -> str:
    return (
        f"{uri}: expected plain files, found a table of {name}, whose log says which files and rows count; "
        f"write its present rows to plain parquet, and read that. "
        + (_READERS[name] + _SPARK).format(uri=uri, format=name.partition(" ")[0].lower())
    )
