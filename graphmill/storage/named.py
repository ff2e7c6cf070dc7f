"""Resolves the paths that users write: to a file, a folder, or the matches of a glob pattern.

`*`, `?` and `[...]` match within one part of a path. A name that exists is no pattern: `run[1]` is the folder
of that name, and never `run1`.
"""

import hashlib
import posixpath
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial

from graphmill.storage.checksums import CHECKSUMS
from graphmill.storage.fs import FileStatus, exists, list_dir, status
from graphmill.storage.uri import absolute, is_absolute, join, name, parent

# A first dot; folders; folders elsewhere; refused by HDFS; the escape itself; control characters.
_ENCODED = re.compile(r"^\.|[/\\:%\x00-\x1f\x7f]")
MAX_BYTES = 100


def file_name(text: str) -> str:
    """Return `text` as the name of a file: the same, unless it has characters that such names cannot have.

    Slashes, backslashes, colons, `%`, control characters and a first dot become `%XX`, the bytes of their
    UTF-8; `urllib.parse.unquote` gives the text back. Of a name of more than `MAX_BYTES` bytes the beginning
    remains, before `%~` and a hash of the text. Different texts have different names.
    """
    encoded = _ENCODED.sub(lambda match: f"%{ord(match[0]):02X}", text)
    if len(encoded.encode()) <= MAX_BYTES:
        return encoded
    end = "%~" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return encoded.encode()[: MAX_BYTES - len(end)].decode(errors="ignore") + end


_UNFINISHED = re.compile(
    r"_temporary|\+tmp"  # Hadoop's committers; Kafka Connect
    r"|.+(~|\._COPYING_|\.in-?progress(\..*)?|\.(pending|tmp|temp|partial|filepart|crdownload))"
)


def split_pattern(path: str, base: str = "") -> tuple[str, list[str]]:
    """Return what a path names; of a glob pattern, the folder that it begins with, and its parts from there.

    A relative path starts at `base`, which is never a pattern.
    """
    uri = absolute(join(base, posixpath.normpath(path)) if base and not is_absolute(path) else path)
    relative = "" if is_absolute(path) else posixpath.normpath(path)
    parts = uri.rstrip("/").split("/")
    own = [part for part in relative.split("/") if part not in ("", ".", "..")]
    first = len(parts) - len(own) if relative else 3 if "://" in uri else 0
    while (first := next((at for at in range(first, len(parts)) if set(parts[at]) & set("*?[")), -1)) >= 0:
        named = "/".join(parts[: first + 1])
        if not exists(named):
            return parent(named), parts[first:]
        first += 1
    return uri, []


def matches(
    folder: str, patterns: Sequence[str], listed: Callable[[str], Sequence[FileStatus]] = list_dir
) -> tuple[list[FileStatus], list[str]]:
    """Return what patterns match below a folder, and the unfinished files that they leave out.

    Only patterns that name such match notes, as `_SUCCESS`, or unfinished files. `listed` lists a folder.
    """
    folders, matched, left_out = [folder], list[FileStatus](), list[str]()
    for pattern in patterns:
        entries = []
        for listing in map(listed, folders):
            same = [entry for entry in listing if name(entry.uri) == pattern]
            entries += same or [entry for entry in listing if fnmatchcase(name(entry.uri), pattern)]
        if not unfinished(pattern):
            left_out += [entry.uri for entry in entries if unfinished(name(entry.uri))]
            entries = [entry for entry in entries if not unfinished(name(entry.uri))]
        matched = [entry for entry in entries if pattern.startswith("_") or not is_note(name(entry.uri))]
        folders = [entry.uri for entry in matched if entry.is_dir]
    return matched, left_out


_list_below = partial(list_dir, recursive=True)


def files_at(
    uri: str,
    patterns: Sequence[str] = (),
    listed: Callable[[str], Sequence[FileStatus]] = list_dir,
    listed_below: Callable[[str], Sequence[FileStatus]] = _list_below,
) -> tuple[list[FileStatus], list[str]]:
    """Return the files that a path names, by `split_pattern`, and those below that are unfinished.

    Notes in folders are left out, such as `_SUCCESS`. `listed` and `listed_below` list a folder.
    """
    if patterns:
        entries, left_out = matches(uri, patterns, listed)
    else:
        entries, left_out = [entry for entry in [status(uri)] if entry], []
    files = []
    for entry in entries:
        root = entry.uri.rstrip("/")
        for file in listed_below(entry.uri) if entry.is_dir else [entry]:
            below = file.uri[len(root) :]
            if start := unfinished(below):
                left_out.append(root + start)
            elif not (file.is_dir or is_note(below)):
                files.append(file)
    return files, sorted(set(left_out))


def is_note(path: str) -> bool:
    """Tell whether a path is no table file: `_SUCCESS`, checksums, hidden files, files in `_logs`."""
    parts = path.split("/")
    is_hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)
    return is_hidden or parts[-1] == CHECKSUMS


def unfinished(path: str) -> str:
    """Return the start of a path up to a name that writers give what they still write; empty: none."""
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if "=" not in part and _UNFINISHED.fullmatch(part)), -1)
    return "/".join(parts[: at + 1])
