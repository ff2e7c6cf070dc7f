"""Small graphs as the trainer's input, and how well a checkpoint ranks them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import xxhash

from graphmill import storage
from graphmill.ask.evaluate.evaluate import evaluate
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.config.partitions import all_buckets, all_keys
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.vocab import Side
from train.edges.visits import Blocks
from train.run.reading import BlockReader, BucketReader
from train.tables.run_context import RunContext

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


def relation(operator="diagonal", **more) -> dict[str, Any]:
    """A relation of the type `node` with itself."""
    return {"name": "r", "lhs": "node", "rhs": "node", "operator": operator} | more


def make_config(root, num_partitions=1, **settings) -> Config:
    """A configuration with one type and one static relation, unless `settings` say otherwise."""
    return from_mapping(
        {
            "output": str(root),
            "entities": {"node": {"num_partitions": num_partitions}},
            "relations": [relation()],
        }
        | USUAL
        | settings
        # Otherwise no small graph has partitions, and no small run a second version.
        | {"train": {"resident": "never", "commit_interval_s": 0, **settings.get("train", {})}}
    )


def node_graph(root, rng, num=20, num_edges=60, num_relations=1, **settings) -> Config:
    """A configuration of one type, whose graph of random edges is written."""
    config = make_config(root, **settings)
    write_graph(config, {"node": num}, random_triples(rng, num, num_relations, num, num_edges))
    return config


def changed(config: Config, **settings) -> Config:
    """The configuration with other settings."""
    return from_mapping(config.model_dump() | settings)


def with_train(config: Config, **settings) -> Config:
    """The configuration with other settings of its section `train`."""
    return changed(config, train=config.model_dump()["train"] | settings)


def write_graph(config: Config, counts, triples, weight=None, path=None) -> None:
    """Counts and bucket files of triples [E, 3] of global ids: id i is row i // P of partition i % P."""
    for name, count in counts.items():
        num = config.entities[name].num_partitions
        for part in range(num):
            entity_counts.write_count(config.entity_path, name, part, len(range(part, count, num)))
    if config.dynamic_relations:
        entity_counts.write_relation_count(config.entity_path, int(triples[:, 1].max()) + 1)
    write_edges(config, triples, path or config.edge_paths[0], weight)


def write_edges(config: Config, triples, path, weight=None) -> None:
    """Bucket files of triples, as `write_graph` places them; a featurized entity has one feature, its row."""
    entries = [config.relations[0 if config.dynamic_relations else r] for r in triples[:, 1]]
    part_and_row, is_listed = {}, {}
    for side, column in ((Side.LHS, 0), (Side.RHS, 2)):
        entities = [config.entities[each.entity_type(side)] for each in entries]
        row, part = np.divmod(triples[:, column], [each.num_partitions for each in entities])
        part_and_row[side], is_listed[side] = (part, row), np.array([each.featurized for each in entities])
    for bucket in all_buckets(config):
        mine = (part_and_row[Side.LHS][0] == bucket.lhs) & (part_and_row[Side.RHS][0] == bucket.rhs)
        ends, features = [], []
        for side in Side:
            row, listed = part_and_row[side][1][mine], is_listed[side][mine]
            offsets = np.concatenate([[0], np.cumsum(listed)]).astype(np.int64)
            ends.append(np.where(listed, -1, row))
            features.append(Features(offsets, row[listed]) if is_listed[side].any() else None)
        own = None if weight is None else weight[mine]
        edge_buckets.write_bucket(path, bucket, Edges(ends[0], triples[mine, 1], ends[1], own, *features))


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

    def is_same(one, other):
        return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other

    both = first.keys() & second.keys()
    return [*(first.keys() ^ second.keys()), *(n for n in both if not is_same(first[n], second[n]))]


def mean_reciprocal_rank(config: Config, known, queries) -> float:
    """Filtered MRR over both sides; ties count half."""
    for split, triples in (("known", known), ("queries", queries)):
        write_edges(config, triples, config.split_path(split))
    section = EvaluateConfig(split="queries", filter_paths=[config.split_path("known")])
    return evaluate(config.with_section(section))["metrics"]["mrr"]


def random_edges(config: Config, counts, rng, num_edges):
    """Edges of all relations between entities of their types, in any order."""
    rel = rng.integers(len(config.relations), size=num_edges)
    most = np.array([[counts[each.lhs], counts[each.rhs]] for each in config.relations])[rel]
    return np.stack([rng.integers(most[:, 0]), rel, rng.integers(most[:, 1])], axis=1)


def random_triples(rng, num_lhs, num_rel, num_rhs, num_edges):
    """Edges without order or repetition."""
    codes = rng.choice(num_lhs * num_rel * num_rhs, num_edges, replace=False)
    rest, rhs = np.divmod(codes, num_rhs)
    lhs, rel = np.divmod(rest, num_rel)
    return np.stack([lhs, rel, rhs], axis=1).astype(np.int64)


def read_visits(config: Config, num_blocks: int | None = None):
    """Each visit of a run, to buckets or to pairs of so many blocks, with the edges that it reads."""
    context = RunContext(config)
    blocks = None if num_blocks is None else Blocks(config, context.schedule, num_blocks)
    reader = BucketReader(context) if blocks is None else BlockReader(context, blocks)
    for iteration in map(context.schedule.iteration, range(context.schedule.num_iterations)):
        for visit in all_buckets(config) if blocks is None else blocks.order(iteration):
            yield iteration, visit, reader.read(visit, iteration)


def assert_checksums(checkpoint_path: str) -> None:
    """The manifest of the committed version has the right line for each of its files."""
    version = pbg.read_version(checkpoint_path)
    found = storage.read_checksums(storage.join(checkpoint_path, f"checksums.v{version}.xxh128"))
    names = [storage.name(entry.uri) for entry in storage.list_dir(checkpoint_path) if not entry.is_dir]
    assert sorted(found) == sorted(n for n in names if n == "config.json" or n.endswith(f".v{version}.h5"))
    for name, checksum in found.items():
        content = storage.read_bytes(storage.join(checkpoint_path, name))
        assert xxhash.xxh3_128_hexdigest(content) == checksum, name


def write_bare_checkpoint(path: Path, version: int, config) -> dict[tuple[str, int], Any]:
    """A checkpoint without optimizer, model or configuration, as PBG takes it.

    Returns its rows by type and partition: random ones, in float64.
    """
    rng = np.random.default_rng(1)
    keys = [(name, part) for name, each in config.entities.items() for part in range(each.num_partitions)]
    counts = [entity_counts.read_count(str(config.entity_path), *key) for key in keys]
    rows = {key: rng.normal(size=(num, config.dimension)) for key, num in zip(keys, counts, strict=True)}
    path.mkdir()
    (path / "checkpoint_version.txt").write_text(str(version))
    stems = {"model": None} | {f"embeddings_{name}_{part}": own for (name, part), own in rows.items()}
    for stem, own in stems.items():
        with h5py.File(path / f"{stem}.v{version}.h5", "x") as hdf5:
            hdf5.attrs["format_version"] = 1
            if own is not None:
                hdf5["embeddings"] = own
    return rows
