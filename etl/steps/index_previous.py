"""The entity index of an earlier run, whose ids keep their indices.

Its ids are written slot by slot, as those of a chunk:

    previous-{type}-{partition}-{block}.ids   id: string, index: int32; a section per slot of the partition

An id is gone while no row names it, neither of a table of edges (of any split) nor of entities. After
`etl.forget_after` days it is forgotten: the next run leaves it out, and the ids after it move up. If it comes
back later, it is new.

Shapes: P ids of a partition of the earlier index, K of them that are not forgotten.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.steps import spill
from etl.steps.bucket_rows import EarlierIds, KeptRows
from etl.steps.degrees import are_own, buckets_of, check_indices, own_relations
from etl.steps.task_settings import Partition, TaskSettings
from etl.strings import native
from etl.strings.native import NOWHERE, take
from graphmill import storage
from graphmill.config import Config
from graphmill.config.defaults import AUTO, ENTITIES
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import BadInputError, ConfigError, FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.edge_buckets.origins import open_all_rows
from graphmill.formats.entity_index import HERE, History
from graphmill.formats.murmur import HASH_NAME
from graphmill.formats.raw_tables import cut
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import Bucket, Side

Bools = npt.NDArray[np.bool_]
SCHEMA = pa.schema([("id", pa.string()), ("index", pa.int32())])


@dataclass(frozen=True, eq=False)
class PreviousBlock:
    """Ids of one partition of the earlier index."""

    uri: str
    num_ids: Int64
    """[slots of the partition]."""
    id_bytes: Int64
    """[slots of the partition]."""


def check_previous(config: Config, previous_uri: str) -> None:
    """Refuse an earlier index whose ids could not keep their indices."""
    if storage.absolute(previous_uri).rstrip("/") == storage.absolute(config.entity_path).rstrip("/"):
        raise ConfigError(
            f"etl.previous_entity_path: {previous_uri} is where this run's entities go; give it an `output` "
            "of its own, and keep the earlier one"
        )
    manifest = entity_index.read_manifest(previous_uri)
    changes: list[tuple[str, object, object]] = [
        (f"entities.{name}.num_partitions", manifest.num_partitions[name], entity.num_partitions)
        for name, entity in config.entities.items()
        if name in manifest.num_partitions and name not in config.uncut_types
    ]
    changes += [("seed", manifest.seed, config.seed), ("the hash", manifest.hash_name, HASH_NAME)]
    if told := [
        f"{before!r} for {what}, this configuration {now!r}" for what, before, now in changes if before != now
    ]:
        raise ConfigError(
            f"etl.previous_entity_path: {previous_uri} has {'; '.join(told)}: every id would move; "
            "set it back, or start anew without previous_entity_path"
        )


def as_before(config: Config) -> Config:
    """Take the number of partitions from the earlier index, for types that leave it out."""
    uri = config.section(EtlConfig).previous_entity_path
    kept = entity_index.read_manifest(uri).num_partitions if uri else {}
    kept = {f"{ENTITIES}{name}": kept[name] for name in config.uncut_types if name in kept}
    others = {key: value for key, value in config.chosen.items() if key not in kept}
    return config.with_chosen(kept).with_chosen(others) if kept else config


def cut_by_etl(config: Config) -> set[str]:
    """Types whose number of partitions etl chooses, or has chosen for the index that is there."""
    before = (storage.read_marker(config.entity_path) or {}).get("entities")
    names = [name for name, num in before.items() if num == AUTO] if isinstance(before, dict) else []
    chosen: Mapping[str, int] = {}
    with suppress(BadInputError, NotFoundError):  # what is damaged is made again
        chosen = entity_index.read_manifest(config.entity_path).num_partitions if names else {}
    same = (name for name in names if config.num_partitions.get(name) == chosen.get(name, AUTO))
    return {*config.uncut_types, *same}


def num_previous_ids(previous_uri: str | None) -> int:
    """Count the ids of the earlier index."""
    if previous_uri is None:
        return 0
    num_partitions = entity_index.read_manifest(previous_uri).num_partitions
    return sum(map(sum, entity_counts.read_counts(previous_uri, num_partitions).values()))


def previous_ids(settings: TaskSettings, partition: Partition) -> Iterator[pa.Array]:
    """Read the ids of a partition of the earlier index, if it has that partition, without forgotten ids."""
    uri = settings.etl.previous_entity_path
    if uri is None or partition.entity_type not in entity_index.read_manifest(uri).num_partitions:
        return
    rows = kept_rows(settings, partition)
    start = 0
    for ids in entity_index.iter_part(uri, *partition):
        if rows is None:
            yield ids
            continue
        first, past = np.searchsorted(rows, [start, start + len(ids)])
        yield ids.take(pa.array(rows[first:past] - start))
        start += len(ids)


def previous_counts(settings: TaskSettings) -> list[int]:
    """Count the ids of each partition of the earlier index, forgotten ones too."""
    uri = settings.etl.previous_entity_path or ""
    known = _known(settings)
    return [
        _count(uri, partition) if partition.entity_type in known else 0 for partition in settings.partitions
    ]


def _known(settings: TaskSettings) -> dict[str, int]:
    """Return the number of partitions of each type of this run that the earlier index has."""
    uri = settings.etl.previous_entity_path
    known = {} if uri is None else entity_index.read_manifest(uri).num_partitions
    return {name: num for name, num in settings.num_partitions.items() if name in known}


def num_earlier_ids(settings: TaskSettings) -> dict[str, list[int]] | None:
    """Count the ids of the earlier index by type and partition; None unless the run forgets ids."""
    if settings.today is None:
        return None
    return entity_counts.read_counts(settings.etl.previous_entity_path or "", _known(settings))


def _count(previous_uri: str, partition: Partition) -> int:
    count = entity_counts.read_count(previous_uri, *partition)
    num_ids = entity_index.count_part(previous_uri, *partition)
    if count != num_ids:  # new ids would get indices of other ids
        raise FormatError(
            f"{entity_index.part_uri(previous_uri, *partition)}: expected {count} ids, as "
            f"{entity_counts.count_uri(previous_uri, *partition)} says, found {num_ids}: they are not from "
            "the same run"
        )
    return count


def file_previous(settings: TaskSettings, partition: Partition) -> list[PreviousBlock]:
    """Write the ids of one partition of the earlier index slot by slot."""
    previous_uri = settings.etl.previous_entity_path or ""
    num_slots = settings.num_slots[partition.entity_type]
    batches = (pa.table({"id": ids}) for ids in previous_ids(settings, partition))
    blocks: list[PreviousBlock] = []
    num_earlier = 0
    for block in cut(batches, settings.etl.chunk_rows):
        ids = pa.concat_arrays(block["id"].chunks)
        hashes = native.hash_strings(ids, settings.seed)
        slots = settings.slots_of(partition.entity_type, hashes) - partition.number * num_slots
        outside = np.flatnonzero((slots < 0) | (slots >= num_slots))
        if outside.size:
            row = int(outside[0])
            raise FormatError(
                f"{entity_index.part_uri(previous_uri, *partition)}: raw id {ids[row].as_py()!r} (index "
                f"{num_earlier + row}) belongs to another partition by {HASH_NAME} with seed {settings.seed}"
            )
        order = np.argsort(slots, kind="stable")
        index = np.arange(num_earlier, num_earlier + len(ids), dtype=np.int32)[order]
        batch = pa.record_batch([ids.take(pa.array(order)), pa.array(index)], schema=SCHEMA)
        name = f"previous-{partition.entity_type}-{partition.number}-{len(blocks):06d}.ids"
        uri = storage.join(settings.folders.work, name)
        blocks.append(PreviousBlock(uri, *spill.count_slots(ids, slots, num_slots)))
        spill.write_slots(uri, SCHEMA, [(batch, blocks[-1].num_ids)], settings.etl)
        num_earlier += len(ids)
    return blocks


def previous_relations(settings: TaskSettings) -> list[str]:
    """Read the dynamic relations of the earlier run, in the order of their numbers."""
    uri = settings.etl.previous_entity_path
    if uri is None:
        return []
    names = entity_counts.read_relation_names(uri)
    if names is None:
        raise ConfigError(
            f"etl.previous_entity_path: {uri} names no relations; dynamic relations could "
            "not keep their numbers"
        )
    return names


def gone_since(settings: TaskSettings, partition: Partition) -> Int32:
    """Return the day since which each id of the earlier index is gone, or `HERE`: [P]."""
    uri = settings.etl.previous_entity_path
    if uri is None or partition.entity_type not in entity_index.read_manifest(uri).num_partitions:
        return np.zeros(0, np.int32)
    num_ids = entity_counts.read_count(uri, *partition)
    days = entity_index.read_gone_since(uri, *partition, num_ids)
    return np.full(num_ids, HERE, np.int32) if days is None else days


def kept_rows(settings: TaskSettings, partition: Partition) -> Int64 | None:
    """Return the rows [K] of the earlier index that are not forgotten; None: none is forgotten."""
    if settings.forget_until is None:
        return None
    is_kept = gone_since(settings, partition) > settings.forget_until
    return None if is_kept.all() else np.flatnonzero(is_kept)


def history_of(
    settings: TaskSettings, partition: Partition, named: Iterable[Int32], earlier: EarlierIds | None
) -> History:
    """Return the history [K] of the ids that were in the earlier index and are not forgotten.

    `named` are indices, in this run, of ids that its chunks name; `earlier` has the edges that it takes over.
    """
    gone_P = gone_since(settings, partition)
    until = settings.forget_until
    row_K = np.arange(len(gone_P)) if until is None else np.flatnonzero(gone_P > until)
    is_named_K, gone_K = np.zeros(len(row_K), bool), gone_P[row_K]
    if earlier is not None:
        is_named_K |= _named_by_kept_rows(settings, partition, earlier, len(gone_P))[row_K]
    for index in named:
        is_named_K[index] = True
    today = settings.today if settings.today is not None else HERE
    gone_K[gone_K == HERE] = today
    return History(np.where(is_named_K, HERE, gone_K).astype(np.int32), row_K)


def history_within(known: History, start: int, stop: int) -> History:
    """Return the history of the ids [start, stop) of a partition; ids after the `known` ones are new."""
    gone_N, row_N = (column[start:stop] for column in known)
    num_new = stop - start - len(row_N)
    return History(
        np.append(gone_N, np.full(num_new, HERE, np.int32)), np.append(row_N, np.full(num_new, -1, np.int64))
    )


def _named_by_kept_rows(
    settings: TaskSettings, partition: Partition, earlier: EarlierIds, num_ids: int
) -> Bools:
    """Return a mask [P] of the ids in rows of the earlier buckets whose files this run has too."""
    is_named = np.zeros(num_ids, bool)
    for split, (side, is_own, bucket) in product(settings.splits, buckets_of(settings, partition)):
        columns = ["rel", side]
        with open_all_rows(storage.join(earlier.edge_root, split), bucket, columns) as rows:
            kept = KeptRows.of(rows, earlier.numbers, columns)
            for piece in kept.read(0, len(kept.numbers)):
                rel, at = np.ascontiguousarray(piece.records.T)
                if is_own is not None:
                    at = at[are_own(rel, is_own, rows.uri)]
                check_indices(at, num_ids, side, rows.uri)
                is_named[at] = True
    return is_named


class Renumbering:
    """Gives rows of earlier buckets the indices that their ids have in this run."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._indices: dict[Partition, Int32 | None] = {}

    def apply(self, records: Int32, bucket: Bucket, uri: str, *, drops: bool = False) -> Int32:
        """Return records [N, W] of rel, lhs, rhs and more, own in place.

        With `drops`, rows that name an id which is forgotten are left out.
        """
        if self._settings.forget_until is None:
            return records
        is_kept_N = np.ones(len(records), bool)
        for side, column in ((Side.LHS, 1), (Side.RHS, 2)):
            for name in {relation.entity_type(side): None for relation in self._settings.relations}:
                is_single = self._settings.num_partitions[name] == 1
                index = self._index_of(Partition(name, 0 if is_single else getattr(bucket, side)))
                if index is None:
                    continue
                is_own = own_relations(self._settings, name, side)
                rows = slice(None) if is_own is None else are_own(records[:, 0].copy(), is_own, uri)
                at = np.ascontiguousarray(records[rows, column])
                check_indices(at, len(index), side, uri)
                own = take(index, at)
                if drops:
                    is_kept_N[rows] &= own != NOWHERE
                elif int(own.min(initial=0)) == NOWHERE:
                    raise FormatError(
                        f"{uri}: {side} names row {at[own == NOWHERE][0]} of {name!r}, which is gone, as "
                        f"{self._settings.etl.previous_entity_path} says: they are not of the same run"
                    )
                records[rows, column] = own
        return records[is_kept_N] if drops else records

    def _index_of(self, partition: Partition) -> Int32 | None:
        """Return the index in this run of each row of the earlier index [P]; None: all are the same."""
        if partition not in self._indices:
            uri, row_K = self._settings.etl.previous_entity_path or "", kept_rows(self._settings, partition)
            if row_K is None:
                self._indices[partition] = None
            else:
                index = np.full(entity_counts.read_count(uri, *partition), NOWHERE, np.int32)
                index[row_K] = np.arange(len(row_K), dtype=np.int32)
                self._indices[partition] = index
        return self._indices[partition]
