"""Commit of a job: finished tables replace their inputs, and a kill at any moment loses nothing.

    {root}/.graphmill-remap/        hidden work folder of the job
        files/...                   1. write the tables and count their rows
        journal.json                2. write the journal: every table is verified
    {root}/{type}/...               3. rename the tables to their places, and count their rows again
                                    4. delete the inputs, unless they are to be kept
    {root}/_SUCCESS                 5. mark the folder as complete, then remove the journal

A job that dies before step 2 has changed nothing visible, and starts again from its inputs. After step 2, the
next command on the same folder finishes the job from the journal: every step may be repeated.
A folder without `_SUCCESS` is incomplete.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError, StorageError
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage.as_json import read_as

WORK = ".graphmill-remap"
JOURNAL = "journal.json"
FORMAT_VERSION = 1

CountRows = Callable[[list[str]], list[int]]


@dataclass(frozen=True)
class Move:
    """A verified table: the place where it was written, its final place, its rows."""

    written: str
    target: str
    num_rows: int


@dataclass(frozen=True)
class Input:
    """A file that the job has read, and deletes in the end if the file has not changed."""

    uri: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Journal:
    """The remaining work once every table is verified."""

    options: dict[str, Any]
    roots: list[str]
    moves: list[Move]
    replaced: list[str]
    inputs: list[Input]
    figures: dict[str, Any]


_JOURNAL = TypeAdapter(Journal)


def describe_inputs(uris: Iterable[str]) -> list[Input]:
    """Record the sizes and times of the inputs, before a task reads them."""
    inputs = []
    for uri in uris:
        if (status := storage.status(uri)) is None:
            raise NotFoundError(f"{uri}: there is no such file any more")
        inputs.append(Input(uri, status.size_bytes, status.mtime_ns))
    return inputs


def work_uri(root: str, *parts: str) -> str:
    """Return the work folder in an output folder, or a place in the work folder."""
    return storage.join(root, WORK, *parts)


def read_journal(root: str) -> Journal | None:
    """Read the journal of an interrupted job; None without a journal."""
    uri = work_uri(root, JOURNAL)
    if not storage.exists(uri):
        return None
    return read_as(_JOURNAL, storage.read_text(uri), uri, "the journal of a job", FORMAT_VERSION)


def check_places(journal: Journal, named: Sequence[str]) -> None:
    """Refuse a journal with places outside the folders `named` by the command: anybody can write a journal.

    A folder beside them that holds the same journal belongs to the job too.
    """
    beside = [
        root for root in journal.roots if any(storage.within(storage.parent(uri), root) for uri in named)
    ]
    known = [*named, *(root for root in beside if read_journal(root) == journal)]
    moved = [place for move in journal.moves for place in (move.written, move.target)]
    for uri in [*journal.roots, *moved, *journal.replaced, *(input_.uri for input_ in journal.inputs)]:
        if not any(storage.within(folder, uri) for folder in known):
            places = " and ".join(work_uri(folder) for folder in known)
            raise FormatError(
                f"{uri}: an interrupted job's journal names it; it is in no folder that this command names, "
                f"and is left alone; repeat the command that was interrupted, or delete {places}"
            )


def write_journal(journal: Journal) -> None:
    """Write the journal, once all tables are verified."""
    content = {"format_version": FORMAT_VERSION} | asdict(journal)
    for root in journal.roots:  # in each root: the next command may name one root alone
        storage.write_json(work_uri(root, JOURNAL), content, indent=1)


def finish(journal: Journal, count_rows: CountRows, claim: Claim = NO_CLAIM) -> bool:
    """Do or repeat the work of the journal; return whether no input changed. Changed inputs are kept."""
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
    for input_ in journal.inputs:
        status = storage.status(input_.uri)
        if status is None:  # deleted before a kill
            continue
        if (status.size_bytes, status.mtime_ns) == (input_.size_bytes, input_.mtime_ns):
            storage.delete(input_.uri)
        else:
            are_the_same = False
    for root in journal.roots:
        storage.write_marker(root, journal.figures)
    for root in journal.roots:
        storage.delete(work_uri(root))
    return are_the_same


def _wrong_table(journal: Journal, move: Move, counted: int | str) -> StorageError:
    places = " and ".join(map(work_uri, journal.roots))
    return StorageError(
        f"{move.target}: expected {move.num_rows} rows, found {counted}; the inputs are kept; "
        f"delete {places} to remap them anew"
    )
