"""Tables of RecIS keyed by int64 ids, and entities by raw id: each as the other, with a map of ids.

    RecIS -> entities    partition and index of each raw id as in etl: by its hash, then by the raw id
    entities -> RecIS    the int64 id of each row, and the rows in the order of the shards that own them

Arrays of N rows lie in mapped temporary files; `id_join` limits the rest to pieces.
Source: docs/how_to/convert.md.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.checkpoints.checkpoint import Checkpoint
from graphmill.checkpoints.id_join import Files, ids_of, num_files, raw_ids_of
from graphmill.checkpoints.id_maps import IdMaps, Misses, Numbers
from graphmill.checkpoints.recis import CheckpointReader, hash_slot, slice_of
from graphmill.checkpoints.recis.layout import ID_SLOT, tensor_name
from graphmill.checkpoints.whole_tables import mapped_array
from graphmill.errors import FormatError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.murmur import HASH_NAME, Hashes, hash_strings, scale
from graphmill.sorted_arrays import ranges
from graphmill.storage import Checksums, run_folder

LEFT_OUT = -1

_BATCH_ROWS = 1 << 16
_ORDERED = pa.schema([("hash", pa.uint64()), ("raw", pa.string()), ("row", pa.int64())])
_RAW = pa.schema([("raw", pa.string())])


class TranslatedIds:
    """Raw ids, partitions and indices of the rows of a RecIS table.

    Attributes:
        counts: rows of each partition.
        left_out: lines about ids that are left out.
        new_ids: int64 [N] of each stored row: rows of the partitions before, and index; or `LEFT_OUT`.
    """

    def __init__(self, reader: CheckpointReader, table: str, maps: IdMaps) -> None:
        """Raises FormatError or NotFoundError where ids cannot be translated, or files are damaged."""
        name, folder, num = tensor_name(table, ID_SLOT), _folder_of(self), maps.num_partitions
        num_rows = reader.tensor_shape(name)[0]
        where, id_map, misses = f"{reader.path}: {name}", maps.maps[table], Misses()
        num_bytes = 24 * num_rows + (64 * num_rows if id_map.is_integers else id_map.estimate_bytes())
        ranges = max(1, num_files(num_bytes) // num)  # ranges of hashes in a partition
        ordered = Files(folder, "ordered", num * ranges, _ORDERED)
        parts = (reader.owned_rows([block], slice_of(0, 1), _BATCH_ROWS) for block in reader.blocks(name))
        ids = (ids.numpy() for part in parts for _, _, (ids,) in part)
        for raw, row in raw_ids_of(ids, num_rows, id_map, folder, misses, where):
            hashes = hash_strings(raw, maps.seed)
            ordered.add([hashes, raw, row], scale(hashes, num * ranges).astype(np.int64))
        ordered.close()
        self.left_out = maps.checked(table, misses, where)
        self.new_ids = mapped_array((num_rows,), np.int64, folder)
        self.new_ids[:] = LEFT_OUT
        self.counts = [0] * num
        self._raw_ids = Files(folder, "raw", num, _RAW)
        for number in range(len(ordered)):
            self._number(ordered.read(number), number // ranges, where)
        self._raw_ids.close()

    def _number(self, rows: pa.Table, partition: int, where: str) -> None:
        rows = rows.sort_by([("hash", "ascending"), ("raw", "ascending")])
        raw = rows["raw"].combine_chunks()
        again = np.flatnonzero(pc.equal(raw[1:], raw[:-1]).to_numpy(zero_copy_only=False))
        if len(again):
            raise FormatError(f"{where}: raw id {raw[int(again[0])].as_py()!r} has two ids in the map")
        first = sum(self.counts)
        self.new_ids[rows["row"].to_numpy()] = np.arange(first, first + len(raw))
        self.counts[partition] += len(raw)
        self._raw_ids.add([raw], np.full(len(raw), partition))

    def raw_ids(self, partition: int) -> Iterator[pa.Array]:
        """Raw ids of a partition in the order of their indices."""
        return (batch.column(0) for batch in self._raw_ids.batches(partition))


def write_entities(entity_path: str, tables: Mapping[str, TranslatedIds], maps: IdMaps) -> None:
    """Write counts and raw ids of the translated tables as the stage etl writes them."""
    checksums: Checksums = {}
    for name, table in tables.items():
        for partition, count in enumerate(table.counts):
            with entity_index.new_part(entity_path, name, partition, checksums) as writer:
                for raw in table.raw_ids(partition):
                    writer.append(raw)
            entity_counts.write_count(entity_path, name, partition, count, checksums)
    num_partitions = dict.fromkeys(tables, maps.num_partitions)
    manifest = entity_index.Manifest(HASH_NAME, maps.seed, num_partitions)
    entity_index.write_manifest(entity_path, manifest, checksums)
    storage.write_checksums(storage.manifest_of(entity_path).uri, checksums)


class Keyed:
    """The int64 ids of the rows of an entity type, in the order of the shards that own them.

    Attributes:
        ids: int64 [K], shard by shard, in the order of rows.
        starts: [shards + 1] first id of each shard, and their number.
        places: int64 [N] place of each row among the ids; or `LEFT_OUT`.
        left_out: lines about ids that are left out.
    """

    def __init__(self, source: Checkpoint, name: str, entity_path: str, maps: IdMaps, shard_num: int) -> None:
        """Raises FormatError or NotFoundError where ids cannot be translated, or files are damaged."""
        folder, counts, misses = _folder_of(self), source.counts[name], Misses()
        num = entity_index.read_manifest(entity_path).num_partitions.get(name, 0)
        counted = [entity_index.count_part(entity_path, name, partition) for partition in range(num)]
        if counted != list(counts):
            raise FormatError(
                f"{entity_path}: expected {list(counts)} raw ids of {name!r}, the rows of {source.uri}, "
                f"found {counted}: they are not from the same run"
            )
        raw_ids = (
            ids
            for partition in range(len(counts))
            for ids in entity_index.iter_part(entity_path, name, partition)
        )
        ids, self.places = (mapped_array((sum(counts),), np.int64, folder) for _ in range(2))
        self.places[:] = LEFT_OUT
        for known_ids, row in ids_of(raw_ids, sum(counts), maps.maps[name], folder, misses, entity_path):
            ids[row], self.places[row] = known_ids, 0
        self.left_out = maps.checked(name, misses, entity_path)
        ends = np.array([slice_of(shard, shard_num).end for shard in range(shard_num)], np.uint64)
        batches = [slice(start, start + _BATCH_ROWS) for start in range(0, len(ids), _BATCH_ROWS)]
        sizes = np.zeros(shard_num, np.int64)
        for batch in batches:
            sizes += np.bincount(_shards(ids[batch][self.places[batch] == 0], ends), minlength=shard_num)
        self.starts = [0, *np.cumsum(sizes).tolist()]
        self.ids = mapped_array((self.starts[-1],), np.int64, folder)
        free = np.array(self.starts[:-1])
        for batch in batches:
            is_known = self.places[batch] == 0
            known = ids[batch][is_known]
            places = _next_places(_shards(known, ends), free)
            self.places[batch][is_known] = places
            self.ids[places] = known

    def owned(self, shard: int) -> tuple[Numbers, range]:
        """The ids of a shard, and their places."""
        start, stop = self.starts[shard : shard + 2]
        return self.ids[start:stop], range(start, stop)


def _shards(ids: Numbers, ends: Hashes) -> Numbers:
    """The shard that owns each id; shards end at the hash slots `ends`."""
    return np.searchsorted(ends, hash_slot(ids), side="right")


def _next_places(shards: Numbers, free: Numbers) -> Numbers:
    """Give each row the next place of its shard; `free` moves on."""
    order = np.argsort(shards, kind="stable")
    counts = np.bincount(shards, minlength=len(free))
    places = np.empty(len(shards), np.int64)
    places[order] = ranges(free, counts)
    free += counts
    return places


def _folder_of(owner: object) -> str:
    """A temporary folder that is deleted with its owner, or by a later run if this one is killed."""
    path = tempfile.mkdtemp(dir=run_folder.path())
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return path
