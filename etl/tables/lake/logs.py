"""Recognises tables that are more than their files: a log or folder names say which files and rows count.

Reading all files would return deleted, replaced or unfinished rows: they are refused, unless a path names a
table that we read.

    {table}/_delta_log/                             Delta Lake
    {table}/metadata/*.metadata.json                Iceberg, with or without a catalog
    {table}/.hoodie/                                Hudi
    {table}/schema/schema-0, snapshot/snapshot-1    Paimon
    {table}/ducklake-{uuid}.parquet                 DuckLake, with a catalog in a database
    {table}/_spark_metadata/                        sink of Spark's Structured Streaming
    {table}[/{partition}]/base_0000002/, delta_0000003_0000003[_0000]/, delete_delta_...    Hive, managed
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from graphmill import storage
from graphmill.errors import RawTableError, StorageError

METADATA = re.compile(r"(.*)/metadata/[^/]+\.metadata\.json(\.gz)?")

_SNAPSHOT = (
    "set the path of the table to {uri}: its newest snapshot is read, or the one that `snapshot` names, and "
    "`filters` choose rows"
)
_SPARK = (
    "write its present rows to plain parquet, and read that: "
    'spark.read.format("%s").load("{uri}").write.parquet("FOLDER")'
)
_HIVE = (
    "transactions may have been aborted, which only the metastore knows. Write its present rows to plain "
    "files, in Hive: CREATE EXTERNAL TABLE plain (COLUMNS) STORED AS PARQUET LOCATION 'FOLDER'; INSERT "
    "OVERWRITE TABLE plain SELECT COLUMNS FROM THE_TABLE"
)


@dataclass(frozen=True)
class _Kind:
    name: str
    sign: re.Pattern[str]
    """Matches URIs in such a table; group 1 is its folder."""
    remedy: str
    beside: str = ""
    """A name in the table's folder that tells it."""


_KINDS = (
    _Kind("Delta Lake", re.compile(r"(.*)/_delta_log(/.*)?"), _SNAPSHOT, "_delta_log"),
    _Kind("Iceberg", METADATA, _SNAPSHOT),
    _Kind("Hudi", re.compile(r"(.*)/\.hoodie(/.*)?"), _SPARK % "hudi", ".hoodie"),
    _Kind(
        "Paimon",
        re.compile(r"(.*)/(schema/schema|snapshot/snapshot)-\d+"),
        _SPARK % "paimon",
        "schema/schema-0",
    ),
    _Kind(
        "DuckLake",
        re.compile(r"(.*)/ducklake-[0-9a-f-]{36}(-delete)?\.parquet"),
        "write its present rows to plain parquet, in DuckDB: COPY (FROM ITS_NAME) TO 'FOLDER/part-0.parquet'",
    ),
    _Kind(
        "Spark's Structured Streaming",
        re.compile(r"(.*)/_spark_metadata(/.*)?"),
        _SPARK % "parquet",
        "_spark_metadata",
    ),
    _Kind(
        "Hive (managed, with transactions)",
        re.compile(r"(.*?)/(base_\d{7,}|(delete_)?delta_\d{7,}_\d{7,}(_\d{4,})?)(_v\d+)?(/.*)?"),
        _HIVE,
    ),
)

_MARKS = {
    b"iceberg.schema": "Iceberg",
    b"hoodie_min_record_key": "Hudi",
    b"org.apache.hudi.bloomfilter": "Hudi",
}
"""Keys in the footers of parquet files that only writers of such tables write."""


def refuse_marked(uri: str, footer: Mapping[bytes, bytes] | None) -> None:
    """Refuse a file whose footer marks it as part of a table with a log, which its path does not show."""
    mark = next((mark for mark in _MARKS if mark in (footer or {})), None)
    if mark is not None:
        kind = next(kind for kind in _KINDS if kind.name == _MARKS[mark])
        raise RawTableError(
            f"{uri}: expected a plain file, found one of a table of {kind.name} ({mark.decode()} in its "
            f"footer), whose log says which files and rows count; {kind.remedy.format(uri='ITS_FOLDER')}"
        )


def log_at(uri: str) -> str | None:
    """Return the kind of table whose log a folder itself has."""
    table = _table_of(_signs(uri))
    return table[0].name if table else None


def list_below(uri: str) -> list[storage.FileStatus]:
    """List all files and folders below a folder; refuse a table that is more than its files."""
    entries = storage.list_dir(uri, recursive=True, hidden=True)
    _refuse(entry.uri for entry in entries)
    return entries


def list_plain(uri: str) -> list[storage.FileStatus]:
    """List the entries of a folder; refuse a table that is more than its files."""
    entries = storage.list_dir(uri, hidden=True)
    _refuse(entry.uri for entry in entries)
    if {"metadata", "schema", "snapshot"} & {storage.name(entry.uri) for entry in entries if entry.is_dir}:
        refuse(uri)
    return entries


def refuse(uri: str) -> None:
    """Refuse a folder that has a log itself: it is a table that is more than its files."""
    _refuse(_signs(uri))


def refuse_around(uri: str, plain: set[str]) -> None:
    """Refuse files and folders inside a table with a log; add the folders above to those known as `plain`."""
    for inside in dict.fromkeys([uri, storage.resolved(uri)]):
        _refuse([inside])
        while (above := storage.parent(inside)) != inside and storage.is_absolute(above):
            inside = above
            if inside in plain:
                break
            plain.add(inside)
            with suppress(StorageError):  # a folder further up may not be readable
                refuse(inside)


def _signs(uri: str) -> list[str]:
    beside = [storage.join(uri, kind.beside) for kind in _KINDS if kind.beside]
    metadata = storage.list_dir(storage.join(uri, "metadata"))
    return [*filter(storage.exists, beside), *(entry.uri for entry in metadata)]


def _table_of(uris: Iterable[str]) -> tuple[_Kind, str] | None:
    for uri in uris:
        for kind in _KINDS:
            if match := kind.sign.fullmatch(uri):
                return kind, match[1]
    return None


def _refuse(uris: Iterable[str]) -> None:
    if known := _table_of(uris):
        kind, table = known
        raise RawTableError(
            f"{table}: expected plain files, found a table of {kind.name}, which is more than its files: its "
            f"log or its folders say which files and rows count; {kind.remedy.format(uri=table)}"
        )
