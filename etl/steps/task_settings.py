"""Settings that all tasks of a run share: types, partitions, relations, splits, folders."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from etl.config import Compression, EtlConfig, TableConfig
from etl.steps.spill import SpillOptions
from etl.strings.hashing import Hashes, mix, scale
from graphmill import storage
from graphmill.config import Config
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

MIN_SLOTS = 16
# Memory for sorting an id, besides three copies of its bytes: read, distinct, sorted.
ID_OVERHEAD_BYTES = 64
_TYPICAL_ID_BYTES = 32
MAX_SLOTS = 1024
TYPE_AT = {Side.LHS: 1, Side.RHS: 2}  # position of a side's type in `relations`
_SPREAD_SALTS = {Side.LHS: np.uint64(0x9E3779B97F4A7C15), Side.RHS: np.uint64(0xC2B2AE3D27D4EB4F)}


class Partition(NamedTuple):
    """One partition of one entity type."""

    entity_type: str
    number: int


@dataclass(frozen=True)
class Folders:
    """Folders that a run writes: hidden folders, which are renamed at the end."""

    work: str
    entities: str
    splits: dict[str, str]
    quarantine: str | None = None


@dataclass(frozen=True)
class TaskSettings:
    """Settings of a run; small, and sent to every task."""

    num_partitions: dict[str, int]
    num_slots: dict[str, int]
    """Slots per partition: ranges of hashes, which can be sorted one by one."""
    relations: tuple[tuple[str, str, str], ...]
    """(name, lhs type, rhs type) by number; one entry for all dynamic relations."""
    dynamic: bool
    splits: tuple[str, ...]
    holdout: dict[str, float]
    grid: Bucket
    """Number of partitions along each side."""
    weighted: bool
    featurized: frozenset[str]
    """Types whose entities are lists of features."""
    min_entity_counts: dict[str, int]
    min_relation_count: int
    drops_duplicates: bool
    drops_loops: bool
    quarantines: bool
    graphstorm_maps: bool
    previous_uri: str | None
    seed: int
    chunk_rows: int
    index_bytes: int
    merge_bytes: int
    spill_options: SpillOptions
    entity_names: bool
    folders: Folders

    @classmethod
    def of(cls, config: Config, etl: EtlConfig, folders: Folders, num_ids: int) -> Self:
        """Return the settings of a configuration.

        Args:
            config: the configuration.
            etl: its section.
            folders: folders that the run writes.
            num_ids: largest possible number of ids, two per row; decides the number of slots, which does
                not change the output.
        """
        featurized = {name for name, entity in config.entities.items() if entity.featurized}
        worst_bytes = num_ids * (ID_OVERHEAD_BYTES + 3 * _TYPICAL_ID_BYTES)
        num_slots = 2 * worst_bytes // etl.index_bytes
        return cls(
            num_partitions={name: entity.num_partitions for name, entity in config.entities.items()},
            num_slots={
                name: min(max(num_slots // entity.num_partitions, MIN_SLOTS), MAX_SLOTS)
                for name, entity in config.entities.items()
            },
            relations=tuple((each.name, each.lhs, each.rhs) for each in config.relations),
            dynamic=config.dynamic_relations,
            splits=etl.splits(),
            holdout=etl.holdout,
            grid=Bucket(*(config.num_side_partitions(side) for side in Side)),
            weighted=any(table.weight is not None for table in etl.tables),
            featurized=frozenset(featurized),
            min_entity_counts={name: etl.min_count(name) for name in config.entities},
            min_relation_count=etl.min_relation_count,
            drops_duplicates=etl.duplicates == "drop",
            drops_loops=etl.self_loops == "drop",
            quarantines=etl.on_bad_row == "quarantine",
            graphstorm_maps=etl.graphstorm_maps,
            previous_uri=etl.previous_entity_path and storage.absolute(etl.previous_entity_path),
            seed=config.seed,
            chunk_rows=etl.chunk_rows,
            index_bytes=etl.index_bytes,
            merge_bytes=etl.merge_bytes,
            spill_options=SpillOptions(_compression(etl, folders.work), etl.work_replication),
            entity_names=etl.entity_names,
            folders=folders,
        )

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Entity types in the configuration's order."""
        return tuple(self.num_partitions)

    def partitions(self) -> list[Partition]:
        """List the partitions of all types, type by type."""
        return [
            Partition(name, number) for name, count in self.num_partitions.items() for number in range(count)
        ]

    def partition_slots(self) -> list[range]:
        """Number each partition's slots among the slots of all partitions."""
        counts = [self.num_slots[partition.entity_type] for partition in self.partitions()]
        stops = list(accumulate(counts))
        return [range(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]

    @property
    def feature_sides(self) -> list[Side]:
        """Sides with lists of features."""
        return [
            side
            for side, at in TYPE_AT.items()
            if any(each[at] in self.featurized for each in self.relations)
        ]

    def feature_types(self, table: TableConfig) -> dict[Side, str]:
        """Return the featurized type of each side of a table that has one, the same in all rows."""
        if not self.featurized:
            return {}
        entries = [each for each in self.relations if self.dynamic or table.relation in (None, each[0])]
        types = {side: {each[at] for each in entries} for side, at in TYPE_AT.items()}
        return {side: min(found) for side, found in types.items() if found & self.featurized}

    @property
    def filters(self) -> bool:
        """Whether rare entities or relations are left out."""
        return self.min_relation_count > 0 or any(self.min_entity_counts.values())

    def buckets(self) -> Iterator[Bucket]:
        """List the buckets of one split, row by row."""
        return (Bucket(lhs, rhs) for lhs in range(self.grid.lhs) for rhs in range(self.grid.rhs))

    @property
    def num_buckets(self) -> int:
        """Buckets of one split."""
        return self.grid.lhs * self.grid.rhs

    @property
    def spreads(self) -> bool:
        """Whether a type has one partition, and other types on its side have several."""
        ends = [(lhs, self.grid.lhs) for _, lhs, _ in self.relations]
        ends += [(rhs, self.grid.rhs) for _, _, rhs in self.relations]
        return any(self.num_partitions[name] < num_slices for name, num_slices in ends)

    @property
    def train(self) -> int:
        """Number of the train split."""
        return self.splits.index(TRAIN_SPLIT)

    def draw_splits(self, edge_hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Draw the split of each edge of a train table from the edge's hash alone."""
        limits = np.cumsum(list(self.holdout.values())) * 2.0**32
        numbers = [*(self.splits.index(name) for name in self.holdout), self.train]
        drawn = np.searchsorted(limits, (edge_hashes >> np.uint64(32)).astype(np.float64), side="right")
        return np.array(numbers, np.uint8)[drawn]

    def spread(self, edge_hashes: Hashes, side: Side) -> npt.NDArray[np.int64]:
        """Draw the grid slice of edges whose type on `side` has one partition from the edge's hash."""
        num_slices = self.grid.lhs if side is Side.LHS else self.grid.rhs
        return scale(mix(edge_hashes ^ _SPREAD_SALTS[side]), num_slices).astype(np.int64)


def _compression(etl: EtlConfig, work_uri: str) -> Compression:
    """Compress for networks only: the page cache is faster than compression."""
    if etl.spill_compression != "auto":
        return etl.spill_compression
    return "lz4" if storage.local_path(work_uri) is None else "none"
