"""The storage that pyiceberg reads through: ours, read only, inside the folders of the table."""

from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from etl.tables.lake.snapshot import Places, plain_uri
from graphmill import storage
from graphmill.errors import StorageError


class StorageIO(FileIO):
    """Reads files by `graphmill.storage`; with `places`, only files there."""

    def __init__(self, properties: Properties = EMPTY_DICT, places: Places | None = None) -> None:
        super().__init__(properties)
        self._places = places

    def new_input(self, location: str) -> InputFile:
        """Return a file to read; a FormatError refuses one outside the table's folders."""
        return _Input(
            location, plain_uri(location) if self._places is None else self._places.uri_of(location)
        )

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        raise StorageError(f"{location}: tables are only read")

    def delete(self, location: Any) -> None:
        """Refuse to delete."""
        raise StorageError(f"{location}: tables are only read")


class _Input(InputFile):
    def __init__(self, location: str, uri: str) -> None:
        super().__init__(location)
        self._uri = uri

    def __len__(self) -> int:
        status = storage.status(self._uri)
        return status.size_bytes if status else 0

    def exists(self) -> bool:
        return storage.exists(self._uri)

    def open(self, seekable: bool = True) -> Any:
        return storage.open_input(self._uri)
