"""train, do_eval and the schema do as PyTorch-BigGraph's functional tests demand, over a similar graph."""

import json
import multiprocessing
from pathlib import Path

import h5py
import numpy as np
import pytest

from graphmill.errors import ConfigError, NotFoundError
from tests import DATA
from train.pbg_api import (
    BucketOrder,
    ConfigSchema,
    EntitySchema,
    Operator,
    RelationSchema,
    do_eval,
    evolve,
    run_partition_server,
    train,
)

ITERATION = {"num_epochs", "epoch_idx", "num_edge_paths", "edge_path_idx", "edge_path", "num_edge_chunks",
             "edge_chunk_idx"}  # fmt: skip
NUM_ENTITIES = 60


class Graph:
    """Entities with random vectors, an edge where two of them point the same way, as raw HDF5."""

    def __init__(self, folder, config, shares, seed=7):
        rng = np.random.default_rng(seed)
        self.entity_path = folder / "entities"
        self.entity_path.mkdir()
        self.edge_paths = [str(folder / f"edges{number}") for number in range(len(shares))]
        vectors = {}
        for name, entity in config.entities.items():
            cuts = np.sort(rng.integers(NUM_ENTITIES, size=entity.num_partitions - 1))
            vectors[name] = np.split(rng.normal(size=(NUM_ENTITIES, 10)), cuts)
            for part, rows in enumerate(vectors[name]):
                (self.entity_path / f"entity_count_{name}_{part}.txt").write_text(str(len(rows)))
        sides = [
            max(len(vectors[getattr(relation, side)]) for relation in config.relations)
            for side in ("lhs", "rhs")
        ]
        for path in self.edge_paths:
            (folder / path).mkdir()
        for lhs in range(sides[0]):
            for rhs in range(sides[1]):
                self._write_bucket(rng, config, vectors, (lhs, rhs), shares)

    def _write_bucket(self, rng, config, vectors, bucket, shares):
        columns = []
        for number, relation in enumerate(config.relations):
            ends = [vectors[getattr(relation, side)] for side in ("lhs", "rhs")]
            own = [rows[0 if len(rows) == 1 else part] for rows, part in zip(ends, bucket, strict=True)]
            lhs, rhs = np.nonzero(own[0] @ own[1].T > 2)
            columns.append(np.stack([lhs, np.full(len(lhs), number), rhs]))
        edges = np.concatenate(columns, axis=1)
        edges = edges[:, rng.permutation(edges.shape[1])]
        start = 0
        for share, path in zip(shares, self.edge_paths, strict=True):
            stop = start + int(share * edges.shape[1])
            with h5py.File(f"{path}/edges_{bucket[0]}_{bucket[1]}.h5", "x") as hdf5:
                hdf5.attrs["format_version"] = 1
                part = edges[:, start:stop].copy()
                for row, side in ((0, "lhs"), (2, "rhs")):
                    types = [config.entities[getattr(each, side)] for each in config.relations]
                    listed = np.array([each.featurized for each in types])[part[1]]
                    if any(each.featurized for each in types):
                        hdf5[f"{side}d_data"] = part[row][listed]
                        hdf5[f"{side}d_offsets"] = np.concatenate([[0], np.cumsum(listed)]).astype(np.int64)
                        part[row][listed] = -1
                    hdf5[side] = part[row]
                hdf5["rel"] = part[1]
            start = stop


@pytest.fixture
def base(tmp_path):
    return ConfigSchema(
        dimension=10,
        relations=[RelationSchema(name="r", lhs="e", rhs="e")],
        entities={"e": EntitySchema(num_partitions=1)},
        entity_path=None,
        edge_paths=[],
        checkpoint_path=str(tmp_path / "checkpoint"),
        workers=1,
    )


def on(graph, config, *numbers, **more):
    paths = [graph.edge_paths[number] for number in numbers]
    return evolve(config, entity_path=str(graph.entity_path), edge_paths=paths, **more)


def check_checkpoint(config, version):
    checkpoint = Path(config.checkpoint_path)
    assert int((checkpoint / "checkpoint_version.txt").read_text()) == version
    assert json.loads((checkpoint / "config.json").read_text()) == config.to_dict()
    with h5py.File(checkpoint / f"model.v{version}.h5") as hdf5:
        check_attributes(hdf5, config)
        found = []
        assert isinstance(hdf5["model"], h5py.Group)
        hdf5["model"].visititems(lambda _, each: found.append(each))
        for dataset in (each for each in found if isinstance(each, h5py.Dataset)):
            assert "state_dict_key" in dataset.attrs
            assert np.isfinite(dataset[...]).all()
    for name, entity in config.entities.items():
        for part in range(entity.num_partitions):
            count = int((Path(config.entity_path) / f"entity_count_{name}_{part}.txt").read_text())
            with h5py.File(checkpoint / f"embeddings_{name}_{part}.v{version}.h5") as hdf5:
                check_attributes(hdf5, config)
                rows = hdf5["embeddings"]
                assert rows.dtype == np.float32
                assert rows.shape == (count, config.dimension)
                assert np.isfinite(rows[...]).all()
                assert (np.linalg.norm(rows[...], axis=1) > 0).all()


