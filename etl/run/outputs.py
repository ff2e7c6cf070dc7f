"""Folders that the stage writes, beside files of others, and the step that puts its files there.

    data/FB15k/                             entity_path; the user's own files stay
        freebase_mtr100_mte100-train.txt    a table
        entity_count_all_0.txt ...          ours: checksums.xxh128 has a line for each file
        freebase_mtr100_mte100-train_partitioned/    an edge path
            edges_0_0.h5 ...

A folder that holds nothing else is replaced as a whole, by a rename. Elsewhere the files of the last run are
deleted, and the new files are renamed one by one, the manifest first: after a kill it names all files of
ours, and files of the last run have other checksums.

Raw ids that a checkpoint was trained with are no part of what is replaced: without them its vectors are lost.

    entities.stale-1/               beside checkpoint.stale-1, as train calls the checkpoint then
"""

import logging
import re
from collections.abc import Iterable
from itertools import combinations

from etl.steps.task_settings import TaskSettings
from etl.tables.files import table_roots
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError
from graphmill.formats.edge_buckets import bucket_uri, folders
from graphmill.formats.edge_buckets.files import write_counts
from graphmill.run.fingerprints import content_of
from graphmill.run.output_checks import check_folder, tables_in
from graphmill.run.trained_with import entities_of
from graphmill.storage import Checksums
from graphmill.storage.as_json import Int64

_OURS = (
    r"_SUCCESS|checksums\.xxh128|entity_index|raw_id_mappings|entity_count_.+\.txt|entity_names_.+\.json"
    r"|dynamic_rel_(count\.txt|names\.json)|(edges|removed)_\d+_\d+\.h5|num_edges\.json|origins\.json"
)
_OF_QUARANTINE = r"_SUCCESS|part-\d+-\d+\.parquet"

log = logging.getLogger("graphmill")


def output_uris(config: Config) -> list[str]:
    """List the folders that the stage writes: the entities, then each split, then bad rows."""
    uris = shared_uris(config)
    if config.section(EtlConfig).on_bad_row == "quarantine":
        uris.append(storage.absolute(quarantine_uri(config)))
    return uris


def shared_uris(config: Config) -> list[str]:
    """List the folders where files of others may lie too: the entities, then each split."""
    splits = config.section(EtlConfig).splits() if config.etl else ()
    uris: list[str] = []
    for uri in map(storage.absolute, (config.entity_path, *map(config.split_path, splits))):
        same = (known for known in uris if storage.contains(known, uri) and storage.contains(uri, known))
        uris.append(next(same, uri))
    return uris


def quarantine_uri(config: Config) -> str:
    """Folder of the table of bad rows."""
    path = config.section(EtlConfig).quarantine_path
    if path is not None:
        return path
    if config.output is None:
        raise ConfigError("etl.quarantine_path: without `output`, bad rows need a folder; name one")
    return storage.join(config.output, "quarantine")


def check_outputs(config: Config) -> None:
    """Refuse to replace anything but output of this stage."""
    uris, tables = shared_uris(config), table_roots(config)
    by_split = zip(config.section(EtlConfig).splits(), uris[1:], strict=True)
    for (split, of_split), (other, of_other) in combinations(by_split, 2):
        if of_split == of_other:
            raise ConfigError(f"edge_paths: the splits {split} and {other} would both be {of_split}")
    for uri in dict.fromkeys(uris):
        _check_names(uri)
        for table in tables_in(uri, tables):
            if storage.is_dir(table) or not storage.exists(table):
                raise ConfigError(
                    f"etl: the table {table} lies where etl writes, in {uri}, and would have our files too: "
                    "name its files one by one, or choose another folder"
                )
    for uri in output_uris(config)[len(uris) :]:
        inside = next((shared for shared in uris if storage.contains(uri, shared)), None)
        if inside is not None:
            raise ConfigError(
                f"{uri} is replaced as a whole, and {inside} lies in it: set etl.quarantine_path to a folder "
                "of its own"
            )
        check_folder(uri, _OF_QUARANTINE, "etl", "and is replaced as a whole")


def _check_names(uri: str) -> None:
    """Refuse a folder in which a file of another program has the name of one of our files."""
    ours = _files_of_last_run(uri)
    beginnings = {path.partition("/")[0] for path in ours}
    if ours:
        beginnings |= {storage.MARKER, storage.CHECKSUMS}
    for entry in storage.list_dir(uri):
        name = storage.name(entry.uri)
        if re.fullmatch(_OURS, name) and name not in beginnings:
            raise ConfigError(
                f"etl: {uri} holds {name}, which etl has not written (it has no line in {storage.CHECKSUMS}) "
                "and does not replace: `train` reads PyTorch-BigGraph's files as they are; to write new "
                "files, choose another folder, or move that away"
            )


