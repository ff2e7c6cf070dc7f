"""Checkpoints of other formats: training from them, and the trainer's output in GraphStorm's layouts."""

import json
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
import torch

from graphmill import storage
from graphmill.checkpoints import open_checkpoint, pbg
from graphmill.checkpoints.legacy import inputs
from graphmill.checkpoints.legacy.checkpoint import legacy_config
from graphmill.config import Config, from_mapping
from graphmill.config.partitions import all_buckets
from graphmill.convert import convert, legacy
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.torch_files.write import save
from graphmill.model.parameters import global_key
from tests.graphmill.checkpoints.samples import WRITERS, MemoryCheckpoint
from tests.train.graphs import changed, make_config, node_graph, random_edges, relation, write_graph
from tests.train.vectors import write_index
from train import job
from train.run import graphstorm_output

NUM_PARTITIONS = 2


@pytest.fixture
def graph(tmp_path: Path, rng: np.random.Generator) -> Config:
    """v1 input in two partitions, and an operator that legacy files hold turned round."""
    settings = {"relations": [relation("affine")], "num_epochs": 1}
    return node_graph(tmp_path / "v1", rng, 40, 300, num_partitions=NUM_PARTITIONS, **settings)


def _legacy_twin(config: Config, root: Path) -> dict[str, Any]:
    """The same input in the legacy layout, and a legacy configuration that names it."""
    entities, edges = str(root / "entities"), str(root / "edges")
    for partition, count in enumerate(entity_counts.list_counts(config.entity_path)["node"]):
        save(inputs.count_uri(entities, "node", partition + 1), count)
    for bucket in all_buckets(config):
        read = edge_buckets.read_bucket(config.edge_paths[0], bucket)
        inputs.write_bucket(edges, bucket, 1, len(read), [read])
    paths = {"entity_path": entities, "edge_paths": [edges], "checkpoint_path": str(root / "out")}
    return legacy_config(config.pbg() | paths)


def _rows(checkpoint_path: str, name: str = "node") -> np.ndarray:
    found = open_checkpoint(checkpoint_path)
    parts = range(found.num_partitions[name])
    return np.concatenate([found.read_embeddings(name, each) for each in parts])


def test_every_edge_path_has_a_folder_of_its_own() -> None:
    paths = ["x/a", "z/a-2", "y/a", "w/a", "b"]
    targets = legacy.edge_targets(paths, "t")
    assert targets[:2] == ["t/edges/a", "t/edges/a-2"]
    assert len(set(targets)) == len(paths)


@pytest.mark.slow
def test_legacy_input_trains_the_same_and_its_outdir_is_resumed(graph, tmp_path, near_client):
    job.run(graph, near_client)
    raw = _legacy_twin(graph, tmp_path / "legacy")
    assert {"entityPath", "edgePaths", "outdir", "numEpochs"} < raw.keys()
    twin = from_mapping(raw)
    job.run(twin, near_client)
    np.testing.assert_array_equal(_rows(twin.checkpoint_path), _rows(graph.checkpoint_path))
    # What is done is recognised: another run has nothing to do, and adopts nothing anew.
    marker = storage.status(twin.checkpoint_path + ".adopted/entities/_SUCCESS")
    job.run(twin, near_client)
    assert storage.status(twin.checkpoint_path + ".adopted/entities/_SUCCESS") == marker
    assert not storage.moved_aside(twin.checkpoint_path)
    # One epoch, written as PBG wrote it, and one more: as two epochs of v1.
    outdir = str(tmp_path / "outdir")
    convert(graph.checkpoint_path, outdir, "pbg-legacy")
    longer = graph.model_copy(update={"num_epochs": 2})
    job.run(longer.model_copy(update={"checkpoint_path": outdir}), near_client)
    job.run(longer, near_client)
    assert open_checkpoint(outdir).version == 2
    np.testing.assert_array_equal(_rows(outdir), _rows(graph.checkpoint_path))


