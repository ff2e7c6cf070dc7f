"""Snapshots of Apache Iceberg: the package pyiceberg plans which files a snapshot has, through our storage.

    metadata/v3.metadata.json, metadata/00003-{uuid}.metadata.json (.gz)    state 3 of the table
    metadata/*.avro                                                         manifests: lists of files

A catalog says which state is the present one. Without a catalog it is the one with the highest number.
Source: https://iceberg.apache.org/spec/
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa

from etl.tables.data_file import FIELD_ID, NAMES, DataFile, Deletes
from etl.tables.filters import columns_of, left_for_rows
from etl.tables.lake.logs import METADATA
from etl.tables.lake.snapshot import Places, imported, marked, plain_uri
from graphmill import storage
from graphmill.config.sections.etl import Filters
from graphmill.errors import FormatError, GraphMillError, RawTableError, StorageError

_NUMBER = re.compile(r"v?(\d+)(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_GZIP = b"\x1f\x8b"
_OF_SERVICES = ("ServerError", "ServiceUnavailableError", "OperationalError")  # a retry may help
_COMPACT = "compact the table first (Spark: CALL catalog.system.rewrite_data_files(table => 'NAME'))"
_STORAGE = "etl.tables.lake.iceberg_scan.StorageIO"


class IcebergSnapshot:
    """A snapshot of a table of Iceberg."""

    def __init__(self, metadata: Any, places: Places, snapshot: int | str | None) -> None:
        self.places = places
        self._metadata = metadata
        self._is_chosen = snapshot is not None
        self._snapshot = _chosen(metadata, snapshot, places.root)

    @property
    def name(self) -> str:
        """Snapshot, schema and table."""
        number = "none" if self._snapshot is None else self._snapshot.snapshot_id
        return f"snapshot {number}, schema {self._schema.schema_id} of table {self._metadata.table_uuid}"

    @property
    def _schema(self) -> Any:
        of_then = self._snapshot.schema_id if self._is_chosen and self._snapshot is not None else None
        schema = self._metadata.schema_by_id(of_then)
        return self._metadata.schema() if schema is None else schema

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the table; a field's metadata has the number of its column in files."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        mapping = self._metadata.name_mapping()
        names = dict(_names_by_id(mapping)) if mapping is not None else None

        def mark(field: pa.Field) -> dict[bytes, bytes]:
            number = field.metadata[FIELD_ID]
            own = {} if names is None else {NAMES: "\n".join(names.get(int(number), ())).encode()}
            return {FIELD_ID: number} | own

        return marked(schema_to_pyarrow(self._schema), mark)

    def files(self, filters: Filters) -> list[DataFile]:
        """List the files that may have rows that pass the filters; see `Snapshot`."""
        if self._snapshot is None:
            return []
        with _explained(self.places.root):
            tasks = list(self._planned(filters))
        tasks.sort(key=lambda task: task.file.spec_id or 0)
        data_files: list[DataFile] = []
        for spec_id, of_spec in groupby(tasks, key=lambda task: task.file.spec_id or 0):
            data_files += self._of_spec(spec_id, list(of_spec), filters)
        return data_files

    def _planned(self, filters: Filters) -> Iterator[Any]:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.table import StaticTable

        from etl.tables.lake.iceberg_scan import StorageIO, expression

        table = StaticTable(
            ("table",), self._metadata, self.places.root, StorageIO(places=self.places), NoopCatalog("none")
        )
        # The package compares with the present schema, also in older snapshots.
        is_present = self._schema.schema_id == self._metadata.current_schema_id
        row_filter = expression(filters, self._schema) if filters and is_present else AlwaysTrue()
        yield from table.scan(row_filter=row_filter, snapshot_id=self._snapshot.snapshot_id).plan_files()

    def _of_spec(self, spec_id: int, tasks: list[Any], filters: Filters) -> Iterator[DataFile]:
        values = list(self._shared_values(spec_id, tasks))
        kinds = dict(zip(self.schema.names, self.schema.types, strict=True))
        shared = {
            name: pa.chunked_array([pa.array([value[name] for value in values], pa.string())]).cast(
                kinds[name]
            )
            for name in columns_of(filters)
            # values of other types have another form as text
            if name in values[0]
            and not (isinstance(kinds[name], pa.ExtensionType) or "binary" in str(kinds[name]))
        }
        left = left_for_rows(filters, shared, {}, len(tasks))
        defaults = {
            field.name: _text(field.initial_default)
            for field in self._schema.fields
            if field.initial_default is not None
        }
        for task, own, of_rows in zip(tasks, values, left, strict=True):
            if of_rows is None:
                continue
            if task.file.file_format.name != "PARQUET":
                raise RawTableError(
                    f"{self.places.root}: {task.file.file_path} is a file of {task.file.file_format.name}; "
                    f"of a table of Iceberg only parquet is read: {_COMPACT}"
                )
            deletes = tuple(self._deletes(task, file) for file in task.delete_files)
            uri = self.places.uri_of(task.file.file_path)
            number = self.name.partition(",")[0]
            size = task.file.file_size_in_bytes
            yield DataFile(uri, defaults | own, self.schema, deletes, of_rows, number, size)

    def _shared_values(self, spec_id: int, tasks: list[Any]) -> Iterator[dict[str, str | None]]:
        """Yield the columns that all rows of a file share, because the table is partitioned by them."""
        from pyiceberg.transforms import IdentityTransform

        spec = self._metadata.specs()[spec_id]
        columns = {field.field_id: field for field in self._schema.fields}
        parts = [
            (at, columns[field.source_id], field.transform)
            for at, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform) and field.source_id in columns
        ]
        for task in tasks:
            yield {
                column.name: None
                if task.file.partition[at] is None
                else transform.to_human_string(column.field_type, task.file.partition[at])
                for at, column, transform in parts
            }

    def _deletes(self, task: Any, of_rows: Any) -> Deletes:
        formats = {"PARQUET": "positions", "PUFFIN": "puffin"}
        kind = formats.get(of_rows.file_format.name)
        if kind is None:
            raise RawTableError(
                f"{self.places.root}: {of_rows.file_path} deletes rows in {of_rows.file_format.name}, which "
                f"is not read: {_COMPACT}"
            )
        return Deletes(kind, self.places.uri_of(of_rows.file_path), task.file.file_path)  # type: ignore[arg-type]


def at_folder(uri: str, snapshot: int | str | None, allowed: Iterable[str]) -> IcebergSnapshot:
    """Return a snapshot of the table at `uri`, by the newest state in its folder."""
    numbers: dict[int, list[str]] = {}
    for entry in storage.list_dir(storage.join(uri, "metadata")):
        if METADATA.fullmatch(entry.uri) and (match := _NUMBER.fullmatch(storage.name(entry.uri))):
            numbers.setdefault(int(match[1]), []).append(entry.uri)
    newest = numbers.get(max(numbers, default=-1), [])
    if len(newest) != 1:
        names = ", ".join(map(storage.name, newest)) or "none with a number"
        raise RawTableError(
            f"{uri}: expected one newest file metadata/*.metadata.json, found {names}; only the "
            "table's catalog knows which one counts: name it as `catalog`, or set `path` to the file"
        )
    return at_metadata(newest[0], snapshot, allowed)


def at_metadata(uri: str, snapshot: int | str | None, allowed: Iterable[str]) -> IcebergSnapshot:
    """Return a snapshot of the table that a metadata.json describes."""
    root = storage.parent(storage.parent(uri))
    imported("pyiceberg.table", "iceberg", f"{root}: a table of Iceberg")
    from pyiceberg.table.metadata import TableMetadataUtil

    with _explained(uri):
        metadata = TableMetadataUtil.parse_raw(_text_of(uri))
    return IcebergSnapshot(metadata, Places(root, metadata.location, tuple(allowed)), snapshot)


def in_catalog(
    catalog: str, table: str, snapshot: int | str | None, allowed: Iterable[str]
) -> IcebergSnapshot:
    """Return a snapshot of a table of a catalog, which the configuration of pyiceberg names."""
    where = f"catalog {catalog}, table {table}"
    loading = imported("pyiceberg.catalog", "iceberg", where)
    from pyiceberg.utils.config import Config

    settings = Config().get_catalog_config(catalog)
    if not settings:
        raise RawTableError(
            f"{where}: expected a catalog of that name in .pyiceberg.yaml or in PYICEBERG_CATALOG__"
            f"{catalog.upper()}__* of the environment, found none"
        )
    with _explained(where):
        metadata = (
            loading.load_catalog(catalog, **settings, **{"py-io-impl": _STORAGE}).load_table(table).metadata
        )
    places = Places(plain_uri(metadata.location), metadata.location, tuple(allowed))
    return IcebergSnapshot(metadata, places, snapshot)


def _text_of(uri: str) -> str:
    """Read a text, which may be compressed by gzip: a megabyte may hold a gigabyte."""
    with storage.open_input(uri) as stream:
        content = stream.read(storage.MAX_TEXT_BYTES + 1)
    if content.startswith(_GZIP):
        with pa.CompressedInputStream(pa.BufferReader(content), "gzip") as stream:
            content = stream.read(storage.MAX_TEXT_BYTES + 1)
    if len(content) > storage.MAX_TEXT_BYTES:
        raise FormatError(f"{uri}: expected at most {storage.MAX_TEXT_BYTES:,} bytes of text, found more")
    return str(content, "utf-8")


def _chosen(metadata: Any, snapshot: int | str | None, root: str) -> Any:
    if snapshot is None:
        return metadata.current_snapshot()
    is_name = isinstance(snapshot, str) and snapshot in metadata.refs
    number = metadata.refs[snapshot].snapshot_id if is_name else snapshot
    chosen = next((known for known in metadata.snapshots if str(known.snapshot_id) == str(number)), None)
    if chosen is None:
        known = ", ".join([*(str(known.snapshot_id) for known in metadata.snapshots[-5:]), *metadata.refs])
        raise RawTableError(f"{root}: expected a snapshot {snapshot}, found {known or 'no snapshot'}")
    return chosen


def _names_by_id(mapping: Iterable[Any]) -> Iterator[tuple[int, list[str]]]:
    for field in mapping:
        if field.field_id is not None:
            yield field.field_id, field.names
        yield from _names_by_id(field.fields)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except GraphMillError:
        raise
    except Exception as error:  # the package, its parsers and its catalogs raise errors of any kind
        if isinstance(error, OSError) or type(error).__name__ in _OF_SERVICES:
            raise StorageError(f"{where}: cannot be read now: {type(error).__name__}: {error}") from error
        remedy = ""
        if "equality deletes" in str(error):
            remedy = f"; {_COMPACT}"
        raise RawTableError(
            f"{where}: cannot be read as a table of Iceberg: {type(error).__name__}: {error}{remedy}"
        ) from error
