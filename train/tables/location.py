"""The location of a partition's file. (Without torch: the client of a distributed run needs it.)"""

from typing import NamedTuple


class Location(NamedTuple):
    """Folder and version of a file. Equal revisions are equal files; version 0 means no file yet."""

    revision: int
    path: str
    version: int
