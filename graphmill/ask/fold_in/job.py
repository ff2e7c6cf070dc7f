"""Vectors for ids that a run has never seen, from tables of their edges.

{to}/                           replaced as a whole, once every file is written
    {type}/part-00000.parquet   id, type, embedding, confidence, num_edges
    _fold_in.json               what was asked, and figures
    _checksums.xxh128           checksums of the files
    _SUCCESS
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from graphmill import storage
from graphmill.ask.entities import read_tables
from graphmill.ask.fold_in.settings import FoldInOptions, ignores_regularizer, solvable_types
from graphmill.ask.fold_in.sorting import COUNTS, Sorting, sort_piece
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.output_checks import check_result_folder
from graphmill.run.work import Made, Work, make_result
from graphmill.storage import Checksums

RECORD = "_fold_in.json"
GROUP_ROWS = 1 << 17

ReadTables = Callable[[str, Client], Sequence[Mapping[str, Any]]]
"""Writes the tables as pieces into a folder, as etl/pieces.py does, and describes them."""

log = logging.getLogger("graphmill")


class NothingNewError(ConfigError):
    """The run knows all ids of the tables."""


@dataclass(frozen=True)
class Request:
    """A request to fold ids in.

    Attributes:
        described: the tables, for the record.
        uris: their files and folders.
        options: of the solution.
    """

    described: Mapping[str, Any]
    uris: Sequence[str]
    options: FoldInOptions = field(default_factory=FoldInOptions)


def check(config: Config, request: Request, to: str) -> TrainedRun:
    """Refuse wrong options before anything is started or written.

    Raises:
        ConfigError: all types are featurized, or the folder holds other files.
        NotFoundError: there is no checkpoint, or no raw ids.
    """
    check_result_folder(to, RECORD)
    solvable_types(config)
    return TrainedRun.with_ids(config, config.remap.checkpoint_version)


def run(
    config: Config, request: Request, read: ReadTables, to: str, client: Client, claim: Claim = NO_CLAIM
) -> dict[str, Any]:
    """Write the vectors; return the figures, which `_fold_in.json` has too.

    Raises:
        RawTableError: a table cannot be read, or names a relation that the run does not have.
        NothingNewError: no id of the tables is new.
        FormatError: checkpoint, raw ids or edges are damaged or do not fit each other.
    """
    began_s = time.monotonic()
    trained = check(config, request, to)
    if ignores_regularizer(config):
        log.warning("fold-in: solutions leave the regularizer %s out", config.regularizer)
    asked = {**request.described, **request.options.model_dump()}
    uris = [config.entity_path, config.checkpoint_path, *request.uris]
    made_from = {"fold_in": asked, "inputs": fingerprints.describe_inputs(uris)}

    def write(work: Work) -> Made:
        pieces = work.once("pieces", lambda: [dict(piece) for piece in read(work.uri(), client)])
        counts, checksums = _solve(trained, request, pieces, work)
        figures = asked | {"checkpoint_version": trained.version, "num_files": len(checksums)} | counts
        return figures | {"seconds": round(time.monotonic() - began_s, 3)}, checksums

    return make_result("fold-in", to, RECORD, made_from, write, client, claim, version=trained.version)


def _solve(
    trained: TrainedRun, request: Request, pieces: Sequence[Mapping[str, Any]], work: Work
) -> tuple[dict[str, int], Checksums]:
    """Sort the pieces, and solve their ids; return counts, and the checksums of the files of vectors."""
    config = trained.config
    tables = read_tables(trained, solvable_types(config), work.client)
    num_rows = sum(piece["num_rows"] for piece in pieces)
    num_groups = max(1, -(-num_rows // GROUP_ROWS))
    sorting = Sorting(config, tables, num_groups, request.options.max_edges)
    uris = [work.uri(f"sorted-{number:06d}.arrow") for number in range(len(pieces))]
    tasks = {
        storage.name(uri): (sorting, piece["uri"], piece["type"], uri)
        for piece, uri in zip(pieces, uris, strict=True)
    }
    parts = work.run_tasks(sort_piece, tasks, description="finding new ids", unit="pieces")
    counts = _added([dict.fromkeys(COUNTS, 0), *parts])
    new_types = [name for name in tables if counts.pop(f"type:{name}", 0)]
    if not num_rows:
        log.warning("fold-in: the tables have no rows: neither has the result")
        new_types = list(tables)
    if not new_types:
        raise NothingNewError(
            f"new edges: expected ids that the run does not know, found none in {num_rows:,} rows; the run "
            "has vectors for all of them"
        )
    model = work.client.submit(_read_model, trained, tables, request.options, pure=False)
    solving = {
        f"solved-{storage.file_name(name)}-{group}": (model, sorting, uris, name, group, work.folder)
        for name in new_types
        for group in range(sorting.num_groups)
    }
    written = work.run_tasks(_solve_group, solving, description="solving", unit="groups")
    solved = _added([counts for counts, _ in written])
    solved["num_over_limit"] = counts["num_usable"] - solved["num_edges"]
    checksums = {uri: checksum for _, files in written for uri, checksum in files.items()}
    return {"num_rows": num_rows} | counts | solved, checksums


def _read_model(*arguments: Any) -> Any:
    from graphmill.ask.fold_in.frozen import read_model  # imports torch, which this process does without

    return read_model(*arguments)


def _solve_group(*arguments: Any) -> tuple[dict[str, int], Checksums]:
    from graphmill.ask.fold_in.solver import solve_group

    return solve_group(*arguments)


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for count in counts for name in count)
    return {name: sum(count.get(name, 0) for count in counts) for name in names}
