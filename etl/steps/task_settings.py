"""Settings that all tasks of a run share: the section `etl`, entity types, relations, buckets, folders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.config import Config, RelationConfig
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.errors import ConfigError
from graphmill.formats.murmur import Hashes, scale
from graphmill.storage.as_json import Int64
from graphmill.vocab import Bucket, Side

MIN_SLOTS = 16
MAX_SLOTS = 1 << 14
MAX_UNCUT_PARTITIONS = 1024
IDS_OF_UNCUT_SLOT = 1 << 16
# Memory for sorting an id, besides three copies of its bytes: read, distinct, sorted.
ID_OVERHEAD_BYTES = 64
_TYPICAL_ID_BYTES = 32


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
    """By split, train first."""
    quarantine: str | None = None


@dataclass(frozen=True)
class TaskSettings:
    """Settings of a run; small, and known to every task."""

    etl: EtlConfig
    """Without most tables, which may be many: a task gets its own."""
    num_partitions: dict[str, int]
    """By entity type, in the configuration's order."""
    num_slots: dict[str, int]
    """Slots per partition: ranges of hashes, which can be sorted one by one."""
    relations: tuple[RelationConfig, ...]
    """Names and entity types of the relations, by number; one entry for all dynamic relations."""
    dynamic: bool
    featurized: frozenset[str]
    """Types whose entities are lists of features."""
    grid: Bucket
    """Number of partitions along each side."""
    weighted: bool
    seed: int
    folders: Folders
    removes: bool = False
    """Whether a table takes out edges of others."""
    today: int | None = None
    """Date of a run that forgets ids (etl.forget_after); days since 1970."""
    uncut: tuple[str, ...] = ()
    """Types whose number of partitions is chosen when ids are counted; until then it is 1."""

    @classmethod
    def of(cls, config: Config, folders: Folders, num_ids: int) -> Self:
        """Return the settings of a configuration.

        The run has at most `num_ids` ids; they decide the number of slots, which does not change the output.
        """
        etl = config.section(EtlConfig)
        previous = etl.previous_entity_path and storage.absolute(etl.previous_entity_path)
        worst_bytes = num_ids * (ID_OVERHEAD_BYTES + 3 * _TYPICAL_ID_BYTES)
        num_slots = 2 * worst_bytes // etl.index_bytes
        relations = tuple(
            RelationConfig(name=relation.name, lhs=relation.lhs, rhs=relation.rhs)  # no plug-ins
            for relation in config.relations
        )
        return cls(
            etl=etl.model_copy(
                update={"tables": etl.tables[:1], "entities": (), "previous_entity_path": previous}
            ),
            num_partitions=config.num_partitions,
            num_slots={
                name: _uncut_slots(num_ids, num_slots)
                if name in config.uncut_types
                else min(max(num_slots // n, MIN_SLOTS), MAX_SLOTS)
                for name, n in config.num_partitions.items()
            },
            relations=relations,
            dynamic=config.dynamic_relations,
            featurized=frozenset(name for name, entity in config.entities.items() if entity.featurized),
            grid=_grid(relations, config.num_partitions),
            weighted=any(table.weight is not None for table in etl.tables),
            seed=config.seed,
            folders=folders,
            removes=any(table.removes for table in etl.tables),
            today=None if etl.forget_after is None else day_of(config),
            uncut=config.uncut_types,
        )

    def cut(self, num_partitions: Mapping[str, int]) -> Self:
        """Return the same settings with these partitions; those of `uncut` types share the slots."""
        counts = dict(num_partitions)
        return replace(
            self,
            num_partitions=counts,
            num_slots={
                name: slots // counts[name] if name in self.uncut else slots
                for name, slots in self.num_slots.items()
            },
            grid=_grid(self.relations, counts),
            uncut=(),
        )

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Entity types in the configuration's order."""
        return tuple(self.num_partitions)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits by number, train first."""
        return tuple(self.folders.splits)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all types, type by type."""
        return [
            Partition(name, number) for name, count in self.num_partitions.items() for number in range(count)
        ]

    @property
    def first_slots(self) -> list[int]:
        """Number, among the slots of all partitions, of each partition's first slot; and of the end."""
        return [0, *accumulate(self.num_slots[name] for name, _ in self.partitions)]

    def by_partition(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Cut an array over the slots of all partitions into views, one per partition."""
        return np.split(values, self.first_slots[1:-1])

    def slots_of(self, entity_type: str, hashes: Hashes) -> Int64:
        """Number the slot of each hash among the slots of all partitions of the type."""
        num_slots = self.num_partitions[entity_type] * self.num_slots[entity_type]
        return scale(hashes, num_slots).astype(np.int64)

    @property
    def forget_until(self) -> int | None:
        """Ids that are gone since this day, or longer, are forgotten; None: none are."""
        after = self.etl.forget_after
        if after is None or self.today is None or self.etl.previous_entity_path is None:
            return None
        return self.today - after

    @property
    def feature_sides(self) -> list[Side]:
        """Sides with lists of features."""
        if not self.featurized:
            return []
        return [
            side
            for side in Side
            if any(relation.entity_type(side) in self.featurized for relation in self.relations)
        ]

    def feature_types(self, table: TableConfig) -> dict[Side, str]:
        """Return the featurized type of each side of a table, if it has one: the same in all rows."""
        if not self.featurized:
            return {}
        entries = [
            relation for relation in self.relations if self.dynamic or table.relation in (None, relation.name)
        ]
        types = {side: {entry.entity_type(side) for entry in entries} for side in Side}
        return {side: min(of_side) for side, of_side in types.items() if of_side & self.featurized}

    @property
    def record_fields(self) -> list[str]:
        """Names of the int32 values of a translated edge, in their order; a weight is the bits of a float32.

        `{side}_features` is the number of features of a featurized side.
        """
        return [
            *("rel", "lhs", "rhs"),
            *(["weight"] if self.weighted else []),
            *(f"{side}_features" for side in self.feature_sides),
        ]

    @property
    def filters(self) -> bool:
        """Tell whether rare entities or relations are left out."""
        return self.etl.min_relation_count > 0 or any(map(self.etl.min_count, self.num_partitions))

    @property
    def compares(self) -> bool:
        """Tell whether edges are left out because of equal rows."""
        return self.removes or self.etl.duplicates == "drop"

    @property
    def num_split_buckets(self) -> int:
        """Buckets of all splits."""
        return len(self.splits) * self.grid.lhs * self.grid.rhs

    def bucket_at(self, number: int) -> tuple[str, Bucket]:
        """Return split and bucket of a number among the buckets of all splits, which count row by row."""
        split, bucket = divmod(number, self.grid.lhs * self.grid.rhs)
        return self.splits[split], Bucket(*divmod(bucket, self.grid.rhs))

    @property
    def spreads(self) -> bool:
        """Tell whether a type has one partition while other types on its side have several, or may have."""
        if self.uncut and any(
            len({relation.entity_type(side) for relation in self.relations}) > 1 for side in Side
        ):
            return True
        return any(
            self.num_partitions[relation.entity_type(side)] < num_slices
            for side, num_slices in zip(Side, self.grid, strict=True)
            for relation in self.relations
        )


def day_of(config: Config) -> int:
    """Return the date of the run; days since 1970."""
    day = config.schedule.date
    if day is None:
        raise ConfigError(
            "etl.forget_after: expected a date, to count the days that an id is gone, found none; "
            "give --date YYYY-MM-DD"
        )
    return (date.fromisoformat(day) - date(1970, 1, 1)).days


def _grid(relations: tuple[RelationConfig, ...], num_partitions: Mapping[str, int]) -> Bucket:
    """Partitions along each side: the most of the types that occur there."""
    return Bucket(
        *(max(num_partitions[relation.entity_type(side)] for relation in relations) for side in Side)
    )


def _uncut_slots(num_ids: int, num_slots: int) -> int:
    """Slots of a type that may be cut: a power of two, so that its partitions have as many slots each."""
    for_partitions = min(num_ids // IDS_OF_UNCUT_SLOT, MAX_UNCUT_PARTITIONS - 1)
    return min(max(1 << max(for_partitions, num_slots).bit_length(), MIN_SLOTS), MAX_SLOTS)
