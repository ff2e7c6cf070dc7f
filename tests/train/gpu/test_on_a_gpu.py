"""Tests that need a GPU: captured steps, copies beside steps, Dask's workers on GPUs."""

import numpy as np
import pytest
import torch

from graphmill.cluster.connecting import connect
from graphmill.config.sections.cluster import ClusterConfig
from tests.train.graphs import embeddings, node_graph, relation
from train import job
from train.gpu import fused_pass
from train.run import bucket

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


def graph(root, **settings):
    """640 edges, in batches of ten."""
    usual = {"num_partitions": 4, "global_emb": False, "dimension": 32, "batch_size": 10, "num_gpus": 1}
    return node_graph(root, np.random.default_rng(1), 100, 640, **usual, **settings)


def trained(root, **settings):
    config = graph(root, **settings)
    job.train(config)
    return embeddings(config, "node", 100)


@pytest.mark.parametrize("resident", ["always", "never"])
def test_a_captured_step_is_the_step(tmp_path, monkeypatch, resident):
    own = {"engine": "fused", "resident": resident}
    captured = trained(tmp_path / "captured", train=own)
    monkeypatch.setattr(fused_pass, "capture_on", lambda device: None)
    assert torch.equal(captured, trained(tmp_path / "direct", train=own))


@pytest.mark.parametrize("candidates", [None, 20])
def test_captured_queries_are_the_steps(tmp_path, monkeypatch, candidates):
    own = {"optimizer": "adagrad", "lr_schedule": "linear", "relation_prediction": 0.5}
    settings = {"relations": [relation("complex_diagonal", all_negs=True)], "dynamic_relations": True}
    settings |= {"num_epochs": 3, "regularization_coef": 0.05, "train": own | {"candidates": candidates}}
    captured = trained(tmp_path / "captured", **settings)
    monkeypatch.setattr(bucket, "capture_on", lambda device: None)
    direct = trained(tmp_path / "direct", **settings)
    torch.testing.assert_close(captured, direct, rtol=1e-3, atol=1e-5)


def test_copies_beside_the_steps_change_no_byte(tmp_path):
    own = {"engine": "fused", "resident": "never", "device_partitions": 2}
    beside, before = (
        trained(tmp_path / str(prefetch), train=own | {"prefetch": prefetch}) for prefetch in (True, False)
    )
    assert torch.equal(beside, before)


def test_training_on_a_worker_of_dask_cuda(tmp_path):
    pytest.importorskip("dask_cuda", reason="pip install 'graphmill[cuda]'")
    config = graph(tmp_path)
    with connect("cuda", ClusterConfig(scratch_path=str(tmp_path / "scratch"))) as client:
        assert job.run(config, client)["device"] == "cuda:0"
    assert embeddings(config, "node", 100).isfinite().all()
