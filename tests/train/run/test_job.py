"""The stage's door, a Dask task; and kill -9 at any moment: the next run ends with the same bytes."""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from graphmill.checkpoints import pbg
from graphmill.config import Effect, PbgConfig
from graphmill.errors import ConfigError
from tests.logged import messages_of
from tests.train.graphs import (
    changed,
    embeddings,
    make_config,
    node_graph,
    random_triples,
    relation,
    with_train,
    write_graph,
)
from tests.train.kill_driver import kill_anywhere
from tests.train.run.test_trainer import COUNTS, RELATIONS, mixed, write_mixed
from tests.train.vectors import raw_ids, write_index, write_vectors
from tests.workers import workers
from train import job
from train.run.run_metrics import warn_of_growing_loss


@pytest.fixture
def config(tmp_path, rng):
    return node_graph(tmp_path, rng, num_epochs=1)


def test_run_trains_in_a_dask_task_and_more_epochs_resume_it(config, client, tmp_path, caplog):
    caplog.set_level("INFO", "graphmill")
    figures = job.run(changed(config, num_machines=2, num_partition_servers=1), client)
    assert figures["num_epochs"] == figures["version"] == 1
    assert figures["num_parameters"] == 20 * 8 + 8 + 8  # rows, one diagonal, one global embedding
    assert figures["edges_per_s"] > 0
    assert json.dumps(figures)
    assert pbg.read_version(config.checkpoint_path) == 1
    plan = figures["plan"]
    assert (plan["device"], plan["placement"], plan["workers"]) == ("cpu", "files", 1)
    step = plan["steps"]["edges"]
    assert f"training on cpu with the {step} step for edges, 1 thread, all rows in memory" in caplog.text
    told = [line for line in caplog.messages if "has no effect" in line]
    assert len(told) == 2
    assert "num_machines: 2 has no effect: train.num_workers" in told[0]

    figures = job.run(changed(config, num_epochs=3, workers=2, verbose=1), client)
    assert (figures["first_version"], figures["version"]) == (1, 3)
    assert not list(tmp_path.glob("checkpoint.stale*"))
    assert job.run(changed(config, num_epochs=3), client)["num_edges"] == 0


@pytest.mark.slow
def test_worker_that_dies_is_replaced_and_resumes(tmp_path, rng):
    """SIGKILL to the worker in mid-training: Dask runs the task again, which ends with the same bytes."""
    triples = random_triples(rng, 200, 1, 200, 4000)
    undisturbed, disturbed = (make_config(tmp_path / name, num_epochs=30) for name in ("a", "b"))
    for config in (undisturbed, disturbed):
        write_graph(config, {"node": 200}, triples)
    job.claim_checkpoint(undisturbed)
    job.train(undisturbed)
    with workers(1) as client, ThreadPoolExecutor(1) as pool:
        (pid,) = client.run(os.getpid).values()
        figures = pool.submit(job.run, disturbed, client)
        while pbg.read_version(disturbed.checkpoint_path) < 3:
            assert not figures.done()
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert figures.result(timeout=600)["first_version"] >= 3
    ended = [embeddings(config, "node", 200) for config in (undisturbed, disturbed)]
    assert torch.equal(*ended)


def test_fingerprint_holds_what_changes_the_result(config, rng):
    before = job.fingerprint(config)
    kept = {key for key, effect in PbgConfig.effects().items() if effect is not Effect.NEUTRAL}
    assert before["settings"].keys() == kept | {"seed"}
    neutral = {"workers": 7, "verbose": 3, "num_gpus": 1, "background_io": True}
    for settings in (neutral, {"train": {"prefetch": False}}, {"train": {"on_change": "refuse"}}):
        assert job.fingerprint(changed(config, **settings)) == before
    for settings in ({"num_epochs": 9}, {"seed": 1}, {"train": {"relation_init": "identity"}}):
        assert job.fingerprint(changed(config, **settings)) != before
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 61))
    assert job.fingerprint(config) != before


def asked(operator, all_negs=True):
    return [relation(operator, all_negs=all_negs)]


NO_DOT = {"comparator": "cos", "bias": True}
POPULAR = {"relations": asked("none"), "train": {"popularity": True}}
SAMPLED = {"relations": asked("diagonal"), "train": {"candidates": 100}}
JOINED = {"train": {"ensemble": 3}}
PREDICTING = {"relations": asked("diagonal"), "dynamic_relations": True, "global_emb": False,
              "train": {"relation_prediction": 0.7}}  # fmt: skip


