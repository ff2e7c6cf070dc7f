"""Training from what PBG wrote before version 1, and from checkpoints of other formats."""

from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from graphmill import storage
from graphmill.checkpoints import open_checkpoint
from graphmill.checkpoints.legacy import inputs, names
from graphmill.config import Config, from_mapping
from graphmill.convert import convert, legacy
from graphmill.formats import edge_buckets, entity_counts
from graphmill.vocab import Bucket
from tests.train.graphs import make_config, write_graph
from train import job

NUM_PARTITIONS = 2


@pytest.fixture
def graph(tmp_path: Path, rng: np.random.Generator) -> Config:
    """v1 input in two partitions, and an operator that legacy files hold turned round."""
    config = make_config(
        tmp_path / "v1",
        entities={"node": {"num_partitions": NUM_PARTITIONS}},
        relations=[{"name": "r", "lhs": "node", "rhs": "node", "operator": "affine"}],
        num_epochs=1,
    )
    triples = np.stack([rng.integers(0, 40, 300), np.zeros(300, int), rng.integers(0, 40, 300)], 1)
    write_graph(config, {"node": 40}, triples)
    return config


def _legacy_twin(config: Config, root: Path) -> dict[str, Any]:
    """The same input in the legacy layout, and a legacy configuration that names it."""
    entities, edges = str(root / "entities"), str(root / "edges")
    for partition, count in enumerate(entity_counts.list_counts(config.entity_path)["node"]):
        inputs.write_count(entities, "node", partition + 1, count)
    for lhs in range(NUM_PARTITIONS):
        for rhs in range(NUM_PARTITIONS):
            read = edge_buckets.read_bucket(config.edge_paths[0], Bucket(lhs, rhs))
            columns = (read.lhs, read.rel, read.rhs)
            inputs.write_bucket(edges, Bucket(lhs, rhs), 1, len(read), [columns])
    paths = {"entity_path": entities, "edge_paths": [edges], "checkpoint_path": str(root / "out")}
    return names.legacy_config(config.pbg() | paths)


def _rows(checkpoint_path: str) -> np.ndarray:
    found = open_checkpoint(checkpoint_path)
    return np.concatenate([found.read_embeddings("node", each) for each in range(NUM_PARTITIONS)])


def test_every_edge_path_has_a_folder_of_its_own() -> None:
    paths = ["x/a", "z/a-2", "y/a", "w/a", "b"]
    targets = legacy.edge_targets(paths, "t")
    assert targets[:2] == ["t/edges/a", "t/edges/a-2"]
    assert len(set(targets)) == len(paths)


@pytest.mark.slow
def test_legacy_input_trains_the_same(graph: Config, tmp_path: Path, client: distributed.Client) -> None:
    job.run(graph, client)
    raw = _legacy_twin(graph, tmp_path / "legacy")
    assert {"entityPath", "edgePaths", "outdir", "numEpochs"} < raw.keys()
    twin = from_mapping(raw)
    job.run(twin, client)
    np.testing.assert_array_equal(_rows(twin.checkpoint_path), _rows(graph.checkpoint_path))
    # What is done is recognised: another run has nothing to do, and adopts nothing anew.
    marker = storage.status(twin.checkpoint_path + ".adopted/entities/_SUCCESS")
    job.run(twin, client)
    assert storage.status(twin.checkpoint_path + ".adopted/entities/_SUCCESS") == marker
    assert not storage.moved_aside(twin.checkpoint_path)


@pytest.mark.slow
def test_a_legacy_outdir_is_resumed(graph: Config, tmp_path: Path, client: distributed.Client) -> None:
    """One epoch, written as PBG wrote it, and one more: as two epochs of v1."""
    job.run(graph, client)
    outdir = str(tmp_path / "outdir")
    convert(graph.checkpoint_path, outdir, "pbg-legacy")
    longer = graph.model_copy(update={"num_epochs": 2})
    job.run(longer.model_copy(update={"checkpoint_path": outdir}), client)
    job.run(longer, client)
    assert open_checkpoint(outdir).version == 2
    np.testing.assert_array_equal(_rows(outdir), _rows(graph.checkpoint_path))


@pytest.mark.parametrize("source_format", ["pbg-legacy", "recis", "graphstorm"])
def test_warm_start_from_any_format(
    graph: Config, tmp_path: Path, client: distributed.Client, source_format: Any
) -> None:
    job.run(graph, client)
    init_path = str(tmp_path / "init")
    convert(graph.checkpoint_path, init_path, source_format)
    if source_format == "pbg-legacy":  # a loadPath: no version, no suffix
        storage.delete(storage.join(init_path, "CHECKPOINT_VERSION"))
        for entry in storage.list_dir(init_path):
            storage.move(entry.uri, entry.uri.removesuffix(".1"))
    found = {}
    for name, path in (("v1", graph.checkpoint_path), ("other", init_path)):
        started = graph.model_copy(
            update={"init_path": path, "num_epochs": 0, "checkpoint_path": str(tmp_path / name)}
        )
        job.run(started.model_copy(update={"num_epochs": 1, "lr": 1e-30}), client)
        found[name] = _rows(started.checkpoint_path)
    np.testing.assert_allclose(found["other"], found["v1"], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found["v1"], _rows(graph.checkpoint_path), rtol=1e-6, atol=1e-12)
