"""Snapshots of Delta Lake: the package deltalake replays the log, a copy of which it reads.

    _delta_log/00000000000000000012.json                    commit of version 12
    _delta_log/00000000000000000010.checkpoint.parquet      state of version 10; others have several parts:
    _delta_log/00000000000000000010.checkpoint.{a}.{b}.parquet, or a name with a UUID and _sidecars/*.parquet

Only the newest complete checkpoint up to the version, and the commits after it, are copied to a temporary
folder: deltalake cannot read from HDFS by itself, and so reads every storage alike. It does not say the
deletion vectors: the newest `add` of a file does. Source:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

import base64
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.parquet as pq

from etl.tables.data_file import FIELD_ID, NAMES, DataFile, Deletes
from etl.tables.filters import left_for_rows
from etl.tables.lake.snapshot import Places, imported, marked
from graphmill import storage
from graphmill.config.sections.etl import Filters
from graphmill.errors import FormatError, RawTableError
from graphmill.formats.raw_tables import reading
from graphmill.storage import run_folder

_LOG = "_delta_log"
_SIDECARS = "_sidecars"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_PHYSICAL_NAME, _ID = b"delta.columnMapping.physicalName", b"delta.columnMapping.id"
# Features of a table that decide how it is read, and that are taken care of here or by the package.
_KNOWN = {
    *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    *("typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
}
_VECTOR = pa.struct(
    [
        *(("storageType", pa.string()), ("pathOrInlineDv", pa.string())),
        *(("offset", pa.int64()), ("sizeInBytes", pa.int64())),
    ]
)
_ADD = pa.field("add", pa.struct([("path", pa.string()), ("deletionVector", _VECTOR)]))
_SIDECAR = pa.field("sidecar", pa.struct([("path", pa.string())]))
_BLOCK_BYTES = 64 << 20  # a line must fit
_UUID_CHARACTERS = 20
# Z85 and Python's base 85 differ in their characters only.
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85 = str.maketrans(_Z85, _B85)


@dataclass(frozen=True)
class DeltaSnapshot:
    """A version of a table of Delta Lake."""

    places: Places
    version: int
    log: tuple[storage.FileStatus, ...]
    """Files of the log that say what the version is: a checkpoint, if there is one, and later commits."""
    newest: storage.FileStatus
    """Commit of the version, or its checkpoint, if the commit has been cleaned up."""

    @property
    def name(self) -> str:
        """Version, with the time and size of its commit: a new table in the same place has others."""
        written = datetime.fromtimestamp(self.newest.mtime_ns / 1e9, UTC).isoformat(" ", "milliseconds")
        return f"version {self.version}, written {written}, {self.newest.size_bytes} bytes"

    def _replayed(self) -> tuple[pa.Schema, pa.Table, Mapping[str, Any]]:
        """Return the schema, the files of the version with their statistics, and their deletion vectors."""
        deltalake = imported("deltalake", "delta", f"{self.places.root}: a table of Delta Lake")
        with run_folder.temporary() as folder:
            copies = [storage.join(folder, _LOG, storage.name(entry.uri)) for entry in self.log]
            for source, copy in zip(self.log, copies, strict=True):
                storage.copy_file(source.uri, copy)
            copies = [*self._copy_sidecars(folder, copies[0]), *copies]
            try:
                table = deltalake.DeltaTable(folder, version=self.version)
                protocol, metadata = table.protocol(), table.metadata()
                features = set(protocol.reader_features or ())
                if unknown := sorted(features - _KNOWN):
                    raise RawTableError(
                        f"{self.places.root}: the table needs readers that know {', '.join(unknown)}, "
                        "which this one does not; write its rows to plain parquet, and read that"
                    )
                mode = metadata.configuration.get("delta.columnMapping.mode", "none")
                schema = _marked(pa.schema(table.schema().to_arrow()), mode)
                actions = pa.table(table.get_add_actions())
            except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
                raise RawTableError(
                    f"{self.places.root}: version {self.version} cannot be read: {error}"
                ) from error
            paths = actions["path"].to_pylist()
            vectors = {}
            if "deletionVectors" in features:
                vectors = deletion_vectors(copies, paths, self.places)
        return schema, actions, vectors

    def _copy_sidecars(self, folder: str, checkpoint: str) -> list[str]:
        """Copy the parts of a checkpoint that it names, if it is one; return the copies."""
        copies = []
        parts = _actions(checkpoint, _SIDECAR) if _CHECKPOINT.fullmatch(storage.name(checkpoint)) else ()
        for part in parts:
            source = self.places.uri_of(storage.join(_LOG, _SIDECARS, part["path"]))
            copies.append(storage.join(folder, _LOG, _SIDECARS, storage.name(source)))
            storage.copy_file(source, copies[-1])
        return copies

    def files(self, filters: Filters) -> list[DataFile]:
        """List the files that may have rows that pass the filters; see `Snapshot`."""
        schema, actions, vectors = self._replayed()
        kinds = dict(zip(schema.names, schema.types, strict=True))
        shared = {name: values.cast(kinds[name]) for name, values in _struct(actions, "partition").items()}
        left = left_for_rows(filters, shared, _spans(schema, actions), actions.num_rows)
        texts: dict[str, list[str | None]] = {}
        for name, values in shared.items():
            try:
                texts[name] = values.cast(pa.string()).to_pylist()
            except pa.ArrowInvalid as error:
                raise RawTableError(f"{self.places.root}: partition column {name}: {error}") from error
        return [
            DataFile(
                self.places.uri_of(unquote(path)),
                {name: values[number] for name, values in texts.items()},
                schema,
                vectors.get(path, ()),
                of_rows,
                f"version {self.version}",
                num_bytes,
            )
            for number, (path, num_bytes, of_rows) in enumerate(
                zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), left, strict=True)
            )
            if of_rows is not None
        ]


def at_folder(uri: str, version: int | str | None, allowed: Iterable[str]) -> DeltaSnapshot:
    """Return a version of the table at `uri`; None: the newest."""
    if isinstance(version, str) and not version.isdecimal():
        raise RawTableError(f"{uri}: expected a number as snapshot of Delta Lake, found {version!r}")
    entries = storage.list_dir(storage.join(uri, _LOG))
    commits: dict[int, storage.FileStatus] = {}
    checkpoints: dict[int, list[storage.FileStatus]] = {}
    for entry in entries:
        if match := _COMMIT.fullmatch(storage.name(entry.uri)):
            commits[int(match[1])] = entry
        elif match := _CHECKPOINT.fullmatch(storage.name(entry.uri)):
            checkpoints.setdefault(int(match[1]), []).append(entry)
    complete = {number: files for number, parts in checkpoints.items() if (files := _complete(parts))}
    known = sorted({*commits, *complete})
    wanted = int(version) if version is not None else max(known, default=-1)
    if wanted not in known:
        raise RawTableError(
            f"{uri}: expected a log of version {wanted if version is not None else '0 or newer'}, found "
            + (f"the versions {known[0]} to {known[-1]}" if known else f"no version in {_LOG}")
            + "; older ones have been cleaned up"
        )
    base = max((number for number in complete if number <= wanted), default=-1)
    later = range(base + 1, wanted + 1)
    if missing := [number for number in later if number not in commits]:
        raise RawTableError(
            f"{uri}: expected the commits {later.start} to {wanted} in {_LOG}, found none of version "
            f"{missing[0]}: the version cannot be restored; choose a newer snapshot"
        )
    log = (*complete.get(base, ()), *(commits[number] for number in later))
    return DeltaSnapshot(Places(uri, "", tuple(allowed)), wanted, log, commits.get(wanted, log[-1]))


def _complete(parts: list[storage.FileStatus]) -> list[storage.FileStatus]:
    for part in parts:
        match = _CHECKPOINT.fullmatch(storage.name(part.uri))
        if match and match[3] is None:
            return [part]
        if match:
            same = [other for other in parts if storage.name(other.uri).endswith(f".{match[3]}.parquet")]
            if len(same) == int(match[3]):
                return same
    return []


def _marked(schema: pa.Schema, mode: str) -> pa.Schema:
    """Mark each field with the name or the number of its column in files."""
    if mode == "none":
        return marked(schema, lambda field: {})
    marks, key = (FIELD_ID, _ID) if mode == "id" else (NAMES, _PHYSICAL_NAME)
    return marked(schema, lambda field: {marks: (field.metadata or {}).get(key, field.name.encode())})


def _struct(actions: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    if name not in actions.column_names:
        return {}
    flat = actions.select([name]).flatten()
    return {column.removeprefix(f"{name}."): flat[column] for column in flat.column_names}


def _spans(schema: pa.Schema, actions: pa.Table) -> dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]:
    """Return the smallest and largest values of each column in each file, by statistics of the log.

    Times are left out: their statistics are cut to milliseconds.
    """
    lows, highs = _struct(actions, "min"), _struct(actions, "max")
    spans = {}
    for field in schema:
        physical = (field.metadata or {}).get(NAMES, field.name.encode()).decode()
        is_plain = not (pa.types.is_nested(field.type) or pa.types.is_timestamp(field.type))
        if is_plain and physical in lows and physical in highs and FIELD_ID not in (field.metadata or {}):
            spans[field.name] = (lows[physical].cast(field.type), highs[physical].cast(field.type))
    return spans


def deletion_vectors(
    log: Iterable[str], paths: Iterable[str], places: Places
) -> dict[str, tuple[Deletes, ...]]:
    """Return the deletion vector of each file that has one, by its path; `log` is in order.

    `paths` are those of all files of the table.
    """
    newest: dict[str, Any] = {}
    for uri in log:
        newest.update((row["path"], row.get("deletionVector")) for row in _actions(uri, _ADD))
    vectors: dict[str, tuple[Deletes, ...]] = {}
    for path in paths:
        if path not in newest:  # else its deleted rows would come back
            raise FormatError(f"{places.root}: expected the file {path} in the log, found none of that name")
        if vector := newest[path]:
            vectors[path] = (_deletes(vector, places),)
    return vectors


def decoded(text: str) -> bytes:
    """Return the bytes that a text in Z85 means."""
    try:
        return base64.b85decode(text.translate(_AS_B85))
    except ValueError as error:
        raise FormatError(f"expected Z85 in a deletion vector, found {text[:40]!r}: {error}") from error


def _actions(uri: str, field: pa.Field) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind in a file of the log; `field` has the kind and its fields."""
    with reading(uri), storage.open_input(uri) as stream:
        if uri.endswith(".json"):
            options = pajson.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
            parsing = pajson.ParseOptions(
                explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
            )
            batches = iter(pajson.open_json(stream, options, parsing))
        else:
            parquet = pq.ParquetFile(stream)
            schema = parquet.schema_arrow
            kind = schema.field(field.name).type if field.name in schema.names else pa.struct([])
            there = {inner.name for inner in kind} & {inner.name for inner in field.type}
            if not there:
                return
            names = [f"{field.name}.{name}" for name in there]
            batches = parquet.iter_batches(columns=names, use_threads=False)
        for batch in batches:
            yield from batch.column(field.name).drop_null().to_pylist()


