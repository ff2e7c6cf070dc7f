"""Legacy input, and checkpoints of other formats, made into PBG v1 where a run can use them.

    {checkpoint_path}.adopted/
        entities/       from a legacy entityPath        _SUCCESS
        edges/{name}/   from each of edgePaths          _SUCCESS
        init/           from an init_path of any format _SUCCESS

Each folder appears whole, marked with what it was made from: it is made once, and again when that changes.
The sources are only read. A legacy outdir gets v1's files beside its own; checkpoint_version.txt, written
last, makes them count.
"""

import logging
from collections.abc import Sequence

from graphmill import checkpoints, storage
from graphmill.checkpoints import convert
from graphmill.errors import FormatError
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_legacy.index_base import IndexBase
from graphmill.run import lock, record

log = logging.getLogger("graphmill")


def is_legacy_input(entity_path: str) -> bool:
    """Whether the folder holds legacy entity counts."""
    names = (storage.name(entry.uri) for entry in storage.list_dir(entity_path))
    return any(name.startswith("entity_count_") and name.endswith(".pt") for name in names)


def adopt_inputs(
    entity_path: str, edge_paths: Sequence[str], target_uri: str, index_base: IndexBase = "auto"
) -> tuple[str, tuple[str, ...]]:
    """The entity path and edge paths that a run can read: the given ones, or v1's made of legacy ones.

    Raises:
        FormatError: the index base cannot be told, or an edge points at no entity.
        LockedError: another run does the same just now.
    """
    if not is_legacy_input(entity_path):
        return entity_path, tuple(edge_paths)
    # A room that needs torch, which costs a second: entered where there is something to adopt.
    from graphmill.checkpoints import legacy_input

    with lock.held(whole=[target_uri]) as claim:
        return legacy_input.adopt(entity_path, edge_paths, target_uri, index_base, claim)


def adopt_init(init_path: str, target_uri: str, entity_path: str, index_base: IndexBase = "auto") -> str:
    """An init_path that a run can read: the given one, or v1's made of another format's.

    `entity_path` tells the partitions of formats that know none.

    Raises:
        FormatError: the checkpoint is damaged, or has other rows than there are entities.
        LockedError: another run does the same just now.
    """
    found = checkpoints.recognise(init_path)
    if found == "pbg":
        return init_path
    made_from = {"source": record.describe_inputs([init_path]), "index_base": index_base}
    adopted = storage.join(target_uri, "init")
    if storage.read_marker(adopted) != made_from:
        log.info("adopting init_path %s, which is %s", init_path, found)
        with lock.held(whole=[target_uri]) as claim:
            storage.delete(adopted)
            knows_partitions = found == "pbg-legacy"
            done = convert.convert(
                init_path,
                adopted,
                "pbg",
                entity_path=None if knows_partitions else entity_path,
                index_base=index_base,
                claim=claim,
            )
            for each in done.not_kept:
                log.info("adopting init_path: not kept: %s", each)
            storage.write_marker(adopted, made_from)
    return adopted


def adopt_outdir(checkpoint_path: str, index_base: IndexBase = "auto") -> None:
    """Give a legacy outdir v1's files of its version, so that training goes on from there.

    Raises:
        FormatError: the checkpoint is damaged, or the index base cannot be told.
    """
    names = {storage.name(entry.uri) for entry in storage.list_dir(checkpoint_path)}
    if "CHECKPOINT_VERSION" not in names or pbg_checkpoint.read_version(checkpoint_path):
        return
    from graphmill.checkpoints import pbg
    from graphmill.checkpoints.pbg_legacy import LegacyCheckpoint

    source = LegacyCheckpoint(checkpoint_path, None, index_base)
    if not source.version:
        raise FormatError(
            f"{checkpoint_path}: a legacy checkpoint of version 0 holds initial values; use it as init_path"
        )
    log.info("adopting the legacy checkpoint %s, %s", checkpoint_path, convert.described(source))
    pbg.write(source, checkpoint_path)
