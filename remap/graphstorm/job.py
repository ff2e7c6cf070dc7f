"""The job: find files, read maps, write tables, verify, commit, and only then delete the inputs."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from distributed import Client, get_worker

from graphmill import cluster, storage
from graphmill.checkpoints.finite import first_not_finite
from graphmill.checkpoints.graphstorm import saved_ranks
from graphmill.display import progress
from graphmill.errors import ClusterError, FormatError, StorageError
from graphmill.run import lock
from graphmill.storage import run_folder
from remap import tables
from remap.graphstorm import commit
from remap.graphstorm.commit import Journal, Move
from remap.graphstorm.discover import STEMS, OutputFile, check_folders, find_outputs
from remap.graphstorm.id_map import MapPlan, open_table, plan_map
from remap.graphstorm.options import GraphStormOptions
from remap.graphstorm.unique_ids import check_ranks

SCRATCH = "graphmill-remap"
BATCH_BYTES = 32 << 20
_MAX_BATCH_ROWS = 1 << 18
_MIN_BATCH_ROWS = 64
_ID_BYTES = 64  # an integer id and its raw id, roughly

Connect = Callable[[], AbstractContextManager[Client]]

log = logging.getLogger("graphmill")


def run(options: GraphStormOptions, connect: Connect) -> dict[str, Any]:
    """Do the whole job, or finish an interrupted job; return the numbers of rows and files.

    `connect` starts a cluster. A job without work never calls `connect`.
    """
    check_folders(options)
    with lock.held(*_roots(options)) as claim:
        return _run(options, connect, claim)


def _run(options: GraphStormOptions, connect: Connect, claim: lock.Claim) -> dict[str, Any]:
    started = time.monotonic()
    for root in _roots(options):
        journal = commit.read_journal(root)
        if journal is not None:
            named = (options.node_emb_dir, options.prediction_dir, options.output_dir)
            commit.check_places(journal, list(filter(None, named)))
            log.info("remap: finishing the job that was interrupted in %s", root)
            earlier = GraphStormOptions.model_validate(journal.options, strict=False)
            with connect() as client:
                are_the_same = commit.finish(journal, partial(_count_rows, client, earlier), claim)
            if earlier == options and are_the_same and journal.inputs:
                return journal.figures
    outputs, sources = find_outputs(options)
    inputs = commit.describe_inputs(sources)
    types = dict.fromkeys(entity_type for output in outputs for _, entity_type in output.ids)
    plans = {name: plan_map(options.node_id_mapping, name, str(number)) for number, name in enumerate(types)}
    roots = list(dict.fromkeys(output.root for output in outputs)) or _roots(options)
    works = [commit.work_uri(root) for root in roots]
    for work in works:  # of a job that has no journal
        storage.delete(work)
    with connect() as client:
        mapped = time.monotonic()
        with storage.discarded_on_error(*works, check=claim.check):
            moves, are_all_there = _write_all(client, options, outputs, plans)
            keeps_input = options.preserve_input or (options.with_shared_fs and not are_all_there)
            if keeps_input and not options.preserve_input:
                log.warning("remap: the input is kept: files of the other ids may be missing")
            targets = {move.target for move in moves}
            figures: dict[str, Any] = {
                "num_rows": sum(output.num_rows for output in outputs),
                "num_files": len(outputs),
                "num_ids": {entity_type: plan.num_ids for entity_type, plan in plans.items()},
            }
            journal = Journal(
                options.model_dump(mode="json"),
                roots,
                moves,
                [uri for uri in _earlier_tables(outputs) if uri not in targets],
                [] if keeps_input else inputs,
                figures,
            )
        written = time.monotonic()
        claim.check()
        commit.write_journal(journal)
        commit.finish(journal, partial(_count_rows, client, options), claim)
    log.info(
        "remap: %d rows in %d files; %.1f s to find and connect, %.1f s to remap, %.1f s to commit",
        figures["num_rows"],
        figures["num_files"],
        mapped - started,
        written - mapped,
        time.monotonic() - written,
    )
    return figures | {"seconds": round(time.monotonic() - mapped, 3)}


def _roots(options: GraphStormOptions) -> list[str]:
    roots = [options.output_dir or uri for uri in (options.node_emb_dir, options.prediction_dir) if uri]
    return list(dict.fromkeys(roots))


def _write_all(
    client: Client, options: GraphStormOptions, outputs: Sequence[OutputFile], plans: Mapping[str, MapPlan]
) -> tuple[list[Move], bool]:
    """Write every table into the work folder; return their final places, and whether all ids have rows."""
    token = uuid.uuid4().hex
    suffix = f".{options.output_format}"
    moves = [
        Move(
            commit.work_uri(output.root, "files", output.path + suffix),
            storage.join(output.root, output.path + suffix),
            output.num_rows,
        )
        for output in outputs
    ]
    arguments = [
        (output, move.written, options, [plans[entity_type] for _, entity_type in output.ids], token)
        for output, move in zip(outputs, moves, strict=True)
    ]
    num_workers = len(cluster.worker_addresses(client))
    try:
        if plans:
            maps = [(list(plans.values()), token)] * num_workers
            cluster.run_tasks(client, read_maps, maps, description="reading the maps", unit="workers")
        num_ids = {plan.entity_type: plan.num_ids for plan in plans.values()}
        are_all_there = check_ranks(client, outputs, num_ids)
        cluster.run_tasks(client, write_table, arguments, description="remapping", unit="files")
    finally:
        try:
            with cluster.cleaning_up(client):
                client.run(_remove_scratch, token, on_error="ignore")
        except (OSError, ClusterError, ValueError):  # without a cluster, the next job cleans up
            log.debug("scratch folders could not be removed", exc_info=True)
    return moves, are_all_there


def _count_rows(client: Client, options: GraphStormOptions, uris: list[str]) -> list[int]:
    if options.output_format == "parquet":  # reading a footer is faster than a task
        return [tables.count_rows(uri, options.tables) for uri in uris]
    arguments = [(uri, options.tables) for uri in uris]
    return cluster.run_tasks(client, tables.count_rows, arguments, description="verifying", unit="files")


def read_maps(plans: Sequence[MapPlan], token: str) -> None:
    """Make the tables of ids on this machine, together with its other workers; a Dask task."""
    for plan in plans:
        open_table(plan, _scratch_path(token))


def write_table(
    output: OutputFile, uri: str, options: GraphStormOptions, plans: Sequence[MapPlan], token: str
) -> int:
    """Write one table and count its rows; a Dask task."""
    ranked = output.ranked
    id_tables = [open_table(plan, _scratch_path(token)) for plan in plans]
    columns = [output.values_column, *(column for column, _ in output.ids)]
    types = [tables.values_type(ranked.dtype, ranked.shape, options.tables), *(plan.kind for plan in plans)]
    schema = pa.schema(list(zip(map(options.column, columns), types, strict=True)))
    where = ranked.nids_uris or (ranked.values_uri,)
    row = output.start
    row_bytes = 8 * (ranked.shape[1] if len(ranked.shape) == 2 else 1) + _ID_BYTES
    batch_rows = max(_MIN_BATCH_ROWS, min(_MAX_BATCH_ROWS, BATCH_BYTES // row_bytes))
    with tables.open_table(uri, schema, options.tables) as table:
        for ids, values in saved_ranks.iter_rows(ranked, batch_rows, output.start, output.stop):
            raw_ids = [
                id_table.take(nids, nids_uri, row)
                for id_table, nids, nids_uri in zip(id_tables, ids, where, strict=True)
            ]
            if not options.allow_non_finite and (wrong := first_not_finite(values)) is not None:
                named = ", ".join(
                    f"{entity_type} {raw_id[wrong].as_py()!r}"
                    for (_, entity_type), raw_id in zip(output.ids, raw_ids, strict=True)
                )
                raise FormatError(
                    f"{ranked.values_uri}: row {row + wrong}, of {named}, is not finite; save the "
                    "model again in GraphStorm; --allow-non-finite writes the row as it is"
                )
            table.append([values, *raw_ids])
            row += len(values)
            # Ends a cancelled task here.
            progress.report(f"remapping {output.path}", row - output.start, output.num_rows, "rows")
    counted = tables.count_rows(uri, options.tables)
    if counted != output.num_rows:
        raise StorageError(f"{uri}: expected {output.num_rows} rows as written, found {counted}")
    return counted


def _scratch_path(token: str) -> str:
    return run_folder.use_folder(_scratch_root(get_worker()), SCRATCH, token)


def _remove_scratch(token: str, dask_worker: Any) -> None:
    open_table.cache_clear()
    run_folder.remove_folder(_scratch_root(dask_worker), SCRATCH, token)


def _scratch_root(worker: Any) -> str:
    # Beside the files of Dask, whose folder the configuration sets.
    return str(Path(worker.local_directory).parent)


def _earlier_tables(outputs: Sequence[OutputFile]) -> list[str]:
    """Find tables of an earlier job in the same folders: readers would take them for tables of this job."""
    stems = {
        (storage.parent(storage.join(output.root, output.path)), STEMS[output.values_column])
        for output in outputs
    }
    return [
        entry.uri
        for folder, stem in sorted(stems)
        for entry in storage.list_dir(folder)
        if re.fullmatch(rf"{re.escape(stem)}-\d+_\d+\.(parquet|csv)", storage.name(entry.uri))
    ]
