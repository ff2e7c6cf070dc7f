"""Conversion of a checkpoint to another format: streaming, on any storage.

The target is written under a temporary name, opened, compared with the source, and then renamed: a kill
leaves a whole target or none. Content that the target's format cannot keep is reported.
Source: docs/how_to/convert.md.
"""

import logging
import time
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from pydantic import TypeAdapter, ValidationError

from graphmill import checkpoints, storage
from graphmill.checkpoints import Checkpoint, Floats, Options, states
from graphmill.config.values import TypeName
from graphmill.errors import ConfigError, FormatError
from graphmill.model.parameters import global_key, relations_without_order
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage.as_json import refusal

log = logging.getLogger("graphmill")

CHECKPOINT, ENTITIES = "checkpoint", "entities"
"""Folders of the target where an id map gives raw ids to the rows."""


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    source: Checkpoint
    target: Checkpoint
    not_kept: list[str]
    """Content of the source that the target's format cannot keep."""
    num_bytes: int
    """Bytes of embeddings."""
    elapsed_s: float


def convert(
    source_uri: str,
    target_uri: str,
    target_format: str,
    *,
    shard_num: int = 1,
    claim: Claim = NO_CLAIM,
    **options: Unpack[Options],
) -> Converted:
    """Write the checkpoint at `source_uri` to `target_uri`, a folder that does not exist or is empty.

    Args:
        source_uri: a checkpoint of any format.
        target_uri: the folder to make.
        target_format: its format.
        shard_num: shards of a RecIS target.
        claim: checked before the target is renamed.
        options: of reading the source. With `id_maps`, a RecIS source becomes TARGET_URI/checkpoint and
            TARGET_URI/entities, and a RecIS target gets the ids of the raw ids in `entity_path`.

    Raises:
        ConfigError: the target holds files.
        FormatError: the source is not recognised, or damaged, or holds a number that is not finite.
    """
    if storage.list_dir(target_uri) or storage.list_hidden(target_uri):
        raise ConfigError(f"{target_uri}: expected a folder that is empty or does not exist; name another")
    started = time.monotonic()
    to_hashed_ids = None
    if (id_maps := options.get("id_maps")) is not None:  # for reading the source, or for writing the target
        formats = checkpoints.recognise(source_uri), target_format
        if formats.count("recis") != 1:
            raise ConfigError(
                "--id-map: expected RecIS' format as the source or as the target, found "
                f"{' to '.join(formats)}"
            )
        if target_format == "recis":
            to_hashed_ids, options["id_maps"] = id_maps, None
    source = checkpoints.open_checkpoint(source_uri, **options)
    log.info("convert: %s is %s, %s", source_uri, source.format, described(source))
    if (wanted := options.get("version")) not in (None, source.version):
        raise ConfigError(f"{source_uri}: expected version {wanted}, found only {source.version}")
    _check_order(source)
    keeps_all = source.format == target_format == "recis"
    try:
        TypeAdapter(tuple[TypeName, ...]).validate_python(() if keeps_all else tuple(source.counts))
    except ValidationError as error:
        raise refusal(error, f"{source.uri}: expected tables named as entity types may be") from error
    to_raw_ids, entity_path = options.get("id_maps"), options.get("entity_path")

    def place(folder: str) -> str:
        return storage.join(folder, CHECKPOINT) if to_raw_ids else folder

    def opened(folder: str) -> Checkpoint:
        counts = storage.join(folder, ENTITIES) if to_raw_ids else entity_path
        if to_hashed_ids or set(source.num_partitions.values()) == {1}:
            counts = None
        return checkpoints.open_checkpoint(place(folder), entity_path=counts)

    with storage.atomic_directory(target_uri) as temporary:
        if to_raw_ids:
            _write_raw_ids(source, to_raw_ids, temporary, storage.absolute(target_uri))
        write = checkpoints.writer_of(target_format)
        made = {"id_maps": to_hashed_ids, "entity_path": entity_path, "shard_num": shard_num}
        not_kept = [*source.left_out, *write(source, place(temporary), **made)]
        if not keeps_all:
            not_kept += [f"{name}, of which nothing is known here" for name in source.unread]
        written = opened(temporary)
        if not to_hashed_ids:  # other ids, and rows may be left out
            _check_same(source, written, temporary, compare_rows=not keeps_all)
        claim.check()
    num_bytes = sum(4 * count * dimension for _, _, (count, dimension) in source.partitions())
    return Converted(source, opened(target_uri), not_kept, num_bytes, time.monotonic() - started)


def _write_raw_ids(source: Checkpoint, id_maps: checkpoints.IdMaps, folder: str, target_uri: str) -> None:
    """Write the raw ids of translated tables into a temporary folder, which will be `target_uri`."""
    from graphmill.checkpoints.recis.checkpoint import RecisCheckpoint
    from graphmill.checkpoints.recis.hashed import write_entities

    if isinstance(source, RecisCheckpoint):
        write_entities(storage.join(folder, ENTITIES), source.translated, id_maps)
        source.entity_path = storage.join(target_uri, ENTITIES)


def described(checkpoint: Checkpoint) -> str:
    """The version, and the rows of each entity type, as text."""
    tables = [
        f"{name}: {sum(counts)} rows of {checkpoint.dimensions[name]}, partitions: {len(counts)}"
        for name, counts in checkpoint.counts.items()
    ]
    version = f"version {checkpoint.version}, " if checkpoint.version else ""
    return version + "; ".join(tables)


def _check_order(source: Checkpoint) -> None:
    """Refuse optimizer states whose order is unknown: they would go to the wrong parameters."""
    model = source.read_model()
    if model is None or not states.sums_of(model.optimizer_state):
        return
    if names := relations_without_order(model.parameters, source.config):
        raise ConfigError(
            f"{source.uri}: operator {names[0]!r} is a plug-in with several parameters, and their order is "
            "that of its class, which is not known here; name its file with --plugins"
        )


def _check_same(source: Checkpoint, written: Checkpoint, where: str, *, compare_rows: bool) -> None:
    """Compare shapes, and the first and last rows of every type."""
    added = (source.read_parameters() or {}) if written.has_added_globals else {}
    for name, counts in source.counts.items():
        if sum(written.counts.get(name, [])) != sum(counts):
            raise FormatError(f"{where}: {name!r}: {sum(counts)} rows were read, {written.counts} written")
        for end in (0, -1) if compare_rows else ():
            first, second = (_end_row(checkpoint, name, end) for checkpoint in (source, written))
            first = first + added.get(global_key(name), np.float32(0))
            if not np.array_equal(first, second, equal_nan=True):
                raise FormatError(f"{where}: {name!r}: row {end} is not the one that was read")


def _end_row(checkpoint: Checkpoint, entity_type: str, end: int) -> Floats:
    filled = [number for number, count in enumerate(checkpoint.counts[entity_type]) if count]
    if not filled:
        return np.empty((0, 0), np.float32)
    with checkpoint.open_rows(entity_type, filled[end]) as rows:
        row = 0 if end == 0 else rows.shape[0] - 1
        return rows.read(row, row + 1)
