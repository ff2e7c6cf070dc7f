"""Check of a folder that tasks have filled, before it takes its place."""

from graphmill import storage
from graphmill.errors import StorageError


def check_complete(folder: str, expected: set[str]) -> None:
    """Remove temporary files of dead workers, then check that the folder holds the expected files alone.

    Raises:
        StorageError: a file is missing, or another one is there.
    """
    for each in {storage.parent(uri) for uri in expected}:
        storage.sweep(each)
    found = {entry.uri for entry in storage.list_dir(folder, recursive=True) if not entry.is_dir}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected)[:5])
        raise StorageError(f"{folder}: expected {len(expected)} files; missing or foreign: {wrong}")
