"""Folders that the stage writes, and files that may be in them beforehand."""

from itertools import permutations

from etl.config import EtlConfig
from graphmill import storage
from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.formats.edge_buckets import bucket_uri
from graphmill.run.output_checks import check_folder
from graphmill.vocab import Bucket

_OURS = (
    r"_SUCCESS|checksums\.xxh128|entity_index|raw_id_mappings|part-\d+-\d+\.parquet|entity_count_.+\.txt|entity_names_.+\.json|dynamic_rel_(count\.txt|names\.json)"
    r"|edges_\d+_\d+\.h5"
)


def output_uris(config: Config) -> list[str]:
    """List the folders that the stage writes: the entities, then each split, then bad rows."""
    etl = config.section(EtlConfig)
    uris = [config.entity_path, *map(config.split_path, etl.splits())]
    if etl.on_bad_row == "quarantine":
        uris.append(quarantine_uri(config))
    return list(map(storage.absolute, uris))


def quarantine_uri(config: Config) -> str:
    """Folder of the table of bad rows.

    Raises:
        ConfigError: neither quarantine_path nor output is set.
    """
    path = config.section(EtlConfig).quarantine_path
    if path is not None:
        return path
    if config.output is None:
        raise ConfigError("etl.quarantine_path: without `output`, bad rows need a folder; name one")
    return storage.join(config.output, "quarantine")


def check_outputs(config: Config) -> None:
    """Refuse to replace anything but output of this stage.

    Raises:
        ConfigError: an output folder holds other files, or another output folder.
    """
    uris = output_uris(config)
    folders = [(storage.local_path(uri) or uri).rstrip("/") + "/" for uri in uris]
    for (uri, folder), (inside, below) in permutations(zip(uris, folders, strict=True), 2):
        if below.startswith(folder):
            raise ConfigError(
                f"{uri} is replaced as a whole, and {inside} lies in it: set entity_path and edge_paths to "
                "folders of their own"
            )
    for uri in uris:
        check_folder(uri, _OURS, "etl", "and is replaced as a whole")


def hide_outputs(config: Config) -> None:
    """Delete the markers of all outputs: until the run ends, old and new files may lie side by side.

    Splits that an earlier run wrote and this run does not lose their markers too: their indices are old.
    """
    uris = output_uris(config)
    beside = [entry.uri for entry in storage.list_dir(storage.absolute(config.edge_root)) if entry.is_dir]
    old_splits = [uri for uri in beside if storage.exists(bucket_uri(uri, Bucket(0, 0)))]
    for uri in dict.fromkeys([*uris, *old_splits]):
        storage.delete_marker(uri)
