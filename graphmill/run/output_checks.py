"""Checks of the folders that a run writes: they hold no table, and no files of other programs.

    output/     run.json, or files that only our stages or PBG write; otherwise only names that a run writes
    shared      folders in which a stage writes beside files of others: the stage itself checks them

A run makes these checks before it writes its first file, a lock.
"""

import re
from collections.abc import Iterable, Sequence

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError, StorageError
from graphmill.run import lock
from graphmill.run.job import Stage
from graphmill.run.record import read_record

PARTS = r"part-[0-9]{5,}\.parquet"
_LEFTOVERS = (
    r"\..+\.(?:tmp|old|retired)-[0-9a-f]{12}|\.(?:.+\.)?graphmill\.lock.*|\.graphmill\.life-.+"
    r"|\.etl-work-[0-9a-f]{12}|\..+\.crc"
)
# Users also put the configuration of a run into its output.
_OF_OUTPUT = (
    r".+\.ya?ml|"
    r"report\.html|calibration\.json|_SUCCESS|results|entities(?:\.stale.*)?|edges|quarantine|tensorboard|tune"
    r"|checkpoint(?:\.adopted|\.stale.*)?|embeddings(?:\.faiss)?"
)
_OF_STAGES = re.compile(
    r"entity_count_.+\.txt|edges_\d+_\d+\.h5|checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json"
)


def check_storage(config: Config, stages: Sequence[Stage]) -> None:
    """Refuse outputs of all `stages` on storage that takes none, without a look at any storage."""
    for uri in (config.output, *(uri for stage in stages for uri in stage.job.written_uris(config))):
        if uri is not None:
            storage.check_moves_folders(uri)


def check_writable(uris: Iterable[str]) -> None:
    """Refuse outputs where no file can be made; none is left."""
    for uri in map(storage.absolute, uris):
        folder = uri
        while not storage.exists(folder):
            folder = storage.parent(folder)
        try:
            lock.now_ns(storage.join(folder, lock.NAME))
        except StorageError as error:
            raise type(error)(f"{uri}: this output cannot be made: {error}; choose another folder") from error


def check_outputs(
    config: Config, stages: Sequence[Stage], tables: Sequence[str], *, is_chosen: bool = True
) -> None:
    """Refuse to write to folders with tables or files of other programs.

    `tables`: files and folders of the user's tables. Without `is_chosen`, `output` is the folder around
    a checkpoint, which may hold any other files.
    """
    written = [
        (f"the output of {stage.name}", uri)
        for stage in stages
        for uri in stage.job.written_uris(config)
        if uri not in stage.shared_uris(config)
    ]
    if config.output is not None:
        written.insert(0, ("output", config.output))
    for setting, uri in written:
        for inside in tables_in(uri, tables):
            raise ConfigError(
                f"{setting}: a table is read from {inside}, which is {uri} or lies in it; results go to a "
                "folder of their own, beside the tables or below them"
            )
    has_record = read_record(config.record_uri(config.checkpoint_path)) is not None
    if config.output is not None and is_chosen and not has_record:
        _refuse_file(config.output, "output")
        if not _has_our_files(config.output):
            check_folder(config.output, _OF_OUTPUT, "output", "which no run of ours wrote")
    for stage in stages:
        stage.job.check_outputs(config)


def tables_in(uri: str, tables: Sequence[str]) -> list[str]:
    """List those of the tables, files and folders, that are a folder or lie in it."""
    return [table for table in tables if storage.contains(uri, table)]


def check_folder(uri: str, names: str, setting: str, reason: str, *, below: bool = False) -> None:
    """Refuse a folder with an entry, hidden or not, whose name does not match the pattern `names`.

    With `below`, refuse such files in subfolders too; the subfolders may have any name.
    """
    pattern = re.compile(f"{names}|{_LEFTOVERS}")
    for entry in storage.list_dir(uri, recursive=below, hidden=True):
        if not (below and entry.is_dir) and not pattern.fullmatch(storage.name(entry.uri)):
            raise ConfigError(
                f"{setting}: {uri} holds {entry.uri}, {reason}; choose another folder, or move that away"
            )


def check_result_folder(to: str, record: str, names: str = PARTS, setting: str = "--to") -> None:
    """Refuse to replace the folder that a setting names, unless it is empty or an earlier result.

    An earlier result has files of the pattern `names`, the file `record`, and no others but marks.
    """
    storage.check_moves_folders(to)
    _refuse_file(to, setting)
    ours = f"{names}|{storage.MARKER}|{storage.PUBLISHED}|{record}"
    check_folder(to, ours, setting, "and is replaced as a whole", below=True)
    if storage.list_dir(to) and not storage.exists(storage.join(to, record)):
        raise ConfigError(
            f"{setting}: {to} holds files, and no {record}, as an earlier result has; choose another folder"
        )


def _refuse_file(uri: str, setting: str) -> None:
    status = storage.status(uri)
    if status and not status.is_dir:
        raise ConfigError(f"{setting}: expected a folder, or none yet, found the file {uri}")


def _has_our_files(output: str) -> bool:
    """Tell whether a stage has written there: users may then have added files of their own."""
    splits = [entry.uri for entry in storage.list_dir(storage.join(output, "edges")) if entry.is_dir]
    folders = [storage.join(output, "entities"), storage.join(output, "checkpoint"), *splits]
    entries = (entry for folder in folders for entry in storage.list_dir(folder))
    return any(_OF_STAGES.fullmatch(storage.name(entry.uri)) for entry in entries)
