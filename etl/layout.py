"""What every task of one run must agree on: types, partitions, relations, splits, folders."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from etl.config import EtlConfig
from etl.hashing import Hashes, mix, scale
from graphmill.config import Config
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

SLOTS = (
    16  # ranges of hashes that one partition's ids are filed under, so that they can be ordered bit by bit
)
_SPREAD_SALTS = {Side.LHS: np.uint64(0x9E3779B97F4A7C15), Side.RHS: np.uint64(0xC2B2AE3D27D4EB4F)}


class Part(NamedTuple):
    """One partition of one entity type."""

    entity_type: str
    partition: int


@dataclass(frozen=True)
class Layout:
    """The run's shape; small, and sent to every task."""

    num_partitions: dict[str, int]
    relations: tuple[tuple[str, str, str], ...]
    """(name, lhs type, rhs type) by number; of dynamic relations the one entry that gives the types."""
    dynamic: bool
    splits: tuple[str, ...]
    holdout: dict[str, float]
    grid: Bucket
    """Number of partitions along each side."""
    weighted: bool
    seed: int
    chunk_rows: int
    index_bytes: int
    merge_bytes: int
    entity_names: bool
    work_uri: str
    entity_uri: str
    split_uris: dict[str, str]

    @classmethod
    def of(
        cls, config: Config, etl: EtlConfig, *, work_uri: str, entity_uri: str, split_uris: dict[str, str]
    ) -> Self:
        """The layout that the configuration asks for, with the folders that the run writes to."""
        return cls(
            num_partitions={name: entity.num_partitions for name, entity in config.entities.items()},
            relations=tuple((each.name, each.lhs, each.rhs) for each in config.relations),
            dynamic=config.dynamic_relations,
            splits=etl.splits(),
            holdout=etl.holdout,
            grid=Bucket(*(config.num_side_partitions(side) for side in Side)),
            weighted=any(table.weight is not None for table in etl.tables),
            seed=config.seed,
            chunk_rows=etl.chunk_rows,
            index_bytes=etl.index_bytes,
            merge_bytes=etl.merge_bytes,
            entity_names=etl.entity_names,
            work_uri=work_uri,
            entity_uri=entity_uri,
            split_uris=split_uris,
        )

    @property
    def entity_types(self) -> tuple[str, ...]:
        """All entity types, in the configuration's order."""
        return tuple(self.num_partitions)

    def parts(self) -> list[Part]:
        """Every partition of every type, type by type."""
        return [Part(name, number) for name, count in self.num_partitions.items() for number in range(count)]

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket of one split, row by row."""
        return (Bucket(lhs, rhs) for lhs in range(self.grid.lhs) for rhs in range(self.grid.rhs))

    @property
    def num_buckets(self) -> int:
        """Buckets of one split."""
        return self.grid.lhs * self.grid.rhs

    @property
    def spreads(self) -> bool:
        """Whether a type has one partition while others on its side have several."""
        ends = [(lhs, self.grid.lhs) for _, lhs, _ in self.relations]
        ends += [(rhs, self.grid.rhs) for _, _, rhs in self.relations]
        return any(self.num_partitions[name] < num_slices for name, num_slices in ends)

    @property
    def train(self) -> int:
        """Number of the train split."""
        return self.splits.index(TRAIN_SPLIT)

    def draw_splits(self, edge_hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Split of each edge that a train table holds: a seeded draw on the edge's content alone."""
        limits = np.cumsum(list(self.holdout.values())) * 2.0**32
        numbers = [*(self.splits.index(name) for name in self.holdout), self.train]
        drawn = np.searchsorted(limits, (edge_hashes >> np.uint64(32)).astype(np.float64), side="right")
        return np.array(numbers, np.uint8)[drawn]

    def spread(self, edge_hashes: Hashes, side: Side) -> npt.NDArray[np.int64]:
        """Slice of the grid for edges whose type on `side` has one partition: even, and fixed by the edge."""
        num_slices = self.grid.lhs if side is Side.LHS else self.grid.rhs
        return scale(mix(edge_hashes ^ _SPREAD_SALTS[side]), num_slices).astype(np.int64)