def check_attributes(hdf5, config):
    assert hdf5.attrs["format_version"] == 1
    assert json.loads(hdf5.attrs["config/json"]) == config.to_dict()
    named = {key.removeprefix("iteration/") for key in hdf5.attrs if key.startswith("iteration/")}
    assert named == ITERATION
    state = hdf5["optimizer/state_dict"]
    assert state.dtype == np.dtype("V1")
    assert state.ndim == 1


def write_initial(folder, config, counts_path, version):
    folder.mkdir()
    (folder / "checkpoint_version.txt").write_text(str(version))
    rng = np.random.default_rng(1)
    for name, entity in config.entities.items():
        for part in range(entity.num_partitions):
            count = int((counts_path / f"entity_count_{name}_{part}.txt").read_text())
            with h5py.File(folder / f"embeddings_{name}_{part}.v{version}.h5", "x") as hdf5:
                hdf5.attrs["format_version"] = 1
                hdf5["embeddings"] = rng.normal(size=(count, config.dimension))
    with h5py.File(folder / f"model.v{version}.h5", "x") as hdf5:
        hdf5.attrs["format_version"] = 1


def test_default(tmp_path, base):
    graph = Graph(tmp_path, base, [0.4, 0.2])
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    relation = evolve(base.relations[0], all_negs=True)
    found = do_eval(on(graph, base, 1, relations=[relation]))
    with h5py.File(f"{graph.edge_paths[1]}/edges_0_0.h5") as hdf5:
        assert found["count"] == len(hdf5["rel"]) > 100
    assert 0 < found["metrics"]["mrr"] < 1


def test_evaluation_improves_with_training(tmp_path, base):
    graph = Graph(tmp_path, base, [0.8, 0.2])
    relations = [RelationSchema(name="r", lhs="e", rhs="e", all_negs=True)]
    ranks = []
    for epochs in (1, 40):
        config = on(graph, base, 0, num_epochs=epochs, lr=0.1, batch_size=100, eval_fraction=0.0)
        train(config)
        ranks.append(do_eval(on(graph, base, 1, relations=relations))["metrics"]["pos_rank"])
    assert ranks[1] < 0.8 * ranks[0]


def test_resume_from_checkpoint(tmp_path, base):
    base = evolve(base, num_epochs=2, num_edge_chunks=2)
    graph = Graph(tmp_path, base, [0.4, 0.4])
    config = on(graph, base, 0, 1)
    write_initial(tmp_path / "checkpoint", config, graph.entity_path, 7)
    train(config, rank=0)
    check_checkpoint(config, 8)
    with h5py.File(f"{config.checkpoint_path}/model.v8.h5") as hdf5:
        assert (hdf5.attrs["iteration/epoch_idx"], hdf5.attrs["iteration/edge_chunk_idx"]) == (1, 1)