def _deletes(vector: dict[str, Any], places: Places) -> Deletes:
    kind, text = vector["storageType"], vector["pathOrInlineDv"] or ""
    offset, num_bytes = vector["offset"] or 0, vector["sizeInBytes"] or 0
    if num_bytes <= 0 or offset < 0 or not text:
        raise FormatError(
            f"{places.root}: expected a deletion vector with a text, a size and an offset from 0 on, found "
            f"{text[:40]!r}, {num_bytes} and {offset}"
        )
    if kind == "i":
        return Deletes("delta inline", text, num_bytes=num_bytes)
    if kind == "u":
        prefix, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        if len(encoded) < _UUID_CHARACTERS:
            raise FormatError(
                f"{places.root}: expected the {_UUID_CHARACTERS} characters of a deletion vector's UUID, "
                f"found {encoded!r}"
            )
        name = f"deletion_vector_{uuid.UUID(bytes=decoded(encoded))}.bin"
        path = f"{prefix}/{name}" if re.fullmatch(r"\w+", prefix) else name
    elif kind == "p":
        path = unquote(text)
    else:
        raise FormatError(f"{places.root}: expected a deletion vector of kind u, i or p, found {kind!r}")
    return Deletes("delta", places.uri_of(path), offset=offset, num_bytes=num_bytes)
