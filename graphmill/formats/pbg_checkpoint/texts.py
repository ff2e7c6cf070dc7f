"""JSON files of a checkpoint: the configuration, and the statistics of each bucket."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from graphmill import storage
from graphmill.formats.pbg_checkpoint.names import CONFIG_FILE, STATS_FILE, manifest_of
from graphmill.formats.pbg_checkpoint.versions import read_version
from graphmill.storage import Checksums


def write_config(checkpoint_path: str, config: Mapping[str, Any]) -> Checksums:
    """Write config.json: PBG's configuration with PBG's keys only. Returns its checksum.

    Updates the checksums of the committed version, which include config.json.
    """
    manifest_uri = manifest_of(checkpoint_path, read_version(checkpoint_path)).uri
    known = storage.read_checksums(manifest_uri)
    if known.pop(CONFIG_FILE, None):  # a kill in between leaves it without a checksum
        storage.write_checksums(manifest_uri, known)
    written: Checksums = {}
    storage.write_text(storage.join(checkpoint_path, CONFIG_FILE), json.dumps(config, indent=4), written)
    if known:
        storage.write_checksums(manifest_uri, known | written)
    return written


def read_config(checkpoint_path: str) -> dict[str, Any]:
    """PBG's configuration that the checkpoint was trained with.

    Raises:
        NotFoundError: the checkpoint has no config.json.
        FormatError: it is not a JSON object, or has another checksum.
    """
    uri = storage.join(checkpoint_path, CONFIG_FILE)
    manifest = manifest_of(checkpoint_path, read_version(checkpoint_path))
    content: dict[str, Any] = storage.json_in(storage.read_compared(uri, manifest), uri)
    return content


def append_stats(checkpoint_path: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add JSON lines; a line replaces the line of the same bucket and iteration from an interrupted run."""
    added = [dict(line) for line in lines]
    again = {_bucket_visit(line) for line in added} - {None}
    kept = [line for line in read_stats(checkpoint_path) if _bucket_visit(line) not in again]
    text = "".join(json.dumps(line) + "\n" for line in kept + added)
    storage.write_text(storage.join(checkpoint_path, STATS_FILE), text)


def read_stats(checkpoint_path: str) -> list[dict[str, Any]]:
    """The lines of training_stats.json; none where there is no such file.

    Raises:
        FormatError: a line is not a JSON object.
    """
    uri = storage.join(checkpoint_path, STATS_FILE)
    if not storage.exists(uri):
        return []
    lines = storage.read_text(uri).splitlines()
    return [storage.json_in(line, f"{uri}: line {number}") for number, line in enumerate(lines, 1) if line]


def _bucket_visit(line: Mapping[str, Any]) -> tuple[Any, ...] | None:
    names = ("epoch_idx", "edge_path_idx", "edge_chunk_idx", "lhs_partition", "rhs_partition")
    return tuple(line[name] for name in names) if all(name in line for name in names) else None
