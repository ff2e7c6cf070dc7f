"""Small graphs as the trainer's input, and how well a checkpoint ranks them."""

import operator
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from graphmill import storage
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.config.partitions import all_keys
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.vocab import Bucket, Side

USUAL: dict[str, Any] = {
    "dimension": 8,
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.1,
    "num_epochs": 2,
    "batch_size": 50,
    "num_batch_negs": 25,
    "num_uniform_negs": 10,
    "eval_fraction": 0.0,
    "workers": 1,
}


def make_config(root, **settings) -> Config:
    """A configuration with one type and one static relation, unless `settings` say otherwise."""
    return from_mapping(
        {
            "output": str(root),
            "entities": {"node": {"num_partitions": 1}},
            "relations": [{"name": "r", "lhs": "node", "rhs": "node", "operator": "diagonal"}],
        }
        | USUAL
        | settings
        # Otherwise no small graph has partitions, and no small run a second version.
        | {"train": {"resident": "never", "commit_interval_s": 0, **settings.get("train", {})}}
    )


def changed(config: Config, **settings) -> Config:
    """The configuration with other settings."""
    return from_mapping(config.model_dump() | settings)


def write_graph(config: Config, counts, triples, weight=None, path=None) -> None:
    """Counts and bucket files of triples [E, 3] of global ids: id i is row i // P of partition i % P."""
    num = {name: entity.num_partitions for name, entity in config.entities.items()}
    for name, count in counts.items():
        for part in range(num[name]):
            rows = len(range(part, count, num[name]))
            entity_counts.write_count(config.entity_path, name, part, rows)
    if config.dynamic_relations:
        entity_counts.write_relation_count(config.entity_path, int(triples[:, 1].max()) + 1)
    types = {
        side: [
            config.relations[0 if config.dynamic_relations else r].entity_type(side) for r in triples[:, 1]
        ]
        for side in Side
    }
    parts = {side: np.array([num[name] for name in types[side]]) for side in Side}
    lhs, rhs = triples[:, 0], triples[:, 2]
    for i in range(config.num_side_partitions(Side.LHS)):
        for j in range(config.num_side_partitions(Side.RHS)):
            mine = (lhs % parts[Side.LHS] == i) & (rhs % parts[Side.RHS] == j)
            edges = Edges(
                lhs[mine] // parts[Side.LHS][mine],
                triples[mine, 1],
                rhs[mine] // parts[Side.RHS][mine],
                None if weight is None else weight[mine],
            )
            edge_buckets.write_bucket(path or config.edge_paths[0], Bucket(i, j), edges)


def embeddings(config: Config, entity_type: str, count: int) -> torch.Tensor:
    """The checkpoint's embeddings by global id, [count, D]."""
    num = config.entities[entity_type].num_partitions
    version = pbg.read_version(config.checkpoint_path)
    table = torch.empty(count, config.entity_dimension(entity_type))
    for part in range(num):
        saved, _ = pbg.read_embeddings(config.checkpoint_path, entity_type, part, version)
        table[part::num] = torch.from_numpy(saved)
    return table


def saved(config: Config, path: str | None = None) -> dict[Any, Any]:
    """All that a checkpoint holds but its settings, by name: numbers, tensors, and training_stats.json."""
    path = path or config.checkpoint_path
    version = pbg.read_version(path)
    found: dict[Any, Any] = {"version": version, "stats": pbg.read_stats(path)}
    for key in all_keys(config):
        rows, state = pbg.read_embeddings(path, *key, version)
        found[key], found[*key, "sum"] = torch.from_numpy(rows), state["state"][0]["sum"]
    parameters, optimizer, _ = pbg.read_model(path, version)
    found |= parameters
    for number, entry in optimizer.get("state", {}).items():
        found[number, "sum"], found[number, "step"] = entry["sum"], entry["step"]
    return found


def differing(first: dict[Any, Any], second: dict[Any, Any]) -> list[Any]:
    """Names of what two checkpoints do not both hold, to the last bit."""
    return [
        name
        for name in first.keys() | second.keys()
        if name not in first
        or name not in second
        or not (torch.equal if isinstance(first[name], torch.Tensor) else operator.eq)(
            first[name], second[name]
        )
    ]


def mean_reciprocal_rank(config: Config, counts, known, queries) -> float:
    """Filtered MRR over both sides; ties count half."""
    version = pbg.read_version(config.checkpoint_path)
    state, _, _ = pbg.read_model(config.checkpoint_path, version)
    model = Model(config, int(known[:, 1].max()) + 1 if config.dynamic_relations else None)
    model.load_state(state)
    tables = {name: embeddings(config, name, count) for name, count in counts.items()}
    positives = defaultdict(set)
    for lhs, rel, rhs in known.tolist():
        positives[Side.LHS, rel, rhs].add(lhs)
        positives[Side.RHS, rel, lhs].add(rhs)
    total = 0.0
    for rel, side in product(np.unique(queries[:, 1]).tolist(), Side):
        asked = queries[queries[:, 1] == rel]
        own_Q, other_Q = (asked[:, column] for column in ((0, 2) if side is Side.LHS else (2, 0)))
        relation = 0 if config.dynamic_relations else rel
        entry = config.relations[relation]
        rel_Q = torch.full((len(asked),), rel) if config.dynamic_relations else None
        query_QD = model.query(relation, side, tables[entry.entity_type(side.other)][other_Q], rel_Q)
        candidates = model.candidates(relation, side, tables[entry.entity_type(side)])
        for own, other, scores in zip(own_Q, other_Q, model.matrix_scores(query_QD, candidates), strict=True):
            scores[[x for x in positives[side, rel, other] if x != own]] = -np.inf
            better, equal = int((scores > scores[own]).sum()), int((scores == scores[own]).sum())
            total += 1 / (better + (equal + 1) / 2)
    return total / (2 * len(queries))


def random_triples(rng, num_lhs, num_rel, num_rhs, num_edges):
    """Edges without order or repetition."""
    codes = rng.choice(num_lhs * num_rel * num_rhs, num_edges, replace=False)
    rest, rhs = np.divmod(codes, num_rhs)
    lhs, rel = np.divmod(rest, num_rel)
    return np.stack([lhs, rel, rhs], axis=1).astype(np.int64)


def assert_checksums(checkpoint_path: str) -> None:
    """The manifest of the committed version has the right line for each of its files."""
    version = pbg.read_version(checkpoint_path)
    found = storage.read_checksums(storage.join(checkpoint_path, f"checksums.v{version}.xxh128"))
    names = [storage.name(entry.uri) for entry in storage.list_dir(checkpoint_path) if not entry.is_dir]
    assert sorted(found) == sorted(n for n in names if n == "config.json" or n.endswith(f".v{version}.h5"))
    for name, checksum in found.items():
        content = storage.read_bytes(storage.join(checkpoint_path, name))
        assert xxhash.xxh3_128_hexdigest(content) == checksum, name


def contents(folder) -> dict[str, bytes]:
    """All files under a folder, hidden ones included."""
    path = Path(storage.local_path(str(folder)))
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}
