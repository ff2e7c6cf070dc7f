"""Import of legacy input and of checkpoints of other formats into PBG v1, for a training run.

    {checkpoint_path}.adopted/
        entities/       from a legacy entityPath        _SUCCESS
        edges/{name}/   from each of edgePaths          _SUCCESS
        init/           from an init_path of any format _SUCCESS

Each folder appears whole, with a marker that names its sources: the folder is made once, and again when a
source changes. The sources are only read. A legacy outdir gets v1's files beside its own;
checkpoint_version.txt, written last, commits them.
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
    """Entity path and edge paths of v1: the given paths, or the folders made from legacy ones.

    Raises:
        FormatError: the names fit no index base, or an edge has an unknown entity.
        LockedError: another run is importing too.
    """
    if not is_legacy_input(entity_path):
        return entity_path, tuple(edge_paths)
    # Imports torch, which takes a second, so only for legacy input.
    from graphmill.checkpoints import legacy_input

    with lock.held(whole=[target_uri]) as claim:
        return legacy_input.adopt(entity_path, edge_paths, target_uri, index_base, claim)


def adopt_init(init_path: str, target_uri: str, entity_path: str, index_base: IndexBase = "auto") -> str:
    """An init_path of v1: the given path, or the folder made from another format.

    `entity_path` has the partitions for formats without partitions.

    Raises:
        FormatError: the checkpoint is damaged, or its rows are not as many as the entities.
        LockedError: another run is importing too.
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
    """Add v1's files to a legacy outdir, so that training continues from its version.

    Raises:
        FormatError: the checkpoint is damaged, or the names fit no index base.
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