@pytest.mark.parametrize(
    ("usual", "changes", "message"),
    [
        (POPULAR, {"relations": asked("none", all_negs=False)}, "needs all_negs for all relations; or"),
        (POPULAR, {"loss_fn": "logistic"}, r"popularity needs loss_fn softmax \(found 'logistic'\)"),
        (POPULAR, NO_DOT, r"needs comparator dot \(found 'cos'\), bias: false; or set it to false"),
        (POPULAR, {"relations": asked("translation")}, r"operator none \(found translation\)"),
        (PREDICTING, {"dynamic_relations": False}, "relation_prediction needs dynamic_relations; or"),
        (PREDICTING, NO_DOT, "needs comparator dot .*, bias: false; or set it to 0"),
        (PREDICTING, {"relations": asked("translation")}, r"operator diagonal or .* \(found 'translation'\)"),
        (SAMPLED, {"relations": asked("none", all_negs=False)}, "needs a relation with all_negs; or"),
        (SAMPLED, NO_DOT | {"comparator": "l2"}, r"dot or cos \(found 'l2'\), bias: false; or leave it out"),
        (JOINED, NO_DOT, "3 adds up .* needs comparator dot .*, bias: false; or set it to 1"),
    ],
)
def test_settings_that_lack_others_are_refused(tmp_path, usual, changes, message):
    job.check(make_config(tmp_path, **usual))
    with pytest.raises(ConfigError, match=rf"train\..*{message}"):
        job.check(make_config(tmp_path, **usual | changes))


def test_edges_without_weight_are_told_of_at_the_end_of_training(tmp_path, rng, near_client, caplog):
    config = make_config(tmp_path, num_epochs=2)
    for weights, is_told in ((np.ones(30), False), (np.zeros(30), True)):
        write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 30), weight=weights)
        job.run(config, near_client)
        assert ("do all edges weigh 0?" in caplog.text) == is_told


def test_a_rate_that_is_too_large_is_told_at_the_end_of_training(tmp_path, rng, near_client, caplog):
    config = node_graph(tmp_path, rng, num_epochs=6, lr=50.0, max_norm=100.0)
    for losses in ([5.0, 4.0, 4.1], []):
        warn_of_growing_loss(config, [{"epoch": 1, "loss": loss} for loss in losses])
    assert not messages_of(caplog)
    job.run(config, near_client)
    assert "the loss has grown from " in caplog.text
    assert "set lr lower than 50" in caplog.text


ASKED = [RELATIONS[0] | {"all_negs": True}, *RELATIONS[1:]]  # queries, and edges
IN_KERNELS = [each | {"operator": "complex_diagonal"} for each in RELATIONS]  # else not on the device


def with_vectors(config, path, rng):
    """The configuration with vectors, longer than the rows, that half of the users start from."""
    ids = list(raw_ids(COUNTS["user"], config.entities["user"].num_partitions))
    write_index(config, {"user": ids})
    write_vectors(path, ids[::2], rng.normal(size=(len(ids[::2]), 2 * config.dimension)))
    return with_train(config, init_embeddings={"user": str(path)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "train", "every"),
    [
        ("files", {}, 11),
        ("device", {"resident": "always"}, 13),
        ("buffer", {"device_partitions": 3}, 17),
        ("vectors", {"ensemble": 2}, 31),
    ],
)
def test_kill_anywhere_and_run_again(tmp_path, rng, placement, train, every):
    in_files = placement in ("files", "vectors")
    settings = {"eval_fraction": 0.1, "checkpoint_preservation_interval": 1, "batch_size": 20}
    settings |= {"relations": ASKED} if in_files else {"relations": IN_KERNELS, "global_emb": False}
    config = mixed(tmp_path, num_batch_negs=10, bucket_order="random", train=train, **settings)
    write_mixed(config, rng)
    if placement == "vectors":
        config = with_vectors(config, tmp_path / "vectors.parquet", rng)
    order = kill_anywhere(config, every, 0 if in_files else 0.005)  # files are written beside such steps
    # two epochs of nine buckets, each with several steps and renames: a sample of all the moments
    assert len(order) > 80
    # two versions of each model: where all rows stay in memory, steps come between the files of the first
    runs = re.findall("c+", order.replace(".", ""))
    assert (len(runs) > 2 * config.train.ensemble) == (not in_files)