def test_warm_start_from_any_format(graph: Config, tmp_path: Path, near_client: distributed.Client) -> None:
    job.run(graph, near_client)
    expected = _rows(graph.checkpoint_path)
    formats: tuple[Any, ...] = ("pbg-legacy", "recis", "graphstorm")
    for source_format in (None, *formats):
        init_path = graph.checkpoint_path
        if source_format:
            init_path = str(tmp_path / f"init-{source_format}")
            convert(graph.checkpoint_path, init_path, source_format)
        if source_format == "pbg-legacy":  # a loadPath: no version, no suffix
            storage.delete(storage.join(init_path, "CHECKPOINT_VERSION"))
            for entry in storage.list_dir(init_path):
                storage.move(entry.uri, entry.uri.removesuffix(".1"))
        checkpoint_path = str(tmp_path / f"to-{source_format}")
        still = {"init_path": init_path, "lr": 1e-30, "checkpoint_path": checkpoint_path}
        started = graph.model_copy(update=still)
        job.run(started, near_client)
        np.testing.assert_allclose(_rows(started.checkpoint_path), expected, rtol=1e-6, atol=1e-12)


def test_a_type_that_the_run_has_no_more_is_left_out(graph, tmp_path, near_client):
    """Formats without partitions take those of the run, which has none of the other type."""
    job.run(graph, near_client)
    found = open_checkpoint(graph.checkpoint_path)
    types = {
        "node": _rows(graph.checkpoint_path),
        "gone": np.zeros((7, found.dimensions["node"]), np.float32),
    }
    tables = {name: [(rows, None)] for name, rows in types.items()}
    for source_format in ("recis", "graphstorm"):
        init_path = str(tmp_path / source_format)
        WRITERS[source_format](MemoryCheckpoint(tables, None, None, None, 0), init_path)
        still = {
            "init_path": init_path,
            "lr": 1e-30,
            "checkpoint_path": str(tmp_path / f"to-{source_format}"),
        }
        job.run(graph.model_copy(update=still), near_client)
        assert open_checkpoint(still["checkpoint_path"]).num_partitions == {"node": NUM_PARTITIONS}
        np.testing.assert_allclose(_rows(still["checkpoint_path"]), types["node"], rtol=1e-6, atol=1e-12)
        with pytest.raises(FormatError, match=r"'gone' has no counts in .*, which has node"):
            WRITERS[source_format](
                MemoryCheckpoint({"gone": tables["gone"]}, None, None, None, 0), f"{init_path}-1"
            )
            legacy.import_init(f"{init_path}-1", str(tmp_path / "target"), graph.entity_path, "auto")


def test_an_init_path_without_partitions_is_imported_anew_for_other_ones(tmp_path: Path) -> None:
    """An earlier import would be cut into the partitions of its entities."""
    init_path, entity_path = str(tmp_path / "init"), str(tmp_path / "entities")
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    WRITERS["graphstorm"](MemoryCheckpoint({"user": [(rows, None)]}, None, None, None, 0), init_path)
    markers = []
    for counts in ([3, 2], [2, 3], [2, 3]):
        for partition, count in enumerate(counts):
            entity_counts.write_count(entity_path, "user", partition, count)
        imported = legacy.import_init(init_path, str(tmp_path / "target"), entity_path, "auto")
        np.testing.assert_array_equal(open_checkpoint(imported).read_embeddings("user", 0), rows[: counts[0]])
        markers.append(storage.status(f"{imported}/_SUCCESS"))
    assert markers[0] != markers[1] == markers[2]


COUNTS = {"user": 23, "item": 9}


@pytest.fixture
def config(tmp_path, rng):
    config = make_config(
        tmp_path / "run",
        num_epochs=1,
        entities={"user": {"num_partitions": 3}, "item": {"num_partitions": 1}},
        relations=[
            relation("translation", name="likes_it", lhs="user", rhs="item"),
            relation(name="knows", lhs="user", rhs="user"),
        ],
    )
    write_graph(config, COUNTS, random_edges(config, COUNTS, rng, 120))
    write_index(config, {name: [f"{name}:{n}" for n in range(count)] for name, count in COUNTS.items()})
    return config


def load(path):
    return torch.load(path, weights_only=True)


def global_rows(config, entity_type):
    """Read the vector of each node, by integer id, [N, D]."""
    parameters = pbg.read_parameters(config.checkpoint_path, pbg.read_version(config.checkpoint_path))
    return _rows(config.checkpoint_path, entity_type) + parameters[global_key(entity_type)]


