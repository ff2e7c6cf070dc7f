"""Synthetic graphs, the same on every machine: edge tables of string ids, and folders of triples.

Edge tables have the columns lhs, rel, rhs. Id frequencies follow a bounded power law: the k-th most frequent
id has a frequency in proportion to k ** -0.75. This is close to social and web graphs, and flat enough that
ten rows per id include nearly all ids. Memory: one row group per process, and a bit per id.

    {root}/edges-{rows}-{ids}/parquet/part-{file}.parquet     row groups of 1 M
    {root}/edges-{rows}-{ids}/edges.tsv                       the same rows in the same order
    {root}/edges-{rows}-{ids}/counts.json                     rows by relation, ids by type
    {root}/triples-{entities}-{edges}/train.txt, valid.txt, test.txt      head, relation, tail
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

Int64 = npt.NDArray[np.int64]

EXPONENT = 0.75
SCHEMA = pa.schema([("lhs", pa.string()), ("rel", pa.string()), ("rhs", pa.string())])
GROUP_ROWS = 1_000_000
NUM_FILES = 8
COUNTS = "counts.json"
ROWS_PER_ID = 10
TAB = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")

# (name, lhs type, rhs type) of every relation, of the types "user" and "item"
Relations = tuple[tuple[str, str, str], ...]
RELATIONS: Relations = (
    ("viewed", "user", "item"),
    ("bought", "user", "item"),
    ("rated", "user", "item"),
    ("follows", "user", "user"),
    ("similar_to", "item", "item"),
)


@dataclass(frozen=True)
class Edges:
    """A synthetic edge table.

    Attributes:
        short_ids: ids of 16 bytes instead of 17 to 22.
    """

    num_rows: int
    num_ids: int
    num_files: int = NUM_FILES
    short_ids: bool = False
    compression: str = "snappy"
    relations: Relations = RELATIONS

    @classmethod
    def of(cls, num_rows: int) -> "Edges":
        """A table of `num_rows` rows, ten per id."""
        return cls(num_rows, max(num_rows // ROWS_PER_ID, 2))

    @property
    def name(self) -> str:
        return f"edges-{self.num_rows}-{self.num_ids}"

    @property
    def num_ids_of_type(self) -> int:
        """Ids of each type that rows are drawn from."""
        return self.num_ids // 2

    def ids(self, entity_type: str | pa.Array, rank: Int64) -> pa.Array:
        """The ids of these ranks among those of a type, or of a type for each."""
        # An odd factor permutes the numbers below 2 ** 39, so ids are distinct; they have at most 12 digits.
        number = rank.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) % np.uint64(1 << 39)
        digits = pc.utf8_lpad(pa.array(number).cast(pa.string()), 12, padding="0")
        if self.short_ids:
            return pc.binary_join_element_wise(pc.utf8_slice_codeunits(entity_type, 0, 4), digits, "")
        zeros = pa.array(["", "0", "00", "000", "0000", "00000"]).take(pa.array(rank % 6))
        return pc.binary_join_element_wise(entity_type, "_", zeros, digits, "")

    def groups(self, file: int) -> Iterator[tuple[Int64, Int64, Int64]]:
        """Draw the rows of a file by row groups: number of the relation, and ranks of both endpoints."""
        start, stop = (self.num_rows * each // self.num_files for each in (file, file + 1))
        for first in range(start, stop, GROUP_ROWS):
            rng = np.random.default_rng([0, first])
            count = min(GROUP_ROWS, stop - first)
            rel = rng.integers(len(self.relations), size=count)
            lhs, rhs = (power_law(rng, self.num_ids_of_type, count) for _ in range(2))
            yield rel, lhs, rhs

    def table(self, rel: Int64, lhs: Int64, rhs: Int64) -> pa.Table:
        """The rows of a group as strings."""
        names = pa.array([name for name, *_ in self.relations])
        columns = [self._side(rel, 1, lhs), names.take(pa.array(rel)), self._side(rel, 2, rhs)]
        return pa.table(columns, schema=SCHEMA)

    def is_of(self, entity_type: str, rel: Int64, side: int) -> npt.NDArray[np.bool_]:
        """Which rows have this type on `side` (1 lhs, 2 rhs)."""
        return np.array([relation[side] == entity_type for relation in self.relations])[rel]

    def _side(self, rel: Int64, side: int, rank: Int64) -> pa.Array:
        """One endpoint per row, of the type of its relation on `side` (1 lhs, 2 rhs)."""
        types = pa.array([relation[side] for relation in self.relations])
        return self.ids(types.take(pa.array(rel)), rank)


def power_law(rng: np.random.Generator, num_ranks: int, count: int) -> Int64:
    """Draw ranks from 0, rank k in proportion to (k + 1) ** -EXPONENT."""
    rest = 1 - EXPONENT
    drawn = (rng.random(count) * ((num_ranks + 1) ** rest - 1) + 1) ** (1 / rest)
    ranks: Int64 = np.minimum(drawn.astype(np.int64) - 1, num_ranks - 1)
    return ranks


def parquet_edges(root: Path, edges: Edges, num_workers: int = 1) -> Path:
    """The folder of the parquet files of the table, written on first use."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        write_file, files = partial(_write_file, edges, folder), range(edges.num_files)
        if num_workers == 1:
            counts = list(map(write_file, files))
        else:
            with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
                counts = list(pool.imap(write_file, files))
        (folder.parent / COUNTS).write_text(json.dumps(_sum(edges, counts)))

    return _once(root / edges.name / "parquet", write)


