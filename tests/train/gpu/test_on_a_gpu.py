"""Tests that need a GPU: captured steps, copies beside steps, Dask's workers on GPUs."""

import numpy as np
import pytest
import torch

from graphmill.cluster.connecting import connect
from graphmill.config.sections.cluster import ClusterConfig
from tests.train.graphs import embeddings, make_config, random_triples, write_graph
from train import job
from train.gpu import fused_pass
from train.run import bucket

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


def graph(root, **settings):
    """640 edges, in batches of ten."""
    config = make_config(
        root,
        entities={"node": {"num_partitions": 4}},
        global_emb=False,
        dimension=32,
        batch_size=10,
        num_gpus=1,
        **settings,
    )
    write_graph(config, {"node": 100}, random_triples(np.random.default_rng(1), 100, 1, 100, 640))
    return config


@pytest.mark.parametrize("resident", ["always", "never"])
def test_a_captured_step_is_the_step(tmp_path, monkeypatch, resident):
    tables = []
    for name in ("captured", "direct"):
        if name == "direct":
            monkeypatch.setattr(fused_pass, "capture_on", lambda device: None)
        config = graph(tmp_path / name, train={"engine": "fused", "resident": resident})
        job.train(config)
        tables.append(embeddings(config, "node", 100))
    assert torch.equal(*tables)


@pytest.mark.parametrize("candidates", [None, 20])
def test_captured_queries_are_the_steps(tmp_path, monkeypatch, candidates):
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "complex_diagonal", "all_negs": True}
    tables = []
    for is_captured in (True, False):
        if not is_captured:
            monkeypatch.setattr(bucket, "capture_on", lambda device: None)
        own = {"optimizer": "adagrad", "lr_schedule": "linear", "relation_prediction": 0.5}
        own["candidates"] = candidates
        more = {"relations": [relation], "dynamic_relations": True, "regularization_coef": 0.05}
        config = graph(tmp_path / str(is_captured), num_epochs=3, train=own, **more)
        job.train(config)
        tables.append(embeddings(config, "node", 100))
    torch.testing.assert_close(*tables, rtol=1e-3, atol=1e-5)


def test_copies_beside_the_steps_change_no_byte(tmp_path):
    tables = []
    for prefetch in (False, True):
        own = {"engine": "fused", "resident": "never", "device_partitions": 2, "prefetch": prefetch}
        config = graph(tmp_path / str(prefetch), train=own)
        job.train(config)
        tables.append(embeddings(config, "node", 100))
    assert torch.equal(*tables)


def test_training_on_a_worker_of_dask_cuda(tmp_path):
    pytest.importorskip("dask_cuda", reason="pip install 'graphmill[cuda]'")
    config = graph(tmp_path)
    with connect("cuda", ClusterConfig(scratch_path=str(tmp_path / "scratch"))) as client:
        assert job.run(config, client)["device"] == "cuda:0"
    assert embeddings(config, "node", 100).isfinite().all()
