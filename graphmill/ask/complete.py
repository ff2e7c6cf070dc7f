"""The last files of a folder that tasks have filled, before it takes its place."""

from graphmill import storage
from graphmill.errors import StorageError
from graphmill.storage import Checksums


def complete(folder: str, checksums: Checksums, record: str | None = None, work: str | None = None) -> None:
    """Remove temporary files of dead workers, check that the folder holds the files of `checksums` alone, and
    write their manifest. The file `record`, with times of the run, has no checksum. The folder
    `work` in it is not looked at.

    Raises:
        StorageError: a file is missing, or another one is there.
    """
    manifest_uri = storage.published_manifest(folder).uri
    expected = {*checksums, *([storage.join(folder, record)] if record else [])}
    storage.delete(manifest_uri)  # of a command that was killed here
    for each in {storage.parent(uri) for uri in expected}:
        storage.sweep(each)
    found = {entry.uri for entry in storage.list_dir(folder, recursive=True) if not entry.is_dir}
    found = {uri for uri in found if work is None or not uri.startswith(f"{work}/")}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected)[:5])
        raise StorageError(f"{folder}: expected {len(expected)} files; missing or foreign: {wrong}")
    storage.write_checksums(manifest_uri, checksums)
