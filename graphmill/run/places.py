"""Checks the places that a run writes: no table, and no files of others.

    output/     run.json, or files that only our stages or PBG write; else nothing that is not called as ours

All is looked at before the first file is written: the lock is one too.
"""

import re
from collections.abc import Iterable

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError

_LEFTOVERS = (
    r"\..+\.(?:tmp|old|retired)-[0-9a-f]{12}|\.(?:.+\.)?graphmill\.lock.*|\.graphmill\.life-.+"
    r"|\.etl-work-[0-9a-f]{12}|\..+\.crc"
)
# A configuration too: the user has laid it where its run is to be.
_OF_OUTPUT = (
    r".+\.ya?ml|"
    r"report\.html|_SUCCESS|entities|edges|quarantine|tensorboard"
    r"|checkpoint(?:\.adopted|\.stale.*)?|embeddings(?:\.faiss)?"
)
_OF_STAGES = re.compile(
    r"entity_count_.+\.txt|edges_\d+_\d+\.h5|checkpoint_version\.txt|CHECKPOINT_VERSION|graphmill\.json"
)


def check_output(config: Config, *, is_chosen: bool = True) -> None:
    """Refuse an `output` that has the run.json of others and, if the user has chosen it, any files of theirs.

    Raises:
        ConfigError: it is a file, or a folder that is neither empty nor of an earlier run.
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
    """Refuse a folder in which something, hidden or not, is called otherwise than the pattern `names` has it.

    With `below` so too in its folders, which may have any name.

    Raises:
        ConfigError: there is such a thing, `reason` says what is the matter with it.
    """
    pattern = re.compile(f"{names}|{_LEFTOVERS}")
    for entry in storage.list_dir(uri, recursive=below, hidden=True):
        if not (below and entry.is_dir) and not pattern.fullmatch(storage.name(entry.uri)):
            raise ConfigError(
                f"{setting}: {uri} holds {entry.uri}, {reason}; choose another folder, or move that away"
            )


def check_tables(places: Iterable[tuple[str, str]], tables: Iterable[str]) -> None:
    """Refuse to write over tables, or around them.

    Args:
        places: a setting, and the folder that it names.
        tables: files of tables, and folders that tables are looked for in.

    Raises:
        ConfigError: a table is one of the folders, or lies below it.
    """
    tables = list(tables)
    for setting, uri in places:
        inside = next((table for table in tables if storage.contains(uri, table)), None)
        if inside is not None:
            raise ConfigError(
                f"{setting}: a table is read from {inside}, which is {uri} or lies in it; results go to a "
                "folder of their own, beside the tables or below them"
            )


def _has_our_files(output: str) -> bool:
    """Whether a stage has been at work in it: then the user may have laid things of his beside."""
    splits = [each.uri for each in storage.list_dir(storage.join(output, "edges")) if each.is_dir]
    folders = [storage.join(output, "entities"), storage.join(output, "checkpoint"), *splits]
    entries = (entry for folder in folders for entry in storage.list_dir(folder))
    return any(_OF_STAGES.fullmatch(storage.name(entry.uri)) for entry in entries)


def _has_our_record(uri: str) -> bool:
    """Whether there is a run.json, which is ours.

    Raises:
        ConfigError: it is that of another program.
    """
    if not storage.exists(uri):
        return False
    if "stages" not in storage.read_json(uri):
        raise ConfigError(f"{uri}: expected the record of a run, found another's file; move it away")
    return True
