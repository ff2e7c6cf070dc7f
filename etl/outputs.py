"""The folders that the stage writes: what may be in them beforehand, and how they are replaced."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from etl.config import EtlConfig
from etl.layout import Folders
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats.edge_buckets import bucket_uri
from graphmill.vocab import Bucket

_OURS = re.compile(
    r"_SUCCESS|checksums\.xxh128|entity_index|raw_id_mappings|part-\d+-\d+\.parquet|entity_count_.+\.txt|entity_names_.+\.json|dynamic_rel_(count\.txt|names\.json)"
    r"|edges_\d+_\d+\.h5"
)


def output_uris(config: Config) -> list[str]:
    """The folders that the stage writes: the entities, then each split, then bad rows."""
    etl = config.section("etl", EtlConfig)
    uris = [config.entity_path, *map(config.split_path, etl.splits())]
    if etl.on_bad_row == "quarantine":
        uris.append(quarantine_uri(config, etl))
    return list(map(storage.absolute, uris))


def quarantine_uri(config: Config, etl: EtlConfig) -> str:
    """The folder of rows that cannot become edges.

    Raises:
        ConfigError: nothing says where it is to be.
    """
    if etl.quarantine_path is not None:
        return etl.quarantine_path
    if config.output is None:
        raise ConfigError("etl.quarantine_path: without `output`, rows set aside need a folder; name one")
    return storage.join(config.output, "quarantine")


@contextmanager
def output_folders(config: Config, etl: EtlConfig, work_uri: str) -> Iterator[Folders]:
    """Hidden folders for everything that the stage writes; they get their names at the end."""
    with ExitStack() as stack:
        folders = [stack.enter_context(storage.atomic_directory(uri)) for uri in output_uris(config)]
        splits = dict(zip(etl.splits(), folders[1:], strict=False))
        yield Folders(work_uri, folders[0], splits, folders[-1] if etl.on_bad_row == "quarantine" else None)


def check_outputs(config: Config) -> None:
    """Refuse to replace anything but output of this stage.

    Raises:
        ConfigError: an output folder holds other files, or another output folder.
    """
    uris = output_uris(config)
    folders = [(storage.local_path(uri) or uri).rstrip("/") + "/" for uri in uris]
    for number, uri in enumerate(uris):
        others = [other for other in range(len(uris)) if other != number]
        inside = next((uris[other] for other in others if folders[other].startswith(folders[number])), None)
        if inside:
            raise ConfigError(
                f"{uri} is replaced as a whole, and {inside} lies in it: set entity_path and edge_paths to "
                "folders of their own"
            )
        names = [storage.name(entry.uri) for entry in storage.list_dir(uri)]
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if foreign:
            raise ConfigError(
                f"{uri}: this folder is replaced as a whole, and holds {foreign[0]!r}, which is no output of "
                "etl; choose another folder, or move that away"
            )


def hide_outputs(config: Config) -> None:
    """Take the markers off all that is about to be replaced: from now on old and new may lie side by side.

    So too for splits that an earlier run wrote and this one does not: their indices are the old ones.
    """
    uris = output_uris(config)
    beside = [entry.uri for entry in storage.list_dir(storage.absolute(config.edge_root)) if entry.is_dir]
    old_splits = [uri for uri in beside if storage.exists(bucket_uri(uri, Bucket(0, 0)))]
    for uri in dict.fromkeys([*uris, *old_splits]):
        storage.delete_marker(uri)


@contextmanager
def work_folder(config: Config, etl: EtlConfig) -> Iterator[str]:
    """A new folder for intermediate files, removed afterwards; so are those that killed runs left."""
    entity_uri = storage.absolute(config.entity_path)
    root = storage.absolute(etl.work_path or storage.parent(entity_uri))
    # The name says whose it is: runs with other outputs may share the work path.
    owner = hashlib.sha256(entity_uri.encode()).hexdigest()[:12]
    uri = storage.join(root, f"etl-work-{owner}")
    storage.recover(uri)
    folder = storage.temporary_sibling(uri)
    storage.make_dir(folder)
    try:
        yield folder
    finally:
        storage.delete(folder)
