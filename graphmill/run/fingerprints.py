"""Fingerprints of stages: files and folders that a stage reads, described, and the changes since a result."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.display.readable import moment, shortened
from graphmill.errors import StorageError
from graphmill.formats import entity_index

VECTORS = "vectors"
"""Key of the fingerprint of published embeddings: the digest of the version that has their vectors."""

SMALL_BYTES = 256 << 20
"""Bytes of inputs up to which `--master local` starts no processes; see `are_small`."""
_SMALL_FILES = 1000
_ABSENT = object()

_OF_GRAPH = re.compile(r"(entity_count|entity_names|dynamic_rel|edges)_")


def content_of(uri: str) -> str | None:
    """Digest what a folder holds, by its checksums: a checkpoint's version, raw ids, or all; None without."""
    if version := pbg.read_version(uri):
        return pbg.version_checksum(uri, version)
    checksums = storage.read_checksums(storage.manifest_of(uri).uri)
    return entity_index.digest_of(checksums) if checksums else None


def _describe(uri: str) -> dict[str, Any]:
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


def _moves(was_at: Any, now_at: Any) -> str:
    """Tell the places that only one of two lists has; all where only the order differs."""
    if not isinstance(was_at, list) or not isinstance(now_at, list):
        return f"{json.dumps(was_at)} -> {json.dumps(now_at)}"
    gone = [place for place in was_at if place not in now_at]
    new = [place for place in now_at if place not in was_at]
    told = (gone, new) if gone or new else (was_at, now_at)
    return " -> ".join(", ".join(map(str, places)) or "nothing" for places in told)


def describe_inputs(uris: Iterable[str]) -> list[dict[str, Any]]:
    """Describe the inputs at `uris` for a fingerprint, as JSON types."""
    return [_describe(uri) for uri in uris]


def changes(before: Any, after: Any, path: str = "") -> list[str]:
    """List the differences of two fingerprints, as `relations[0].operator: 'none' -> 'diagonal'`."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = sorted({*before, *after})
        triples = [
            (before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}".lstrip(".")) for key in keys
        ]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        paths = (f"{path}[{number}]" for number in range(len(before)))
        triples = list(zip(before, after, paths, strict=True))
    else:
        return [] if before == after else [f"{path}: {_brief(before)} -> {_brief(after)}"]
    return [line for triple in triples for line in changes(*triple)]


def differences(
    config: Config, before: Mapping[str, Any], after: Mapping[str, Any], made_s: float | None
) -> list[str]:
    """List the differences of two fingerprints as `changes` does, but those of `inputs` in words.

    A finished folder is newer or older than the result, which was made at `made_s`, in seconds since 1970.
    """
    told: dict[str, Any] = {"inputs": [], VECTORS: None}
    lines = changes({**before, **told}, {**after, **told})
    before_inputs, after_inputs = before.get("inputs", []), after.get("inputs", [])
    was_at, now_at = places(before_inputs), places(after_inputs)
    if was_at != now_at:
        return [*lines, f"inputs: {_moves(was_at, now_at)}"]
    for was, now in zip(before_inputs, after_inputs, strict=True):
        if "files" in now:
            names = sorted({*was["files"], *now["files"]})
            others = [name for name in names if was["files"].get(name) != now["files"].get(name)]
            lines += [f"{now['uri']}{name} is another file" for name in others]
        elif "snapshot" in now and was != now:
            lines.append(f"{now['uri']}: {was.get('snapshot', 'plain files')} -> {now['snapshot']}")
        elif any(was[key] != now[key] for key in was.keys() & now.keys()):  # earlier releases had fewer
            lines.append(_age(config, now["name"], made_s))
    vectors = before.get(VECTORS), after.get(VECTORS)
    if not lines and None not in vectors and vectors[0] != vectors[1]:
        lines.append("the checkpoint has other vectors")
    return lines


def _age(config: Config, name: str, made_s: float | None) -> str:
    """Say whether the finished folder called `name` is newer or older than a result."""
    folders = (config.entity_path, config.checkpoint_path, config.embedding_path, config.split_path(name))
    uri = next((uri for uri in folders if storage.name(uri) == name), "")
    status = storage.status(storage.join(uri, storage.MARKER)) if uri else None
    if status is None or made_s is None:
        return f"{name} is not the one that was read"
    finished_s = status.mtime_ns / 1e9
    age = "newer" if finished_s > made_s else "another one, and older"
    return f"{name} is {age} ({moment(finished_s)}) than what was made from it ({moment(made_s)})"


def _brief(value: Any) -> str:
    return "nothing" if value is _ABSENT else shortened(json.dumps(value), 80)


def are_small(uris: Iterable[str]) -> bool:
    """Tell whether files are read faster than processes start; what cannot be listed is not small."""
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