def test_with_initial_value(tmp_path, base):
    graph = Graph(tmp_path, base, [0.4])
    config = on(graph, base, 0, init_path=str(tmp_path / "init"), lr=1e-9)
    write_initial(tmp_path / "init", config, graph.entity_path, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    with (
        h5py.File(tmp_path / "init/embeddings_e_0.v0.h5") as given,
        h5py.File(tmp_path / "checkpoint/embeddings_e_0.v1.h5") as found,
    ):
        np.testing.assert_allclose(found["embeddings"][...], given["embeddings"][...], atol=1e-5)


def test_featurized(tmp_path, base):
    base = evolve(
        base,
        entities={
            "e1": EntitySchema(num_partitions=1, featurized=True),
            "e2": EntitySchema(num_partitions=1),
        },
        relations=[
            RelationSchema(name="r1", lhs="e1", rhs="e2"),
            RelationSchema(name="r2", lhs="e2", rhs="e1"),
        ],
    )
    graph = Graph(tmp_path, base, [0.4, 0.2])
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    assert do_eval(on(graph, base, 1))["count"] > 100


def test_partitioned(tmp_path, base):
    """Three partitions on one side, two on the other, one type without."""
    base = evolve(
        base,
        entities={f"e{number}": EntitySchema(num_partitions=number) for number in (1, 2, 3)},
        relations=[
            RelationSchema(name="r1", lhs="e1", rhs="e3"),
            RelationSchema(name="r2", lhs="e2", rhs="e3"),
            RelationSchema(name="r3", lhs="e2", rhs="e1"),
        ],
    )
    graph = Graph(tmp_path, base, [0.4, 0.2])
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    assert do_eval(on(graph, base, 1))["count"] > 100


@pytest.mark.slow
def test_distributed(tmp_path, base):
    """Two trainers and a partition server, as PBG starts them: one of them does it all."""
    base = evolve(
        base,
        entities={"e": EntitySchema(num_partitions=4)},
        relations=[RelationSchema(name="r", lhs="e", rhs="e", operator=Operator.LINEAR)],
        num_machines=2,
        num_partition_servers=1,
        distributed_init_method=f"file://{tmp_path}/sync",
    )
    graph = Graph(tmp_path, base, [0.4])
    config = on(graph, base, 0)
    fork = multiprocessing.get_context("spawn")
    server = fork.Process(target=run_partition_server, args=(config,), kwargs={"rank": 0})
    other = fork.Process(target=train, args=(config,), kwargs={"rank": 1})
    server.start()
    other.start()
    try:
        train(config, rank=0)
        other.join(600)
        assert other.exitcode == 0
        assert server.is_alive()
    finally:
        server.terminate()
        server.join()
    check_checkpoint(config, 1)


def test_dynamic_relations(tmp_path, base):
    relation = RelationSchema(name="r", lhs="el", rhs="er")
    base = evolve(
        base,
        relations=[relation],
        entities={name: EntitySchema(num_partitions=1) for name in ("el", "er")},
        dynamic_relations=True,
        global_emb=False,
    )
    graph = Graph(tmp_path, evolve(base, relations=[relation] * 10, dynamic_relations=False), [0.04, 0.02])
    (graph.entity_path / "dynamic_rel_count.txt").write_text("10")
    config = on(graph, base, 0)
    train(config, rank=0)
    check_checkpoint(config, 1)
    everyone = evolve(relation, all_negs=True)
    assert do_eval(on(graph, base, 1, relations=[everyone]))["count"] > 100


def test_the_schema_is_that_of_pbg():
    """A dict that PBG wrote passes through the schema unchanged."""
    written = json.loads((DATA / "pbg_v1_static/checkpoint/config.json").read_text())
    config = ConfigSchema.from_dict(
        written
        | {
            "entities": {name: EntitySchema(**entity) for name, entity in written["entities"].items()},
            "relations": [RelationSchema(**relation) for relation in written["relations"]],
            "bucket_order": BucketOrder(written["bucket_order"]),
        }
    )
    assert config.to_dict() == written
    assert list(config.to_dict()) == list(written)


def test_a_schema_of_another_release(tmp_path, base):
    """PBG's release lacks some keys of its later schema; what it gives is what is written."""

    class Released:
        checkpoint_path = base.checkpoint_path
        entities, dimension = base.entities, base.dimension

        def to_dict(self):
            lacking = {"regularizer", "regularization_coef", "half_precision", "num_gpus"}
            return {key: value for key, value in config.to_dict().items() if key not in lacking}

    graph = Graph(tmp_path, base, [0.4])
    config = on(graph, base, 0, num_epochs=2)
    released = Released()
    released.entity_path = config.entity_path
    train(released)
    check_checkpoint(released, 2)


def test_values_are_checked_when_they_are_used(base, tmp_path):
    with pytest.raises(ConfigError, match="entity_path"):
        train(base)
    graph = Graph(tmp_path, base, [0.4])
    with pytest.raises(ConfigError, match="comparator"):
        train(on(graph, base, 0, comparator="cosine"))
    with pytest.raises(NotFoundError, match="no checkpoint to evaluate"):
        do_eval(on(graph, base, 0))


def test_another_rate_goes_on_and_another_model_does_not(tmp_path, base):
    graph = Graph(tmp_path, base, [0.4])
    config = on(graph, base, 0, checkpoint_path=str(tmp_path / "checkpoint"))
    train(config)
    train(evolve(config, lr=config.lr / 2, num_epochs=config.num_epochs + 1))
    assert (tmp_path / "checkpoint" / "checkpoint_version.txt").read_text() == f"{config.num_epochs + 1}\n"
    with pytest.raises(ConfigError, match=r"train\.on_change: .* settings\.comparator"):
        train(evolve(config, comparator="dot"))
