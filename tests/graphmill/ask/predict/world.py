"""Small finished runs to ask, and their scores by an oracle that shares nothing with the model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from graphmill import config as configuration
from graphmill import storage
from graphmill.ask.entities import EntityTable, read_tables
from graphmill.ask.model import Model
from graphmill.ask.predict import search
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.config.partitions import all_buckets
from graphmill.formats import edge_buckets, entity_counts, entity_index, remapped
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.entity_index import Manifest
from graphmill.vocab import Bucket, Side
from tests.remap.graph import ITERATION
from tests.train.oracle import operate

DIMENSION = 6
Counts = Mapping[str, Sequence[int]]  # rows of each type, by partition
COUNTS: Mapping[int, Counts] = {1: {"user": [16], "item": [30]}, 3: {"user": [7, 0, 9], "item": [12, 5, 13]}}
NUM_DYNAMIC = 3
KINDS: dict[str, Any] = {"static": {}, "dynamic": {"dynamic": True}, "reciprocal": {"reciprocal": True}}

Triple = tuple[int, int, int]  # number of the lhs entity, relation, number of the rhs entity
Pairs = frozenset[tuple[int, int]]  # (query, answer)


@dataclass
class World:
    """A run on disk, and its content.

    Attributes:
        vectors: by type, with the global embedding, [N, D].
        edges: by split.
    """

    config: Config
    model: Model
    counts: Counts
    vectors: Mapping[str, np.ndarray]
    edges: Mapping[str, Sequence[Triple]]

    def name(self, entity_type: str, number: int) -> str:
        return f"{entity_type}-{number:05d}ß"

    def by_id(self, entity_type: str) -> dict[str, np.ndarray]:
        """The vectors of a type by raw id."""
        return {self.name(entity_type, number): row for number, row in enumerate(self.vectors[entity_type])}

    def parts(self, entity_type: str, rows: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
        """The number of each partition, with its part of the rows of a type."""
        return enumerate(np.split(rows, np.cumsum(self.counts[entity_type])[:-1]))

    def write_rows(self, entity_type: str, rows: np.ndarray, version: int = 1) -> None:
        """Give a type these rows in the checkpoint."""
        for part, own in self.parts(entity_type, rows):
            path = self.config.checkpoint_path
            pbg.write_embeddings(path, entity_type, part, version, own, None, {}, ITERATION)

    def publish(self, folder: str, vectors: Mapping[str, np.ndarray] | None = None) -> None:
        """Write tables of vectors by raw id, as remap does."""
        for name, rows in (vectors or self.vectors).items():
            ids = np.array(list(self.by_id(name)), object)
            for (part, own), (_, own_ids) in zip(self.parts(name, rows), self.parts(name, ids), strict=True):
                with remapped.new_part(folder, name, part, rows.shape[1]) as writer:
                    writer.append(pa.array(own_ids, pa.string()), own)

    def types(self, relation: int) -> dict[Side, str]:
        entry = self.config.relations[0 if self.config.dynamic_relations else relation]
        return {side: entry.entity_type(side) for side in Side}

    def scores(self, relation: int, side: Side) -> np.ndarray:
        """Scores of all queries of the other side against all candidates, [Q, N], in float64."""
        position = 0 if self.config.dynamic_relations else relation
        entry, types = self.config.relations[position], self.types(relation)
        two_sided = self.model.two_sided
        ends = {}
        for own in Side:
            vectors = torch.from_numpy(self.vectors[types[own]]).double()
            if own is side.other if two_sided else own is Side.RHS:
                keys = self.model.operator_keys(position, own)
                values = [self.model.parameters[key].double() for key in keys]
                values = [each[relation] for each in values] if self.config.dynamic_relations else values
                vectors = torch.stack([operate(entry.operator, values, each) for each in vectors])
            ends[own] = vectors.numpy()
        return compared(self.config, ends[side.other], ends[side])

    def may_be_itself(self, relation: int) -> bool:
        """Whether an id may be its own answer."""
        lhs, rhs = self.types(relation).values()
        return lhs != rhs or any(rel == relation and lhs == rhs for lhs, rel, rhs in self.edges["train"])

    def pairs(self, relation: int, side: Side, *splits: str) -> Pairs:
        """The queries and answers of the edges of a relation, of all splits or of some."""
        edges = [edge for split in splits or self.edges for edge in self.edges[split] if edge[1] == relation]
        return frozenset((lhs, rhs) if side is Side.RHS else (rhs, lhs) for lhs, _, rhs in edges)

    def orders(
        self, relation: int, side: Side, known: Pairs = frozenset(), itself: bool = False
    ) -> list[list[int]]:
        """The candidates of each query but the known ones, best first, by sorting all scores."""
        scores = self.scores(relation, side)
        if not itself and not self.may_be_itself(relation):
            known |= {(query, query) for query in range(len(scores))}
        sorted_NN = np.argsort(-scores, axis=1, kind="stable").tolist()
        return [[each for each in row if (query, each) not in known] for query, row in enumerate(sorted_NN)]

    def best(
        self, relation: int, side: Side, k: int, known: Pairs = frozenset(), itself: bool = False
    ) -> dict[tuple[str, int], tuple[str, float]]:
        """(id, rank) -> (candidate, score)."""
        scores, types = self.scores(relation, side), self.types(relation)
        return {
            (self.name(types[side.other], query), rank): (
                self.name(types[side], each),
                float(scores[query, each]),
            )
            for query, order in enumerate(self.orders(relation, side, known, itself))
            for rank, each in enumerate(order[:k], start=1)
        }

    def cosines(self, own: str, other: str, k: int) -> dict[tuple[str, int], tuple[str, float]]:
        """(id, rank) -> (candidate, cosine), by sorting all cosines."""
        a, b = (self.vectors[each].astype(np.float64) for each in (own, other))
        found = a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
        if own == other:
            np.fill_diagonal(found, -np.inf)
        return {
            (self.name(own, query), rank): (self.name(other, int(each)), float(row[each]))
            for query, row in enumerate(found)
            for rank, each in enumerate(np.argsort(-row, kind="stable")[:k], start=1)
            if row[each] > -np.inf
        }


def compared(config: Config, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if config.bias:
        rest = config.model_copy(update={"bias": False})
        return compared(rest, a[:, 1:], b[:, 1:]) + a[:, :1] + b[:, 0]
    match config.comparator:
        case "dot":
            return a @ b.T
        case "cos":
            return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    distances = np.linalg.norm(a[:, None] - b[None], axis=-1)
    return -distances if config.comparator == "l2" else -(distances**2)


def write_world(
    output: str | Path,
    *,
    operator: str = "diagonal",
    comparator: str = "dot",
    dynamic: bool = False,
    reciprocal: bool = False,
    num_partitions: int = 1,
    counts: Counts | None = None,
    splits: Sequence[str] = ("train", "test"),
    loops: bool = True,
    num_distinct: int | None = None,
    **settings: Any,
) -> World:
    """A run with the relations `likes` (user, item) and `follows` (user, user), or three dynamic ones.

    Without `loops`, no training edge is one. All vectors of a type may be copies of `num_distinct` ones.
    """
    counts = counts or COUNTS[num_partitions]
    raw = {
        "output": str(output),
        "entities": {name: {"num_partitions": len(each)} for name, each in counts.items()},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item", "operator": operator},
            {"name": "follows", "lhs": "user", "rhs": "user", "operator": operator},
        ][: 1 if dynamic else 2],
        "dynamic_relations": dynamic,
        "global_emb": not dynamic,
        "dimension": DIMENSION,
        "comparator": comparator,
        "train": {"reciprocal_relations": reciprocal},
    }
    config = configuration.from_mapping(raw | settings)
    rng = np.random.default_rng(7)
    model = Model(config, NUM_DYNAMIC if dynamic else None, relation_init="random", seed=3)
    for key in model.parameters:
        if key.startswith("global"):
            model.parameters[key] = torch.from_numpy(rng.standard_normal(config.dimension, np.float32))
    world = World(config, model, counts, {}, {})
    world.vectors = {name: _write_type(world, name, rng, num_distinct) for name in counts}
    parts = {name: len(each) for name, each in counts.items()}
    entity_index.write_manifest(config.entity_path, Manifest("blake2b", 0, parts))
    pbg.write_model(config.checkpoint_path, 1, model.state_dict(), None, config.pbg(), ITERATION)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)
    if dynamic:
        entity_counts.write_relation_count(config.entity_path, NUM_DYNAMIC)
        entity_counts.write_relation_names(config.entity_path, ["likes", "sees", "buys"])
    world.edges = {split: _drawn(world, rng, loops=loops or split != "train") for split in splits}
    for split, edges in world.edges.items():
        write_edges(config, counts, edges, config.split_path(split))
    record = {"config": config.model_dump(mode="json"), "stages": {}}
    storage.write_text(config.record_uri(""), json.dumps(record))
    return world


def _write_type(world: World, name: str, rng: np.random.Generator, num_distinct: int | None) -> np.ndarray:
    entity_path, num = world.config.entity_path, sum(world.counts[name])
    whole = rng.standard_normal((num, world.config.dimension), np.float32)
    whole[num // 2 :][:1] = whole[1:2]  # a copy, which ties
    if num_distinct is not None:
        whole = whole[rng.integers(num_distinct, size=num)]
    ids = np.array([world.name(name, number) for number in range(num)], object)
    for part, own in world.parts(name, ids):
        entity_counts.write_count(entity_path, name, part, len(own))
        with entity_index.new_part(entity_path, name, part) as writer:
            writer.append(pa.array(own, pa.string()))
    world.write_rows(name, whole)
    added = world.model.parameters.get(f"global_embs.emb_{name}")
    return whole if added is None else whole + added.numpy()


def _drawn(world: World, rng: np.random.Generator, *, loops: bool) -> list[Triple]:
    """Random edges, some of them twice."""
    num_relations = NUM_DYNAMIC if world.config.dynamic_relations else len(world.config.relations)
    edges = []
    for rel in rng.integers(0, num_relations, 120).tolist():
        lhs, rhs = (sum(world.counts[name]) for name in world.types(rel).values())
        if not lhs or not rhs:
            continue
        edge = (int(rng.integers(0, lhs)), rel, int(rng.integers(0, rhs)))
        if loops or edge[0] != edge[2]:
            edges.append(edge)
    return edges + edges[:5]


def write_edges(config: Config, counts: Counts, edges: Sequence[Triple], path: str) -> None:
    """Bucket files of edges; those of a type with one partition are in any bucket."""
    placed: dict[Bucket, list[Triple]] = {bucket: [] for bucket in all_buckets(config)}
    for lhs, rel, rhs in edges:
        places = []
        for side, number in ((Side.LHS, lhs), (Side.RHS, rhs)):
            rows = counts[config.relations[0 if config.dynamic_relations else rel].entity_type(side)]
            first = np.cumsum([0, *rows])
            part = int(np.searchsorted(first, number, side="right")) - 1
            any_part = (lhs + rhs) % config.num_side_partitions(side)
            places.append((part if len(rows) > 1 else any_part, number - int(first[part])))
        (i, lhs_row), (j, rhs_row) = places
        placed[Bucket(i, j)].append((lhs_row, rel, rhs_row))
    for bucket, own in placed.items():
        columns = np.array(own, np.int64).reshape(-1, 3).T
        edge_buckets.write_bucket(path, bucket, Edges(*columns))


def tables_of(config: Config) -> tuple[Any, dict[str, EntityTable]]:
    trained = TrainedRun.chosen(config)
    return trained, read_tables(trained, list(config.entities))


def asked(config: Config, question: PredictOptions) -> Any:
    trained, tables = tables_of(config)
    return search.asked_of(trained, question, tables)


def read_answers(folder: str | Path) -> dict[tuple[str, int], tuple[str, float]]:
    """(id, rank) -> (candidate, score) of all files."""
    found: dict[tuple[str, int], tuple[str, float]] = {}
    for path in sorted(Path(folder).glob("part-*.parquet")):
        table = pq.read_table(path).to_pydict()
        columns = (table[name] for name in ("id", "rank", "candidate", "score"))
        for raw_id, rank, candidate, score in zip(*columns, strict=True):
            assert (raw_id, rank) not in found
            found[raw_id, rank] = candidate, score
    return found


def assert_equal(found: Mapping[Any, tuple[str, float]], expected: Mapping[Any, tuple[str, float]]) -> None:
    assert list(found) == list(expected)
    scores = np.array([[found[key][1], expected[key][1]] for key in found])
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=1e-4, atol=1e-5)
    assert [name for name, _ in found.values()] == [name for name, _ in expected.values()]
