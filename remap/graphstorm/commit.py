"""How finished tables take the place of their inputs, so that a kill at any moment loses nothing.

    {root}/.graphmill-remap/        the job's own, hidden
        files/...                   1. tables are written here, and their rows counted
        journal.json                2. what was verified: from here on the job is only ever finished
    {root}/{type}/...               3. tables are renamed to where they belong, and counted once more
                                    4. the inputs are deleted, if they are to be
    {root}/_SUCCESS                 5. the folder is whole; then the journal is removed

A job that dies before 2 has changed nothing that anybody sees, and is done again from its inputs. One that
dies after it is finished from the journal by the next command on the same folder: every step may be repeated.
Without `_SUCCESS` what is in the folder is not all there is.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError, StorageError
from graphmill.run.lock import NO_CLAIM, Claim

WORK = ".graphmill-remap"
JOURNAL = "journal.json"
FORMAT_VERSION = 1

log = logging.getLogger("graphmill")

CountRows = Callable[[list[str]], list[int]]


@dataclass(frozen=True)
class Move:
    """A table that is verified: where it was written, where it belongs, its rows."""

    written: str
    target: str
    num_rows: int


@dataclass(frozen=True)
class Input:
    """A file that is to be deleted in the end, if it still is what was read."""

    uri: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Journal:
    """All that is left to be done once every table is verified."""

    options: dict[str, Any]
    roots: list[str]
    moves: list[Move]
    replaced: list[str]
    inputs: list[Input]
    figures: dict[str, Any]


def describe_inputs(uris: Iterable[str]) -> list[Input]:
    """The inputs as they are now, before they are read.

    Raises:
        NotFoundError: one is gone.
    """
    found = ((uri, storage.status(uri)) for uri in uris)
    return [_describe(uri, status) for uri, status in found]


def _describe(uri: str, status: storage.FileStatus | None) -> Input:
    if status is None:
        raise NotFoundError(f"{uri}: there is no such file any more")
    return Input(uri, status.size_bytes, status.mtime_ns)


def work_uri(root: str, *parts: str) -> str:
    """The job's own folder in an output folder, or a place in it."""
    return storage.join(root, WORK, *parts)


def discard_unfinished(roots: Iterable[str]) -> None:
    """Remove what a job without a journal left."""
    for root in roots:
        storage.delete(work_uri(root))


@contextmanager
def discarded_on_error(roots: Sequence[str]) -> Iterator[None]:
    """Remove what the block has written, when it ends with an error."""
    try:
        yield
    except BaseException:
        with suppress(StorageError):  # the first error is the one to tell
            discard_unfinished(roots)
        raise


def read_journal(root: str) -> Journal | None:
    """The journal of a job that was interrupted, or None.

    Raises:
        FormatError: there is one, but it is damaged or of another version.
    """
    uri = work_uri(root, JOURNAL)
    if not storage.exists(uri):
        return None
    try:
        content = storage.read_json(uri)
        version = content.pop("format_version")
        if version != FORMAT_VERSION:
            raise FormatError(f"{uri}: format_version is {version!r}; this reader knows {FORMAT_VERSION}")
        lists = {
            "moves": [Move(**each) for each in content["moves"]],
            "inputs": [Input(**each) for each in content["inputs"]],
        }
        return Journal(**content | lists)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{uri}: expected the journal of a job, found something else: {error}") from error


def check_places(journal: Journal, named: Sequence[str]) -> None:
    """Refuse a journal of places that are not in the folders `named` by the command: it could be anybody's.

    A folder beside them that holds the same journal is the job's too.

    Raises:
        FormatError: one lies elsewhere.
    """
    beside = [
        root for root in journal.roots if any(storage.within(storage.parent(each), root) for each in named)
    ]
    known = [*named, *(root for root in beside if read_journal(root) == journal)]
    moved = [place for move in journal.moves for place in (move.written, move.target)]
    for uri in [*journal.roots, *moved, *journal.replaced, *(each.uri for each in journal.inputs)]:
        if not any(storage.within(folder, uri) for folder in known):
            places = " and ".join(work_uri(folder) for folder in known)
            raise FormatError(
                f"{uri}: an interrupted job's journal names it; it is in no folder that this command names, "
                f"and is left alone; repeat the command that was interrupted, or delete {places}"
            )


def write_journal(journal: Journal) -> None:
    """Write the journal: all tables are verified, from here on the job is only ever finished."""
    content = {"format_version": FORMAT_VERSION} | asdict(journal)
    for root in journal.roots:  # in each, as the next command may be about one of them alone
        storage.write_text(work_uri(root, JOURNAL), json.dumps(content, indent=1) + "\n")


def finish(journal: Journal, count_rows: CountRows, claim: Claim = NO_CLAIM) -> bool:
    """Do, or do again, all that the journal says; whether all inputs were still those that were read.

    Inputs that somebody has written anew since then are kept.

    Raises:
        StorageError: a table is not where it belongs with all its rows; no input has been deleted then.
        LockedError: another job has taken over.
    """
    claim.check()
    for root in journal.roots:
        storage.delete_marker(root)
    for uri in journal.replaced:
        storage.delete(uri)
    for folder in {storage.parent(move.target) for move in journal.moves}:
        storage.make_dir(folder)
    for move in journal.moves:
        if storage.exists(move.written):
            storage.move(move.written, move.target)
        elif not storage.exists(move.target):
            raise _wrong_table(journal, move, "none")
    counted = count_rows([move.target for move in journal.moves])
    for move, num_rows in zip(journal.moves, counted, strict=True):
        if num_rows != move.num_rows:
            raise _wrong_table(journal, move, num_rows)
    claim.check()
    are_the_same = True
    for each in journal.inputs:
        status = storage.status(each.uri)
        if status is None:  # deleted before a kill
            continue
        if (status.size_bytes, status.mtime_ns) == (each.size_bytes, each.mtime_ns):
            storage.delete(each.uri)
        else:
            are_the_same = False
    for root in journal.roots:
        storage.write_marker(root, journal.figures)
    for root in journal.roots:
        storage.delete(work_uri(root))
    return are_the_same


def _wrong_table(journal: Journal, move: Move, found: int | str) -> StorageError:
    places = " and ".join(map(work_uri, journal.roots))
    return StorageError(
        f"{move.target}: expected {move.num_rows} rows, found {found}; the inputs are kept; "
        f"delete {places} to remap them anew"
    )