def _files_of_last_run(uri: str) -> list[str]:
    """List what the stage wrote in a folder, as paths below it, by the folder's manifest."""
    return [path for path in storage.read_checksums(storage.manifest_of(uri).uri) if _is_ours(uri, path)]


def _is_ours(uri: str, path: str) -> bool:
    """Tell whether etl could have written a path of a manifest; others may have written the manifest."""
    first, *others = path.split("/")
    leads_elsewhere = not {"", ".", ".."}.isdisjoint(others)
    return bool(re.fullmatch(_OURS, first)) and not leads_elsewhere and storage.within(uri, f"{uri}/{path}")


def keep_trained_ids(config: Config, folder: str) -> None:
    """Keep the entities under another name, if a checkpoint needs them and `folder` has others."""
    uri = storage.absolute(config.entity_path)
    now = content_of(uri)
    checkpoints = [config.checkpoint_path, *storage.moved_aside(config.checkpoint_path)]
    is_needed = now is not None and now in map(entities_of, checkpoints)
    known = [content_of(place) for place in (folder, *storage.moved_aside(uri))]
    if not is_needed or now in known:
        return
    if _holds_only_ours(uri):
        kept = storage.move_aside(uri)
    else:
        kept = storage.name_aside(uri)
        with storage.atomic_directory(kept) as temporary:
            for path in (*_files_of_last_run(uri), storage.CHECKSUMS):
                storage.copy_file(storage.join(uri, path), storage.join(temporary, path))
    log.info("etl: the ids of %s stay in %s: the checkpoint needs them", config.checkpoint_path, kept)


def put(folder: str, uri: str) -> None:
    """Move the finished `folder` to `uri`, where all files of others stay."""
    _check_names(uri)
    if _holds_only_ours(uri):
        storage.replace_directory(folder, uri)
        return
    new = [entry.uri for entry in storage.list_dir(folder, recursive=True) if not entry.is_dir]
    paths = {source[len(folder) + 1 :]: source for source in new}
    manifest = storage.name(storage.manifest_of(uri).uri)
    _delete(uri, set(_files_of_last_run(uri)) - set(paths))
    storage.move(paths.pop(manifest), storage.join(uri, manifest))
    for path, source in paths.items():
        storage.make_dir(storage.parent(storage.join(uri, path)))
        storage.move(source, storage.join(uri, path))
    storage.delete(folder)


def _delete(uri: str, paths: Iterable[str]) -> None:
    for path in paths:
        storage.delete(storage.join(uri, path))
        while (path := path.rpartition("/")[0]) and not storage.list_dir(
            storage.join(uri, path), hidden=True
        ):
            storage.delete(storage.join(uri, path))


def _holds_only_ours(uri: str) -> bool:
    ours = {*_files_of_last_run(uri), storage.MARKER, storage.CHECKSUMS}
    entries = storage.list_dir(uri, hidden=True)
    if not all(re.fullmatch(_OURS, storage.name(entry.uri)) for entry in entries):
        return False  # without a look at all that lies below
    below = storage.list_dir(uri, recursive=True, hidden=True)
    paths = (entry.uri[len(uri.rstrip("/")) + 1 :] for entry in below if not entry.is_dir)
    return ours.issuperset(paths)


def hide_outputs(config: Config) -> None:
    """Delete the markers of all outputs: until the run ends, old and new files may lie side by side.

    Splits that an earlier run wrote and this run does not lose their markers too: their indices are old.
    Where `edge_paths` are called otherwise, other graphs may lie beside them.
    """
    uris = output_uris(config)
    if config.split_root is not None:
        uris += folders(storage.absolute(config.split_root))
    for uri in dict.fromkeys(uris):
        storage.delete_marker(uri)


def write_manifests(settings: TaskSettings, num_edges: Int64, checksums: Checksums) -> None:
    """Write a manifest of its files into each folder, and the edges of its buckets, [splits x buckets]."""
    counts: dict[str, dict[str, int]] = {split: {} for split in settings.splits}
    for number, count in enumerate(num_edges.tolist()):
        split, bucket = settings.bucket_at(number)
        counts[split][bucket_uri(settings.folders.splits[split], bucket)] = count
    for split, of_split in counts.items():
        write_counts(settings.folders.splits[split], of_split, checksums)
    for folder in (settings.folders.entities, *settings.folders.splits.values()):
        inside = {uri: checksum for uri, checksum in checksums.items() if uri.startswith(folder + "/")}
        storage.write_checksums(storage.manifest_of(folder).uri, inside)
