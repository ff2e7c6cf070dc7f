"""Places of the files that a log names: inside the table's folder, or in folders that the user allows.

A log may come from anybody. It may also name files where the table once was: such a path below the recorded
folder leads to the same path below the table's folder.
"""

import re
from dataclasses import dataclass

from graphmill import storage
from graphmill.errors import FormatError

_ONE_SLASH = re.compile(r"(file|hdfs|viewfs):/(?!/)")
_S3 = re.compile(r"s3[an]://")


@dataclass(frozen=True)
class Places:
    """Folders that files of a table may lie in."""

    root: str
    """Folder of the table."""
    recorded: str = ""
    """Folder of the table, as its log says."""
    allowed: tuple[str, ...] = ()
    """Further folders that the user allows."""

    def uri_of(self, path: str) -> str:
        """Return the URI of a file that the log names."""
        uri, recorded = plain_uri(path), plain_uri(self.recorded).rstrip("/") + "/"
        if self.recorded and uri.startswith(recorded):
            uri = storage.join(self.root, uri.removeprefix(recorded).lstrip("/"))
        uri = storage.join(self.root, uri)
        if not self.hold(uri):
            raise FormatError(
                f"{self.root}: its log names the file {path}, outside the table's folder; if that is meant, "
                "name the file's folder in the table's data_path"
            )
        return uri

    def hold(self, uri: str) -> bool:
        """Whether a file lies in one of the folders."""
        return any(storage.within(folder, uri) for folder in (self.root, *self.allowed))


def plain_uri(path: str) -> str:
    """Return a path as Java writes it (`file:/x`, `s3a://b/x`) as a URI of ours."""
    if match := _ONE_SLASH.match(path):
        rest = path[match.end() - 1 :]
        return rest if match[1] == "file" else f"{match[1]}://{rest}"
    return _S3.sub("s3://", path, count=1)
