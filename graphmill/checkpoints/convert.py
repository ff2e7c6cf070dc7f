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

from graphmill import checkpoints, storage
from graphmill.checkpoints import Checkpoint, Floats, Options
from graphmill.errors import ConfigError, FormatError
from graphmill.run.lock import NO_CLAIM, Claim

log = logging.getLogger("graphmill")


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
        options: of reading the source.

    Raises:
        ConfigError: the target holds files.
        FormatError: the source is not recognised, or damaged, or holds a number that is not finite.
    """
    if storage.list_dir(target_uri) or storage.list_hidden(target_uri):
        raise ConfigError(f"{target_uri}: expected a folder that is empty or does not exist; name another")
    started = time.monotonic()
    source = checkpoints.open_checkpoint(source_uri, **options)
    log.info("convert: %s is %s, %s", source_uri, source.format, described(source))
    storage.delete(target_uri)
    with storage.atomic_directory(target_uri) as temporary:
        not_kept = checkpoints.module_of(target_format).write(source, temporary, shard_num=shard_num)
        not_kept += [f"{name}, of which nothing is known here" for name in source.unread]
        counts = None if set(source.num_partitions.values()) == {1} else options.get("entity_path")
        written = checkpoints.open_checkpoint(temporary, entity_path=counts)
        _check_same(source, written, temporary)
        claim.check()
    target = checkpoints.open_checkpoint(target_uri, entity_path=counts)
    num_bytes = sum(4 * count * dimension for _, _, (count, dimension) in source.partitions())
    return Converted(source, target, not_kept, num_bytes, time.monotonic() - started)


def described(checkpoint: Checkpoint) -> str:
    """The version, and the rows of each entity type, as text."""
    tables = [
        f"{name}: {sum(counts)} rows of {checkpoint.dimensions[name]} in {len(counts)} partition(s)"
        for name, counts in checkpoint.counts.items()
    ]
    version = f"version {checkpoint.version}, " if checkpoint.version else ""
    return version + "; ".join(tables)


def _check_same(source: Checkpoint, written: Checkpoint, where: str) -> None:
    """Compare shapes, and the first and last rows of every type."""
    for name, counts in source.counts.items():
        if sum(written.counts.get(name, [])) != sum(counts):
            raise FormatError(f"{where}: {name!r}: {sum(counts)} rows were read, {written.counts} written")
        added = source.global_embedding(name) if written.has_added_globals else None
        for end in (0, -1):
            first, second = (_end_row(each, name, end) for each in (source, written))
            first = first if added is None else first + added
            if not np.array_equal(first, second, equal_nan=True):
                raise FormatError(f"{where}: {name!r}: row {end} is not the one that was read")


def _end_row(checkpoint: Checkpoint, entity_type: str, end: int) -> Floats:
    filled = [number for number, count in enumerate(checkpoint.counts[entity_type]) if count]
    if not filled:
        return np.empty((0, 0), np.float32)
    with checkpoint.open_rows(entity_type, filled[end]) as rows:
        row = 0 if end == 0 else rows.shape[0] - 1
        return rows.read(row, row + 1)
