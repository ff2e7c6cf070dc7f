"""Synthetic graphs, the same on every machine: edge tables of string ids, and folders of triples.

Edge tables have the columns lhs, rel, rhs. Id frequencies follow a bounded power law: the k-th most frequent
id has a frequency in proportion to k ** -0.75. This is close to social and web graphs, and flat enough that
ten rows per id include nearly all ids. Memory: all ids (about 25 bytes each) and one row group.

    {root}/edges-{rows}-{ids}-{types}-{seed}/parquet/part-{file}.parquet     eight files, row groups of 1 M
    {root}/edges-{rows}-{ids}-{types}-{seed}/edges.tsv                       the same rows in the same order
    {root}/triples-{entities}-{seed}/train.txt, valid.txt, test.txt          head, relation, tail
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
ROWS_PER_ID = 10
TAB = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")

# name, type of lhs, type of rhs; with one type, all are "user"
RELATIONS = (
    ("viewed", "user", "item"),
    ("bought", "user", "item"),
    ("rated", "user", "item"),
    ("follows", "user", "user"),
    ("similar_to", "item", "item"),
)


@dataclass(frozen=True)
class Edges:
    """A synthetic edge table."""

    num_rows: int
    num_ids: int
    num_types: int = 2
    seed: int = 0

    @classmethod
    def of(cls, num_rows: int) -> "Edges":
        """A table of `num_rows` rows, ten per id."""
        return cls(num_rows, max(num_rows // ROWS_PER_ID, 2))

    @property
    def name(self) -> str:
        return f"edges-{self.num_rows}-{self.num_ids}-{self.num_types}-{self.seed}"

    def relations(self) -> tuple[tuple[str, str, str], ...]:
        """(name, lhs type, rhs type) of every relation."""
        return RELATIONS if self.num_types == 2 else tuple((name, "user", "user") for name, *_ in RELATIONS)

    def ids(self, entity_type: str) -> pa.Array:
        """All ids of a type, most frequent first: strings of 17 to 22 bytes."""
        rank = np.arange(self.num_ids // self.num_types, dtype=np.uint64)
        # An odd factor permutes the numbers below 2 ** 39, so ids are distinct; they have at most 12 digits.
        number = rank * np.uint64(0x9E3779B97F4A7C15) % np.uint64(1 << 39)
        digits = pa.array(number).cast(pa.string())
        padded = [pc.utf8_lpad(digits, 12 + more, padding="0") for more in range(6)]
        return pc.binary_join_element_wise(
            f"{entity_type}_", pc.choose(pa.array(rank % 6, pa.int64()), *padded), ""
        )

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """Give the rows by row groups, with the file number of each group."""
        ids = {entity_type: self.ids(entity_type) for _, *types in self.relations() for entity_type in types}
        names = pa.array([name for name, *_ in self.relations()])
        for file in range(NUM_FILES):
            start, stop = (self.num_rows * each // NUM_FILES for each in (file, file + 1))
            for first in range(start, stop, GROUP_ROWS):
                rng = np.random.default_rng([self.seed, first])
                count = min(GROUP_ROWS, stop - first)
                rel = rng.integers(len(names), size=count)
                columns = [self._side(rng, rel, side, ids) for side in (1, 2)]
                yield file, pa.table([columns[0], names.take(pa.array(rel)), columns[1]], schema=SCHEMA)

    def _side(self, rng: np.random.Generator, rel: Int64, side: int, ids: dict[str, pa.Array]) -> pa.Array:
        """Draw one endpoint per row, of the type of its relation on `side` (1 lhs, 2 rhs)."""
        rank = pa.array(power_law(rng, self.num_ids // self.num_types, len(rel)))
        if len(ids) == 1:
            return ids["user"].take(rank)
        is_item = np.array([relation[side] == "item" for relation in self.relations()])[rel]
        return pc.if_else(pa.array(is_item), ids["item"].take(rank), ids["user"].take(rank))


def power_law(rng: np.random.Generator, num_ranks: int, count: int) -> Int64:
    """Draw ranks from 0, rank k in proportion to (k + 1) ** -EXPONENT."""
    rest = 1 - EXPONENT
    drawn = (rng.random(count) * ((num_ranks + 1) ** rest - 1) + 1) ** (1 / rest)
    ranks: Int64 = np.minimum(drawn.astype(np.int64) - 1, num_ranks - 1)
    return ranks


def parquet_edges(root: Path, edges: Edges) -> Path:
    """The folder of the parquet files of the table, written on first use."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        writers = [
            pq.ParquetWriter(folder / f"part-{file}.parquet", SCHEMA, use_dictionary=["rel"])
            for file in range(NUM_FILES)
        ]
        for file, table in edges.tables():
            writers[file].write_table(table, row_group_size=GROUP_ROWS)
        for writer in writers:
            writer.close()

    return _once(root / edges.name / "parquet", write)


def tsv_edges(root: Path, edges: Edges) -> Path:
    """The table as one tab-separated file without a header, written on first use."""

    def write(path: Path) -> None:
        with pacsv.CSVWriter(path, SCHEMA, write_options=TAB) as writer:
            for _, table in edges.tables():
                writer.write_table(table)

    return _once(root / edges.name / "edges.tsv", write)


@dataclass(frozen=True)
class Triples:
    """A synthetic knowledge graph, by default of the size of FB15k-237.

    Every entity belongs to a cluster. Every relation leads from a cluster to one other cluster, in which few
    entities take most edges: a model can learn the structure, up to a limit.
    """

    num_entities: int = 14_541
    num_relations: int = 237
    num_train: int = 272_115
    num_valid: int = 17_535
    num_test: int = 20_466
    num_clusters: int = 150
    seed: int = 0

    def splits(self) -> dict[str, Int64]:
        """Draw distinct triples [N, 3] (head, relation, tail) of each split."""
        rng = np.random.default_rng(self.seed)
        wanted = self.num_train + self.num_valid + self.num_test
        leads_to = np.stack([rng.permutation(self.num_clusters) for _ in range(self.num_relations)])
        found = np.empty((0, 3), np.int64)
        while len(found) < wanted:
            head = rng.permutation(np.arange(2 * wanted) % self.num_entities)
            relation = power_law(rng, self.num_relations, len(head))
            cluster = leads_to[relation, head % self.num_clusters]
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

    return _once(root / f"triples-{triples.num_entities}-{triples.num_train}-{triples.seed}", write)


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
