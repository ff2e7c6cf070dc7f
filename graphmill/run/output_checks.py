"""Checks of the folders that a run writes: they hold no table, and no files of others.

    output/     run.json, or files that only our stages or PBG write; else only names that a run writes

The checks come before the first file is written, which is a lock.
"""

import re
from collections.abc import Iterable, Sequence

from graphmill import storage
from graphmill.config import Config
from graphmill.config.stages import STAGES, named
from graphmill.errors import ConfigError
from graphmill.run.job import job_of

_LEFTOVERS = (
    r"\..+\.(?:tmp|old|retired)-[0-9a-f]{12}|\.(?:.+\.)?graphmill\.lock.*|\.graphmill\.life-.+"
    r"|\.etl-work-[0-9a-f]{12}|\..+\.crc"
)
# A configuration too: users put it where its run is to be.
_OF_OUTPUT = (
    r".+\.ya?ml|"
    r"report\.html|_SUCCESS|entities|edges|quarantine|tensorboard"
    r"|checkpoint(?:\.adopted|\.stale.*)?|embeddings(?:\.faiss)?"
)
_OF_STAGES = re.compile(
    r"entity_count_.+\.txt|edges_\d+_\d+\.h5|checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json"
)


def check_outputs(config: Config, stages: Sequence[str], *, is_chosen: bool = True) -> None:
    """Refuse to write where tables or files of others are.

    Unless the user has chosen `output`, it is the folder around a checkpoint, which may hold anything else.

    Raises:
        ConfigError: a folder that the stages write holds such files.
    """
    written = [(f"the output of {name}", uri) for name in stages for uri in job_of(name).written_uris(config)]
    if config.output is not None:
        written.insert(0, ("output", config.output))
    tables = [uri for stage in STAGES.values() if stage.tables for uri in named(stage.tables)(config)]
    _check_tables(written, tables)
    _check_output(config, is_chosen=is_chosen)
    for name in stages:
        job_of(name).check_outputs(config)


def _check_output(config: Config, *, is_chosen: bool) -> None:
    """Refuse an `output` that has the run.json of others and, if the user has chosen it, any files of theirs.

    Raises:
        ConfigError: `output` is a file, or a folder that is neither empty nor of an earlier run.
    """
    record_uri = config.record_uri(config.checkpoint_path)
    has_record = _has_our_record(record_uri)
    if config.output is None or has_record or not is_chosen:
        return
    found = storage.status(config.output)
    if found and not found.is_dir:
        raise ConfigError(f"output: expected a folder, or none yet, found the file {config.output}")
    if not _has_our_files(config.output):
        check_folder(config.output, _OF_OUTPUT, "output", "which no run of ours wrote")


def check_folder(uri: str, names: str, setting: str, reason: str, *, below: bool = False) -> None:
    """Refuse a folder with an entry, hidden or not, whose name does not match the pattern `names`.

    With `below` also in its subfolders, which may have any name.

    Raises:
        ConfigError: there is such an entry; the message gives `reason`.
    """
    pattern = re.compile(f"{names}|{_LEFTOVERS}")
    for entry in storage.list_dir(uri, recursive=below, hidden=True):
        if not (below and entry.is_dir) and not pattern.fullmatch(storage.name(entry.uri)):
            raise ConfigError(
                f"{setting}: {uri} holds {entry.uri}, {reason}; choose another folder, or move that away"
            )


def _check_tables(written: Iterable[tuple[str, str]], tables: Sequence[str]) -> None:
    """Refuse to write over tables, or around them.

    Args:
        written: Settings, and the folders that they name.
        tables: Files of tables, and folders that tables are searched in.

    Raises:
        ConfigError: a table is one of the folders, or lies below it.
    """
    for setting, uri in written:
        inside = next((table for table in tables if storage.contains(uri, table)), None)
        if inside is not None:
            raise ConfigError(
                f"{setting}: a table is read from {inside}, which is {uri} or lies in it; results go to a "
                "folder of their own, beside the tables or below them"
            )


def _has_our_files(output: str) -> bool:
    """Tell whether a stage has written there: then users may have put files of their own beside."""
    splits = [each.uri for each in storage.list_dir(storage.join(output, "edges")) if each.is_dir]
    folders = [storage.join(output, "entities"), storage.join(output, "checkpoint"), *splits]
    entries = (entry for folder in folders for entry in storage.list_dir(folder))
    return any(_OF_STAGES.fullmatch(storage.name(entry.uri)) for entry in entries)


def _has_our_record(uri: str) -> bool:
    """Tell whether there is a run.json of GraphMill.

    Raises:
        ConfigError: another program wrote the file.
    """
    if not storage.exists(uri):
        return False
    if "stages" not in storage.read_json(uri):
        raise ConfigError(f"{uri}: expected the record of a run, found another's file; move it away")
    return True
