"""Blocks of partitions: each edge once, each row in one place; tables that do not fit in memory."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from distributed import system

from graphmill.cluster import runtime
from graphmill.vocab import Side
from tests.train.graphs import (
    changed,
    differing,
    embeddings,
    make_config,
    random_edges,
    random_triples,
    saved,
    with_train,
    write_graph,
)
from tests.workers import apart
from train import job
from train.edges.visits import Blocks
from train.plan.decide import decide
from train.run.reading import BlockReader
from train.tables.run_context import RunContext

TYPES = {"user": {"num_partitions": 8}, "item": {"num_partitions": 6}, "city": {"num_partitions": 1}}
TYPES["street"] = {"num_partitions": 6}  # of no relation
RELATIONS = [
    {"name": "buys", "lhs": "user", "rhs": "item", "operator": "diagonal"},
    {"name": "lives", "lhs": "user", "rhs": "city"},
]
COUNTS = {"user": 41, "item": 30, "city": 5, "street": 9}


def graph(root, **more):
    """A graph whose types have eight, six and one partition; its edges have weights of their own."""
    own = {"entities": TYPES, "relations": RELATIONS, "global_emb": False} | more
    config = make_config(root, **own)
    triples = random_edges(config, COUNTS, np.random.default_rng(0), 400)
    write_graph(config, COUNTS, triples, weight=np.arange(2, 402, dtype=np.float32))
    return config


def rows_of(config):
    return torch.cat([embeddings(config, name, count) for name, count in COUNTS.items()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num", "chunks", "rhs"), [(1, 1, "item"), (3, 2, "item"), (4, 1, "user"), (6, 1, "user")]
)
def test_an_epoch_has_every_edge_once_between_its_own_rows(tmp_path, num, chunks, rhs):
    types = ["user", rhs]
    counts = dict.fromkeys(types, 41)
    entities = {name: {"num_partitions": max(num, 4)} for name in types}
    relation = {"name": "r", "lhs": "user", "rhs": rhs}
    config = make_config(
        tmp_path, entities=entities, relations=[relation], num_edge_chunks=chunks, global_emb=False
    )
    triples = random_triples(np.random.default_rng(1), 41, 1, 41, 300)
    write_graph(config, counts, triples, weight=np.arange(2, 302, dtype=np.float32))
    context = RunContext(config)
    blocks = Blocks(config, context.schedule, num)
    reader = BlockReader(context, blocks)
    found = []
    for chunk in range(chunks):
        iteration = context.schedule.iteration(chunk)
        order = blocks.order(iteration)
        assert len(order) == len(set(order)) == {1: 1, 3: 3, 4: 6, 6: 15}[num]
        for visit in order:
            edges = reader.read(visit, iteration)
            weight = edges.weights.long().numpy() - 2
            keys = blocks.keys_of(visit, iteration)
            for side, column in ((Side.LHS, 0), (Side.RHS, 2)):
                # as the files of partitions have them
                parts = [range(part, 41, max(num, 4)) for name, part in keys if name == types[column // 2]]
                ids = np.concatenate(parts)[edges.index[side].numpy()]
                assert (triples[weight, column] == ids).all()
            found += weight.tolist()
    assert sorted(found) == list(range(300))


@pytest.mark.parametrize(
    ("settings", "train"),
    [
        ({}, {"candidates": None}),
        ({}, {"candidates": 20, "num_workers": 2}),
        ({"loss_fn": "logistic"}, {}),
        ({"num_uniform_negs": 50, "num_batch_negs": 0}, {}),
        ({"num_uniform_negs": 0, "num_batch_negs": 50}, {}),
        ({"num_uniform_negs": 50, "num_batch_negs": 50}, {"engine": "fused"}),
    ],
    ids=["all", "sample", "all, logistic", "uniform", "batch", "fused"],
)
def test_scores_within_a_block_are_as_high_as_others(tmp_path, settings, train):
    """Edges at random teach nothing else: rows of one block meet in five visits, and others in one."""
    types = {name: {"num_partitions": 6} for name in ("user", "item")}
    all_negs = "num_uniform_negs" not in settings
    buys = {"name": "buys", "lhs": "user", "rhs": "item", "operator": "none", "all_negs": all_negs}
    own = {"entities": types, "relations": [buys], "loss_fn": "softmax", "global_emb": False} | settings
    own["train"] = {"memory_partitions": 2} | train
    config = make_config(tmp_path, lr=0.5, num_epochs=2, dimension=16, batch_size=100, **own)
    counts = dict.fromkeys(types, 200)
    write_graph(config, counts, random_edges(config, counts, np.random.default_rng(0), 3000))
    job.train(config)
    users, items = (embeddings(config, name, count) for name, count in counts.items())
    scores, partition = users @ items.T, torch.arange(200) % 6
    is_own = partition.unsqueeze(1) == partition
    gap = (scores[is_own].mean() - scores[~is_own].mean()) / scores.std()
    assert abs(gap) < 0.1  # with equal weights -0.25 to -0.67


@pytest.mark.slow
def test_blocks_are_written_as_the_partitions_that_were_read(tmp_path):
    """Without a learning rate a row is the same wherever it goes: in blocks, in files."""
    rows = []
    for held, epochs in ((0, 1), (2, 2), (4, 1)):
        train = {"memory_partitions": held} if held else {}
        own = {"lr": 1e-30, "relation_lr": 0.1}
        config = graph(tmp_path / str(held), num_epochs=epochs, train=train, **own)
        job.train(config)
        rows.append(rows_of(config))
    for found in rows[1:]:
        torch.testing.assert_close(found, rows[0], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path):
    """Partitions are read from files, or kept from the iteration before."""
    own = {"memory_partitions": 2}
    once = graph(tmp_path / "once", bucket_order="inside_out", train=own | {"prefetch": False})
    assert decide(RunContext(once)).blocks == 6  # of types with other numbers of partitions
    first, second = job.train(once)["epochs"]
    assert first["edges"] == second["edges"] == 400
    assert first["loss"] > second["loss"]
    assert rows_of(once).isfinite().all()
    for epochs in (1, 2):
        again = changed(once, checkpoint_path=str(tmp_path / "again"), num_epochs=epochs)
        job.train(with_train(again, prefetch=True))
    assert not differing(saved(once), saved(again))


NUM_ROWS, DIMENSION = 900_000, 80  # partitions large enough for memory of their own (mmap)
MORE_BYTES = 64 << 20  # buffers that no plan counts


def resident_bytes(name):
    """Memory of this process in RAM: `VmRSS` now, `VmHWM` at most until now."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def trained_with(config, worker_bytes):
    """Train in a worker of so much memory; figures, and the most memory that the process has had above now's.

    Partitions have memory of their own, as large ones have that are beyond the limit of `keep_freed_memory`.
    """
    system.MEMORY_LIMIT = worker_bytes
    runtime.keep_freed_memory = lambda: ctypes.CDLL(None).mallopt(runtime._M_MMAP_THRESHOLD, 4 << 20)
    before = resident_bytes("VmRSS")
    return job.train(config) | {"grown_bytes": resident_bytes("VmHWM") - before}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_mib", "train", "expected"),
    [
        (330, {}, {"blocks": 1, "writes_beside": False}),
        (260, {}, {"blocks": 4, "prefetch": False}),
        (260, {"prefetch": True}, {"blocks": 8, "prefetch": True}),
    ],
    ids=["all rows", "blocks", "blocks read ahead"],
)
def test_training_takes_the_memory_that_is_planned(tmp_path, limit_mib, train, expected):
    """A table of 278 MiB with its sums, in 8 partitions, on a worker of which half is for the plan."""
    config = make_config(
        tmp_path,
        entities={"node": {"num_partitions": 8}},
        dimension=DIMENSION,
        batch_size=200,
        bucket_order="affinity",
        num_epochs=1 if expected["blocks"] > 1 else 2,  # blocks come from files in the first one too
        train={"resident": "auto", **train},
    )
    lhs, rhs = np.random.default_rng(1).integers(NUM_ROWS, size=(2, 4000))
    write_graph(config, {"node": NUM_ROWS}, np.stack([lhs, 0 * lhs, rhs], 1))
    figures = apart(trained_with, config, 2 * limit_mib << 20)
    assert [epoch["edges"] for epoch in figures["epochs"]] == [4000] * config.num_epochs
    assert figures["plan"].items() >= expected.items()
    assert figures["grown_bytes"] <= (limit_mib << 20) + MORE_BYTES
