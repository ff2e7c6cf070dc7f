"""Results of commands as folders, and the work on one that is unfinished.

    .{name}.tmp-{digest}/       beside the folder of the result, whose place it takes; digest of the request
        *                       files of the result
        _work/                  what is needed until then
            done/{task}.json    the result of a finished task, written after its files
            *                   files of tasks for other tasks

After a kill or a fault of the cluster the same request goes on there, and another one begins anew. After bad
input the folder is deleted, because the same request would fail again.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from distributed import Client

from graphmill import storage
from graphmill.cluster import run_tasks
from graphmill.errors import BadInputError, LockedError, NotFoundError, StorageError
from graphmill.run.lock import Claim
from graphmill.storage import Checksums
from graphmill.version import __version__

_WORK, _DONE = "_work", "done"

Result = TypeVar("Result")
Made = tuple[dict[str, Any], Checksums]  # figures of a result, and checksums of all its files

log = logging.getLogger("graphmill")


@contextmanager
def kept_unless_wrong(command: str, folder: str, discard: Callable[[], None], claim: Claim) -> Iterator[None]:
    """Keep unfinished work in `folder` when the block fails; discard it after bad input."""
    try:
        yield
    except (BadInputError, NotFoundError):
        with suppress(StorageError, LockedError):  # the first error is the one to report
            claim.check()
            discard()
        raise
    except BaseException:
        log.info("%s: finished work stays in %s; the same command goes on from there", command, folder)
        raise


def complete(folder: str, checksums: Checksums, record: str | None = None, work: str | None = None) -> None:
    """Remove temporary files of dead workers, check that the folder holds the files of `checksums` alone, and
    write their manifest. The file `record`, with times of the run, has no checksum. The folder
    `work` in it is not looked at.
    """
    manifest_uri = storage.published_manifest(folder).uri
    expected = {*checksums, *([storage.join(folder, record)] if record else [])}
    storage.delete(manifest_uri)  # of a command that was killed here
    for parent in {storage.parent(uri) for uri in expected}:
        storage.sweep(parent)
    uris = {entry.uri for entry in storage.list_dir(folder, recursive=True) if not entry.is_dir}
    uris = {uri for uri in uris if work is None or not uri.startswith(f"{work}/")}
    if uris != expected:
        wrong = ", ".join(sorted(uris ^ expected)[:5])
        raise StorageError(f"{folder}: expected {len(expected)} files; missing or foreign: {wrong}")
    storage.write_checksums(manifest_uri, checksums)


@dataclass(frozen=True)
class Work:
    """The work on one result; `folder` has its files until it takes its place, `client` runs its tasks."""

    command: str
    folder: str
    client: Client

    def uri(self, *parts: str) -> str:
        """Name a place for what is needed until the result is finished."""
        return storage.join(self.folder, _WORK, *parts)

    def part_uri(self, number: int) -> str:
        """Name a parquet file of the result."""
        return storage.join(self.folder, f"part-{number:05d}.parquet")

    def once(self, name: str, do: Callable[[], Result]) -> Result:
        """Return the result (JSON types) of `do`, which is not called again by a command that goes on."""
        return _noted(self.uri(_DONE, f"{name}.json"), do)

    def run_tasks(
        self,
        function: Callable[..., Result],
        arguments: Mapping[str, tuple[Any, ...]],
        *,
        description: str,
        unit: str,
    ) -> list[Result]:
        """Run a task for each of `arguments` by name; the result (JSON types) of a finished task is read."""
        notes = {name: self.uri(_DONE, f"{name}.json") for name in arguments}
        there = {entry.uri for entry in storage.list_dir(self.uri(_DONE))}
        if num_there := sum(uri in there for uri in notes.values()):
            log.info("%s: %d of %d %s are there already", self.command, num_there, len(notes), unit)
        tasks = [(notes[name], function, *argument) for name, argument in arguments.items()]
        return run_tasks(self.client, _noted, tasks, description=description, unit=unit)


def make_result(
    command: str,
    to: str,
    record: str,
    made_from: Mapping[str, Any],
    make: Callable[[Work], Made],
    client: Client,
    claim: Claim,
    **layout: Any,
) -> dict[str, Any]:
    """Make the folder `to`, or go on with the work of the same request; return its figures.

    Args:
        command: Name for the log.
        to: The folder of the result, which is replaced as a whole.
        record: Name of the file that has the figures too.
        made_from: The request and its inputs, JSON types, for the marker.
        make: Writes the files; returns figures and the checksums of all files.
        client: Runs the tasks of the work.
        claim: Checked before the folder takes its place.
        layout: More of what unfinished files depend on, JSON types.
    """
    digest = hashlib.sha256(json.dumps([__version__, made_from, layout], sort_keys=True).encode()).hexdigest()
    to = storage.resolved(to)
    folder = storage.join(storage.parent(to), f".{storage.name(to)}.tmp-{digest[:12]}")
    work = Work(command, folder, client)
    storage.recover(to, keep=folder)
    storage.make_dir(folder)
    with kept_unless_wrong(command, folder, lambda: storage.delete(folder), claim):
        if storage.read_marker(folder) is None:
            figures, checksums = make(work)
            storage.write_json(storage.join(folder, record), figures, indent=1)
            complete(folder, checksums, record, work.uri())
            storage.write_marker(folder, made_from)
        else:  # killed before it got its name
            figures = storage.read_json(storage.join(folder, record))
        storage.delete(work.uri())
        claim.check()
        storage.replace_directory(folder, to)
    return figures


def _noted(uri: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a note has, or call the function and write the note. Also a Dask task."""
    if storage.exists(uri):
        noted: Result = storage.read_json(uri)["result"]
        return noted
    result = function(*arguments)
    storage.write_json(uri, {"result": result})
    return result
