"""Small finished runs to ask, and their scores by an oracle that shares nothing with the model."""

import json
from collections.abc import Mapping, Sequence
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
from graphmill.ask.predict import for_ids
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import pbg
from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config
from graphmill.formats import edge_buckets, entity_counts, entity_index
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.entity_index import Manifest
from graphmill.vocab import Bucket, Side
from tests.train.oracle import operate

DIMENSION = 6
COUNTS: Mapping[int, Mapping[str, Sequence[int]]] = {
    1: {"user": [16], "item": [30]},
    3: {"user": [7, 0, 9], "item": [12, 5, 13]},
}
NUM_DYNAMIC = 3

Triple = tuple[int, int, int]  # number of the lhs entity, relation, number of the rhs entity


@dataclass
class World:
    """A run on disk, and its content.

    Attributes:
        vectors: by type, with the global embedding, [N, D].
        edges: by split.
    """

    config: Config
    model: Model
    counts: Mapping[str, Sequence[int]]
    vectors: Mapping[str, np.ndarray]
    edges: Mapping[str, Sequence[Triple]]

    def name(self, entity_type: str, number: int) -> str:
        return f"{entity_type}-{number:05d}ß"

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

    def best(
        self,
        relation: int,
        side: Side,
        k: int,
        known: frozenset[tuple[int, int]] = frozenset(),
        *,
        itself: bool = False,
    ) -> dict[tuple[str, int], tuple[str, float]]:
        """(id, rank) -> (candidate, score), by sorting all scores."""
        scores, types = self.scores(relation, side), self.types(relation)
        if not itself and not self.may_be_itself(relation):
            known |= {(query, query) for query in range(len(scores))}
        found = {}
        for query, row in enumerate(scores):
            order = [each for each in np.argsort(-row, kind="stable") if (query, each) not in known]
            for rank, each in enumerate(order[:k], start=1):
                key = self.name(types[side.other], query), rank
                found[key] = self.name(types[side], int(each)), float(row[each])
        return found


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
    counts: Mapping[str, Sequence[int]] | None = None,
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
            model.parameters[key] = torch.from_numpy(rng.standard_normal(DIMENSION, np.float32))
    vectors = {
        name: _write_type(config, name, each, model, rng, num_distinct) for name, each in counts.items()
    }
    entity_index.write_manifest(
        config.entity_path, Manifest("blake2b", 0, {name: len(each) for name, each in counts.items()})
    )
    at = Iteration(1, 0, 1, 0, "edges", 1, 0)
    pbg.write_model(config.checkpoint_path, 1, model.state_dict(), None, config.pbg(), at)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)
    if dynamic:
        entity_counts.write_relation_count(config.entity_path, NUM_DYNAMIC)
        entity_counts.write_relation_names(config.entity_path, ["likes", "sees", "buys"])
    world = World(config, model, counts, vectors, {})
    world.edges = {
        split: _write_edges(world, split, rng, loops=loops or split != "train") for split in splits
    }
    record = {"config": config.model_dump(mode="json"), "stages": {}}
    storage.write_text(config.record_uri(""), json.dumps(record))
    return world


def _write_type(
    config: Config,
    name: str,
    counts: Sequence[int],
    model: Model,
    rng: np.random.Generator,
    num_distinct: int | None,
) -> np.ndarray:
    at = Iteration(1, 0, 1, 0, "edges", 1, 0)
    whole, first = rng.standard_normal((sum(counts), DIMENSION), np.float32), 0
    whole[sum(counts) // 2 :][:1] = whole[1:2]  # a copy, which ties
    if num_distinct is not None:
        whole = whole[rng.integers(num_distinct, size=len(whole))]
    for partition, count in enumerate(counts):
        rows = whole[first : first + count]
        entity_counts.write_count(config.entity_path, name, partition, count)
        with entity_index.new_part(config.entity_path, name, partition) as writer:
            writer.append(pa.array([f"{name}-{first + row:05d}ß" for row in range(count)], pa.string()))
        pbg.write_embeddings(config.checkpoint_path, name, partition, 1, rows, None, {}, at)
        first += count
    added = model.parameters.get(f"global_embs.emb_{name}")
    return whole if added is None else whole + added.numpy()


def _write_edges(world: World, split: str, rng: np.random.Generator, *, loops: bool) -> list[Triple]:
    """Random edges, some of them twice."""
    config, counts = world.config, world.counts
    num_relations = NUM_DYNAMIC if config.dynamic_relations else len(config.relations)
    edges = []
    for rel in rng.integers(0, num_relations, 120).tolist():
        lhs, rhs = (sum(counts[name]) for name in world.types(rel).values())
        if not lhs or not rhs:
            continue
        edge = (int(rng.integers(0, lhs)), rel, int(rng.integers(0, rhs)))
        if loops or edge[0] != edge[2]:
            edges.append(edge)
    edges += edges[:5]
    grid = {side: config.num_side_partitions(side) for side in Side}
    placed: dict[Bucket, list[Triple]] = {
        Bucket(i, j): [] for i in range(grid[Side.LHS]) for j in range(grid[Side.RHS])
    }
    for lhs, rel, rhs in edges:
        places = {}
        for side, number in ((Side.LHS, lhs), (Side.RHS, rhs)):
            each = counts[world.types(rel)[side]]
            first = np.cumsum([0, *each])
            partition = int(np.searchsorted(first, number, side="right")) - 1
            # Edges of a type with one partition are in any bucket.
            bucket = partition if len(each) > 1 else (lhs + rhs) % grid[side]
            places[side] = bucket, number - int(first[partition])
        bucket = Bucket(places[Side.LHS][0], places[Side.RHS][0])
        placed[bucket].append((places[Side.LHS][1], rel, places[Side.RHS][1]))
    for bucket, own in placed.items():
        columns = np.array(own, np.int64).reshape(-1, 3).T
        edge_buckets.write_bucket(config.split_path(split), bucket, Edges(*columns))
    return edges


def tables_of(config: Config) -> tuple[Any, dict[str, EntityTable]]:
    trained = TrainedRun.chosen(config)
    return trained, read_tables(trained, list(config.entities))


def asked(config: Config, question: PredictOptions) -> Any:
    trained, tables = tables_of(config)
    return for_ids.asked_of(trained, question, tables)


def read_answers(folder: str | Path) -> dict[tuple[str, int], tuple[str, float]]:
    """(id, rank) -> (candidate, score) of all files."""
    found: dict[tuple[str, int], tuple[str, float]] = {}
    for path in sorted(Path(folder).glob("part-*.parquet")):
        table = pq.read_table(path).to_pydict()
        keys = zip(table["id"], table["rank"], strict=True)
        for key, value in zip(keys, zip(table["candidate"], table["score"], strict=True), strict=True):
            assert key not in found
            found[key] = value
    return found


def assert_equal(found: Mapping[Any, tuple[str, float]], expected: Mapping[Any, tuple[str, float]]) -> None:
    assert list(found) == list(expected)
    scores = np.array([[found[key][1], expected[key][1]] for key in found])
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], rtol=1e-4, atol=2e-3)
    assert [name for name, _ in found.values()] == [name for name, _ in expected.values()]
