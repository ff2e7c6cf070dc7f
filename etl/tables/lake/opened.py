"""Opens the snapshot that an entry of the configuration names."""

from collections.abc import Iterable

from etl.tables.lake import delta, iceberg
from etl.tables.lake.logs import METADATA, log_at, refuse
from etl.tables.lake.snapshot import Snapshot
from graphmill.config.sections.etl import FilesConfig
from graphmill.errors import RawTableError

_FORMATS = {"Delta Lake": "delta", "Iceberg": "iceberg"}
_LOGS = {"delta": "a folder with _delta_log", "iceberg": "a folder with metadata/*.metadata.json"}


def snapshot_at(
    uri: str, table: FilesConfig, allowed: Iterable[str] = (), *, is_pattern: bool
) -> Snapshot | None:
    """Open the snapshot of the table at `uri`, or of the table of a catalog; None: these are plain files.

    `allowed` are further folders that files of the table may lie in.
    """
    if table.catalog is not None:
        return iceberg.in_catalog(table.catalog, table.path[0], table.snapshot, allowed)
    if METADATA.fullmatch(uri):
        return iceberg.at_metadata(uri, table.snapshot, allowed)
    uri = uri if uri.endswith(":///") else uri.rstrip("/")
    log = None if is_pattern else log_at(uri)
    kind = _FORMATS.get(log or "")
    if log and kind is None:
        refuse(uri)
    if log and table.format not in ("auto", kind):
        raise RawTableError(
            f"{uri}: found a table of {log}, and format: {table.format}; leave out the format to read a "
            "snapshot"
        )
    if kind is None:
        if table.format in _LOGS or table.snapshot is not None:
            expected = _LOGS.get(table.format, " or ".join(_LOGS.values()))
            raise RawTableError(f"{uri}: expected {expected}, found none; snapshots are those of such tables")
        return None
    if kind == "delta":
        return delta.at_folder(uri, table.snapshot, allowed)
    return iceberg.at_folder(uri, table.snapshot, allowed)
