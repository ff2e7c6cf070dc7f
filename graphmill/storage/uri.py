"""URIs as plain strings: `/tmp/x`, `x/y`, `file:///tmp/x`, `hdfs://nameservice/x`."""

import os
import posixpath
import re
from urllib.parse import unquote

from graphmill.errors import PathError
from graphmill.storage.redaction import redacted, remember, user_info

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_ROOT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://[^/]*)")
_WITHOUT_PASSWORDS = ("hdfs", "viewfs")
ONE_SLASH = re.compile(r"(file|hdfs|viewfs):/(?!/)")
_LOOKS_QUOTED = re.compile(r"%(?=[0-9A-Fa-f]{2})")


def scheme(uri: str) -> str:
    """The URI's scheme; a plain path has the scheme `file`."""
    return split(uri)[0].partition("://")[0] if _SCHEME.match(uri) else "file"


def split(uri: str) -> tuple[str, str]:
    """Split a URI into its root, `scheme://authority`, and path; `?` and `#` are parts of names."""
    root = _ROOT.match(uri)
    if root is None:
        return "", uri
    remember(root[1], uri[len(root[1]) + len("://") :])
    return root[1].lower() + root[2], uri[root.end() :]


def is_local(uri: str) -> bool:
    """Tell whether `uri` is on this machine's disks."""
    return scheme(uri) == "file"


def is_absolute(uri: str) -> bool:
    """Tell whether `uri` has the same meaning in every current folder."""
    return bool(_SCHEME.match(uri)) or uri.startswith("/")


def local_path(uri: str) -> str | None:
    """The absolute local path of `uri`, or None if it is not on this machine's disks."""
    if not is_local(uri):
        return None
    return _absolute(unquote(split(uri)[1]) if _SCHEME.match(uri) else uri)


def absolute(uri: str) -> str:
    """`uri` with the same meaning in every process of this machine; PathError for one as `hdfs:/x`."""
    if match := ONE_SLASH.match(uri):
        raise PathError(f"{uri}: expected {match[1]}:///{uri[match.end() :]}, found one slash")
    return uri if is_absolute(uri) else _absolute(uri)


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)  # noqa: PTH100 (no resolving of links)
    except FileNotFoundError as error:  # of os.getcwd
        raise PathError(f"{path}: the current folder is gone; change to another") from error


def join(root: str, *parts: str) -> str:
    """`root/part/part...`; a part that is absolute itself replaces what stands before it."""
    joined = root
    for part in parts:
        folder = joined if joined.endswith(":///") else joined.rstrip("/") + "/"
        joined = part if is_absolute(part) else folder + part
    return joined


def below(folder: str, path: str) -> str:
    """The URI of the entry that a listing of `folder` calls `path`."""
    is_quoted = is_local(folder) and _SCHEME.match(folder)
    return join(folder, _LOOKS_QUOTED.sub("%25", path) if is_quoted else path)


def contains(folder: str, uri: str) -> bool:
    """Tell whether `uri` is `folder` or lies below it, after links are followed."""
    (root, above), (other, below) = _place(folder), _place(uri)
    # A URI without a host has the host of HADOOP_CONF_DIR, which another URI may name.
    may_be_same = "hdfs://" in (root, other) and scheme(folder) == scheme(uri)
    return (root == other or may_be_same) and (below + "/").startswith(above.rstrip("/") + "/")


def path_below(folder: str, uri: str) -> list[str]:
    """The URI of `uri` in a listing of `folder`; empty if `uri` does not lie below."""
    (_, above), (_, inside) = _place(folder), _place(uri)
    if not contains(folder, uri) or above == inside:
        return []
    return [below(folder, inside.removeprefix(above.rstrip("/") + "/"))]


def check_user_info(uri: str) -> None:
    """Raise PathError for a password that a URI cannot hold."""
    kind, separator, rest = uri.partition("://")
    info = user_info(kind, rest) if separator else ""
    if ":" in info and scheme(uri) in _WITHOUT_PASSWORDS:
        raise PathError(
            f"{redacted(uri)}: expected {scheme(uri)}://HOST:PORT/..., found a password before the host; "
            "HDFS takes none: tickets come from kinit"
        )
    if re.search(r"[/@\s\"'\\]", info):
        raise PathError(
            f"{redacted(uri)}: expected a name and a password with / @ \\ spaces and quotes written as %2F "
            "%40 %5C %20 %22 %27, found one of them as it is"
        )


def check_has_no_nul(uri: str) -> None:
    """Raise PathError for a NUL character, which no path can hold."""
    if "\0" in uri:
        raise PathError(f"{uri!r}: expected a path, found one with a NUL character")


def _place(uri: str) -> tuple[str, str]:
    check_has_no_nul(uri)
    path = local_path(uri)
    if path is not None:
        return "", os.path.realpath(path)
    root, path = split(uri)
    return root, posixpath.normpath("/" + path.lstrip("/"))


def name(uri: str) -> str:
    """The last component of the path."""
    return uri.rstrip("/").rpartition("/")[2]


def parent(uri: str) -> str:
    """Everything before the last component; `.` for a bare name."""
    above = uri.rstrip("/").rpartition("/")[0]
    if above.endswith("://"):  # the root of a file system without a host
        return above + "/"
    return above or ("/" if uri.startswith("/") else ".")


def within(root: str, path: str) -> bool:
    """Tell whether `path`, read from a file, lies in the folder `root`: the rule by which it may be opened.

    Local links are followed first. Another scheme or host is elsewhere, as is a remote path with `..` in it.
    """
    leads_up = not is_local(path) and ".." in split(path)[1].split("/")
    return not leads_up and _place(root)[0] == _place(path)[0] and contains(root, path)
