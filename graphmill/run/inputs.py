"""Descriptions of the files and folders that a stage reads, for fingerprints."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.errors import StorageError
from graphmill.formats import entity_index

VECTORS = "vectors"
"""Key of the fingerprint of published embeddings: the digest of the version that has their vectors."""

SMALL_BYTES = 256 << 20
"""Bytes of inputs up to which `--master local` starts no processes; see `are_small`."""
_SMALL_FILES = 1000

_OF_GRAPH = re.compile(r"(entity_count|entity_names|dynamic_rel|edges)_")


def content_of(uri: str) -> str | None:
    """Digest what a folder holds, by its checksums: a checkpoint's version, raw ids, or all; None without."""
    if version := pbg.read_version(uri):
        return pbg.version_checksum(uri, version)
    checksums = storage.read_checksums(storage.manifest_of(uri).uri)
    return entity_index.digest_of(checksums) if checksums else None


def describe(uri: str) -> dict[str, Any]:
    """Describe an input, as JSON types.

    Marker and checksums describe a folder that a stage finished, so that a copy on other storage is the same
    input. Sizes and modification times describe other files.
    """
    status, marker = storage.status(uri), storage.read_marker(uri)
    content = content_of(uri) if status and status.is_dir else None
    described = {} if content is None else {"content": content}
    if marker is not None:
        digest = hashlib.sha256(json.dumps(marker, sort_keys=True).encode()).hexdigest()
        return {"name": storage.name(uri), "made_from": digest[:16], **described}
    entries = [status] if status else []
    if not status or status.is_dir:  # of a folder of PBG's input only that: a checkpoint may lie there too
        of_graph = [entry for entry in storage.list_dir(uri) if _OF_GRAPH.match(storage.name(entry.uri))]
        entries = of_graph or storage.list_dir(uri, recursive=True)
    files = [entry for entry in entries if not entry.is_dir and not storage.name(entry.uri).startswith("_")]
    sizes = {file.uri.removeprefix(uri): [file.size_bytes, file.mtime_ns] for file in files}
    return {"uri": uri, "files": sizes, **described}


def places(inputs: Any) -> Any:
    """Return the place of each described input, or what is there instead."""
    if not isinstance(inputs, list) or not all(isinstance(of_table, Mapping) for of_table in inputs):
        return inputs
    places = [str(of_table.get("uri") or of_table.get("name")) for of_table in inputs]
    has_files = [isinstance(of_table.get("files"), Mapping) for of_table in inputs]
    return [f"{place} (files)" if files else place for place, files in zip(places, has_files, strict=True)]


def moves(was_at: Any, now_at: Any) -> str:
    """Tell the places that only one of two lists has; all where only the order differs."""
    if not isinstance(was_at, list) or not isinstance(now_at, list):
        return f"{json.dumps(was_at)} -> {json.dumps(now_at)}"
    gone = [place for place in was_at if place not in now_at]
    new = [place for place in now_at if place not in was_at]
    told = (gone, new) if gone or new else (was_at, now_at)
    return " -> ".join(", ".join(map(str, places)) or "nothing" for places in told)


def are_small(uris: Iterable[str]) -> bool:
    """Whether files and folders are read faster than processes start; what cannot be listed is not small."""
    num_bytes = num_seen = 0
    try:
        waiting = [status for status in map(storage.status, dict.fromkeys(uris)) if status]
        while waiting and num_bytes <= SMALL_BYTES and num_seen <= _SMALL_FILES:
            entry = waiting.pop()
            num_seen += 1
            if entry.is_dir:
                waiting += storage.list_dir(entry.uri)
            else:
                num_bytes += entry.size_bytes
    except StorageError:
        return False
    return num_bytes <= SMALL_BYTES and num_seen <= _SMALL_FILES