def read_counts(root: Path, edges: Edges) -> dict[str, dict[str, int]]:
    """`rows` by relation and distinct `ids` by type of a table that parquet_edges has written."""
    counts: dict[str, dict[str, int]] = json.loads((root / edges.name / COUNTS).read_text())
    return counts


_Counts = tuple[Int64, dict[str, npt.NDArray[np.uint8]]]  # rows by relation; bits of the ids by type


def _write_file(edges: Edges, folder: Path, file: int) -> _Counts:
    types = {each for _, *types in edges.relations for each in types}
    seen = {entity_type: np.zeros(edges.num_ids_of_type, bool) for entity_type in types}
    num_rows = np.zeros(len(edges.relations), np.int64)
    options: dict[str, Any] = {"use_dictionary": ["rel"], "compression": edges.compression}
    with pq.ParquetWriter(folder / f"part-{file}.parquet", SCHEMA, **options) as writer:
        for rel, lhs, rhs in edges.groups(file):
            writer.write_table(edges.table(rel, lhs, rhs), row_group_size=GROUP_ROWS)
            num_rows += np.bincount(rel, minlength=len(num_rows))
            for entity_type, of_type in seen.items():
                for side, rank in ((1, lhs), (2, rhs)):
                    of_type[rank[edges.is_of(entity_type, rel, side)]] = True
    return num_rows, {entity_type: np.packbits(of_type) for entity_type, of_type in seen.items()}


def _sum(edges: Edges, counts: list[_Counts]) -> dict[str, dict[str, int]]:
    rows = np.sum([num_rows for num_rows, _ in counts], axis=0).tolist()
    seen = {
        entity_type: np.bitwise_or.reduce([seen[entity_type] for _, seen in counts])
        for entity_type in counts[0][1]
    }
    return {
        "rows": {name: count for (name, *_), count in zip(edges.relations, rows, strict=True)},
        "ids": {entity_type: int(np.bitwise_count(bits).sum()) for entity_type, bits in seen.items()},
    }


def tsv_edges(root: Path, edges: Edges) -> Path:
    """The table as one tab-separated file without a header, written on first use."""

    def write(path: Path) -> None:
        with pacsv.CSVWriter(path, SCHEMA, write_options=TAB) as writer:
            for file in range(edges.num_files):
                for rel, lhs, rhs in edges.groups(file):
                    writer.write_table(edges.table(rel, lhs, rhs))

    return _once(root / edges.name / "edges.tsv", write)


@dataclass(frozen=True)
class Triples:
    """A synthetic knowledge graph, by default of the size of FB15k-237.

    Every entity belongs to a cluster of a ring. A relation leads some clusters further, where few entities
    take most edges: a model learns this in an epoch if there are few relations and many edges.
    """

    num_entities: int = 14_541
    num_relations: int = 237
    num_train: int = 272_115
    num_valid: int = 17_535
    num_test: int = 20_466
    num_clusters: int = 150

    def splits(self) -> dict[str, Int64]:
        """Draw distinct triples [N, 3] (head, relation, tail) of each split."""
        rng = np.random.default_rng(0)
        wanted = self.num_train + self.num_valid + self.num_test
        distance = rng.integers(self.num_clusters, size=self.num_relations)
        found = np.empty((0, 3), np.int64)
        while len(found) < wanted:
            head = rng.permutation(np.arange(2 * wanted) % self.num_entities)
            relation = power_law(rng, self.num_relations, len(head))
            cluster = (head + distance[relation]) % self.num_clusters
            place = power_law(rng, self.num_entities // self.num_clusters, len(head))
            tail = place * self.num_clusters + cluster
            found = np.unique(np.concatenate([found, np.stack([head, relation, tail], axis=1)]), axis=0)
        shuffled = rng.permutation(found)[:wanted]
        cuts = np.cumsum([self.num_train, self.num_valid])
        return dict(zip(("train", "valid", "test"), np.split(shuffled, cuts), strict=True))


def triples_folder(root: Path, triples: Triples) -> Path:
    """The folder of the three files of the graph, written on first use."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for split, rows in triples.splits().items():
            columns = [
                pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")
                for prefix, numbers in zip(("/m/", "/relation/", "/m/"), rows.T, strict=True)
            ]
            table = pa.table(columns, names=["head", "relation", "tail"])
            pacsv.write_csv(table, folder / f"{split}.txt", TAB)

    return _once(root / f"triples-{triples.num_entities}-{triples.num_train}", write)


def _once(path: Path, write: Callable[[Path], None]) -> Path:
    """Write under a temporary name and rename, so that an incomplete graph is never used."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write(temporary)
            temporary.rename(path)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink(missing_ok=True)
    return path