def test_embeddings_and_model_after_training(config, near_client, tmp_path):
    paths = {"save_embed_path": str(tmp_path / "emb"), "save_model_path": str(tmp_path / "model")}
    saving = changed(config, train=paths)
    job.run(saving, near_client)
    dimensions = {"user": 8, "item": 8}
    expected = {"format": "pytorch", "emb_name": [*dimensions], "world_size": 3, "emb_dim": dimensions}
    assert json.loads((tmp_path / "emb/emb_info.json").read_text()) == expected
    for name, count in COUNTS.items():
        embed = torch.cat([load(tmp_path / f"emb/{name}/embed-{rank:05d}.pt") for rank in range(3)])
        nids = torch.cat([load(tmp_path / f"emb/{name}/embed_nids-{rank:05d}.pt") for rank in range(3)])
        assert nids.tolist() == list(range(count))
        np.testing.assert_array_equal(embed.numpy(), global_rows(config, name))
    folder = tmp_path / "model/epoch-0"
    version = pbg.read_version(config.checkpoint_path)
    assert load(folder / "model.bin") == {"node_embed": {}}  # two formulas: no decoder has both
    assert load(folder / "optimizers.bin") == {}
    shares = [load(folder / f"user/sparse_emb_{rank:05d}.pt") for rank in range(3)]
    assert [len(each) for each in shares] == [8, 8, 7]
    np.testing.assert_array_equal(torch.cat(shares).numpy(), global_rows(config, "user"))
    # Asked for later, or elsewhere, it is written without training anew; files of more ranks are gone.
    (tmp_path / "emb/user/embed-00009.pt").touch()
    assert job.fingerprint(saving) != job.fingerprint(config)
    assert job.run(saving, near_client)["first_version"] == version
    assert not (tmp_path / "emb/user/embed-00009.pt").exists()


@pytest.mark.parametrize(("count", "num_partitions"), [(7, 3), (2, 3), (0, 2)])
def test_shares_of_a_saved_model(tmp_path, rng, count, num_partitions):
    config = make_config(tmp_path, num_partitions)
    rows = rng.standard_normal((count, 8), np.float32)
    write_checkpoint(config, np.array_split(rows, num_partitions))
    graphstorm_output.save(config, None, str(tmp_path / "model"))
    folder = tmp_path / "model/epoch-0/node"
    found = [load(folder / f"sparse_emb_{rank:05d}.pt").numpy() for rank in range(num_partitions)]
    assert len(list(folder.iterdir())) == num_partitions
    share = -(-count // num_partitions)
    assert [len(each) for each in found[:-1]] == [
        min(share, max(count - share * r, 0)) for r in range(num_partitions - 1)
    ]
    np.testing.assert_array_equal(np.concatenate(found), rows)


def write_checkpoint(config, parts, parameters=None):
    """Commit version 1 with the rows of each partition."""
    at = pbg.Iteration(1, 0, 1, 0, "edges", 1, 0)
    for part, rows in enumerate(parts):
        pbg.write_embeddings(config.checkpoint_path, "node", part, 1, rows, None, {}, at)
    pbg.write_model(config.checkpoint_path, 1, parameters or {}, None, {}, at)
    pbg.commit(config.checkpoint_path, 1, preserve_epoch=None)


@pytest.mark.parametrize("layout", ["embed", "model"])
def test_numbers_that_are_not_finite_are_refused(tmp_path, layout):
    paths = (str(tmp_path / "emb"), None) if layout == "embed" else (None, str(tmp_path / "model"))
    config = make_config(tmp_path)
    rows = np.ones((4, 8), np.float32)
    write_checkpoint(config, [rows], {"global_embs.emb_node": torch.full((8,), torch.inf)})
    with pytest.raises(FormatError, match="expected finite numbers, found inf"):
        graphstorm_output.save(config, *paths)
    rows[2, 3] = np.nan
    write_checkpoint(config, [rows])
    with pytest.raises(FormatError, match="row 2: expected finite numbers, found nan"):
        graphstorm_output.save(config, *paths)
    assert not list(tmp_path.glob("emb/emb_info.json")) + list(tmp_path.glob("model/*"))
