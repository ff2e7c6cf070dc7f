"""Blocks of partitions: each edge once, each row in one place; tables that do not fit in memory."""

import ctypes
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from distributed import system
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.cluster import runtime
from graphmill.formats import entity_counts
from graphmill.vocab import Side
from tests.train.graphs import differing, embeddings, make_config, random_triples, saved, write_graph
from tests.workers import apart
from train import job
from train.edges.blocks import Blocks
from train.plan.decide import decide
from train.run.reading import BlockReader
from train.step.table import Table
from train.tables import memory
from train.tables.outside_rows import OutsideRows
from train.tables.run_context import CPU, RunContext

TYPES = {"user": {"num_partitions": 8}, "item": {"num_partitions": 6}, "city": {"num_partitions": 1}}
RELATIONS = [
    {"name": "buys", "lhs": "user", "rhs": "item", "operator": "diagonal"},
    {"name": "lives", "lhs": "user", "rhs": "city"},
]
COUNTS = {"user": 41, "item": 30, "city": 5}


def graph(root, **more):
    """A graph whose types have eight, six and one partition; its edges have weights of their own."""
    own = {"entities": TYPES, "relations": RELATIONS, "global_emb": False} | more
    config = make_config(root, **own)
    rng = np.random.default_rng(0)
    rel = rng.integers(2, size=400)
    limits = np.array([[41, 30], [41, 5]])
    triples = np.stack([rng.integers(limits[rel, 0]), rel, rng.integers(limits[rel, 1])], 1)
    write_graph(config, COUNTS, triples, weight=np.arange(2, 402, dtype=np.float32))
    return config


@pytest.mark.slow
@pytest.mark.parametrize("types", [["user", "user"], ["user", "item"]])
@pytest.mark.parametrize(
    ("num", "chunks", "all_negs"),
    [(1, 1, False), (3, 1, False), (3, 2, False), (4, 1, False), (4, 1, True), (12, 1, False)],
)
def test_an_epoch_has_every_edge_once_between_its_own_rows(tmp_path, num, chunks, all_negs, types):
    """Few blocks have two passes, but one with queries, whose cost does not fall with their edges."""
    counts = dict.fromkeys(types, 41)
    parts = {name: {"num_partitions": max(num, 4)} for name in counts}
    relation = {"name": "r", "lhs": types[0], "rhs": types[1], "all_negs": all_negs}
    config = make_config(
        tmp_path, entities=parts, relations=[relation], num_edge_chunks=chunks, global_emb=False
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
        assert len(order) == len(set(order)) == {1: 1, 3: 6, 4: 6 if all_negs else 12, 12: 66}[num]
        for visit in order:
            edges = reader.read(visit, iteration)
            ids = {}
            for side in Side:
                # as the files of partitions have them
                own = []
                for name, part in blocks.keys_of(visit, iteration):
                    if name == types[side != Side.LHS]:
                        own += list(range(part, counts[name], max(num, 4)))
                ids[side] = np.array(own)[edges.index[side].numpy()]
            weight = edges.weights.long().numpy() - 2
            assert (triples[weight, 0] == ids[Side.LHS]).all()
            assert (triples[weight, 2] == ids[Side.RHS]).all()
            found += weight.tolist()
    assert sorted(found) == list(range(300))


@pytest.mark.slow
def test_types_may_have_other_numbers_of_partitions(tmp_path):
    config = graph(tmp_path, num_epochs=3, train={"memory_partitions": 2, "outside_rows": 0.3})
    assert decide(RunContext(config)).blocks == 6
    figures = job.train(config)
    assert [epoch["edges"] for epoch in figures["epochs"]] == [400] * 3
    losses = [epoch["loss"] for epoch in figures["epochs"]]
    assert all(before > after for before, after in pairwise(losses))
    for name, count in COUNTS.items():
        assert embeddings(config, name, count).isfinite().all()


@pytest.mark.slow
def test_few_blocks_take_no_outside_rows(tmp_path):
    """Two of three blocks in memory: a run with a sample of the other rows is one without."""
    tables = []
    for share in (0.0, 0.5):
        train = {"memory_partitions": 4, "outside_rows": share}
        config = graph(tmp_path / str(share), num_epochs=1, train=train)
        assert decide(RunContext(config)).blocks == 3
        job.train(config)
        tables.append(torch.cat([embeddings(config, name, count) for name, count in COUNTS.items()]))
    assert torch.equal(*tables)


@pytest.mark.slow
def test_blocks_are_written_as_the_partitions_that_were_read(tmp_path):
    """Without a learning rate a row is the same wherever it goes: in blocks, in samples, in files."""
    whole = graph(tmp_path / "whole", lr=1e-30, relation_lr=0.1, num_epochs=1, max_norm=None)
    tables = {}
    for held in (2, 4):
        config = graph(
            tmp_path / str(held),
            lr=1e-30,
            relation_lr=0.1,
            num_epochs=2,
            train={"memory_partitions": held, "outside_rows": 0.5},
        )
        job.train(config)
        tables[held] = {name: embeddings(config, name, count) for name, count in COUNTS.items()}
    job.train(whole)
    for name, count in COUNTS.items():
        drawn = embeddings(whole, name, count)
        for found in tables.values():
            torch.testing.assert_close(found[name], drawn, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "prefetch", "chunks"), [("inside_out", True, 1), ("affinity", False, 2), ("random", True, 1)]
)
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path, order, prefetch, chunks):
    """The sample of rows is read from files, or kept from the iteration before: it is the same."""
    own = {"outside_rows": 0.5, "memory_partitions": 2, "prefetch": prefetch}
    settings = {"bucket_order": order, "num_edge_chunks": chunks}
    once = graph(tmp_path / "once", num_epochs=2, train=own, **settings)
    job.train(once)
    own = own | {"prefetch": True}
    for epochs in (1, 2):
        again = graph(tmp_path / "again", num_epochs=epochs, train=own, **settings)
        job.train(again)
    assert not differing(saved(once), saved(again))


@given(
    counts=st.lists(st.integers(0, 9), min_size=3, max_size=6),
    share=st.floats(0, 2),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=60)
def test_what_steps_make_of_the_sample_comes_back_to_its_rows(counts, share, seed, data):
    """Blocks come and go in any order, as in the store, and steps add one to every outside row."""
    outside = OutsideRows(seed, {"node": counts}, share)
    keys = [("node", block) for block in range(len(counts))]
    files = {key: Table(torch.zeros(counts[key[1]], 2), torch.zeros(counts[key[1]])) for key in keys}
    outside.begin(0, files.__getitem__)
    moved, before = 0.0, set()
    for visit in range(data.draw(st.integers(1, 6))):
        held = data.draw(st.sets(st.sampled_from(keys), min_size=2, max_size=2))
        for key in before - held:
            outside.take(key, files[key], 0, visit)
        for key in held:
            outside.put_back(key, files[key])
        num_own = sum(len(files[key]) for key in held)
        table = outside.lend("node", files[keys[0]].like(num_own + outside.num_rows("node"), CPU))
        assert len(table) - table.num_outside == num_own
        rows = table.embeddings_ND[num_own:]
        rows += 1
        moved += rows.numel()
        outside.take_back()
        before = held
    for key, table in files.items():
        outside.put_back(key, table)
    assert sum(float(table.embeddings_ND.sum()) for table in files.values()) == moved


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


def trained(root, num_partitions, limit_bytes, **train):
    """Figures of a run on a worker with twice `limit_bytes`: half of its memory is for the plan."""
    config = make_config(
        root,
        entities={"node": {"num_partitions": num_partitions}},
        dimension=DIMENSION,
        num_epochs=2,
        batch_size=200,
        bucket_order="affinity",
        train={"resident": "auto", "outside_rows": 0.1, **train},
    )
    rng = np.random.default_rng(1)
    triples = np.stack(
        [rng.integers(NUM_ROWS, size=4000), np.zeros(4000, int), rng.integers(NUM_ROWS, size=4000)], 1
    )
    write_graph(config, {"node": NUM_ROWS}, triples)
    assert sum(entity_counts.read_counts(config.entity_path, {"node": num_partitions})["node"]) == NUM_ROWS
    figures = apart(trained_with, config, 2 * limit_bytes)
    assert [epoch["edges"] for epoch in figures["epochs"]] == [4000, 4000]
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_mib", "train", "expected"),
    [
        (600, {}, {"blocks": 1, "writes_beside": True}),
        (330, {}, {"blocks": 1, "writes_beside": False}),
        (260, {}, {"blocks": 4, "prefetch": False}),
        (260, {"prefetch": True}, {"blocks": 8, "prefetch": True}),
    ],
    ids=["and a copy", "all rows", "blocks", "blocks read ahead"],
)
def test_training_takes_the_memory_that_is_planned(tmp_path, limit_mib, train, expected):
    """A table of 278 MiB with its sums, in 8 partitions."""
    figures = trained(tmp_path, 8, limit_mib << 20, **train)
    assert figures["plan"].items() >= expected.items()
    assert figures["grown_bytes"] <= (limit_mib << 20) + MORE_BYTES


@pytest.mark.slow
def test_without_partitions_a_table_must_fit(tmp_path):
    assert trained(tmp_path, 1, 260 << 20)["grown_bytes"] > 278 << 20


def test_resting_partitions_leave_room_for_rows_that_workers_share(tmp_path):
    relation = {"name": "r", "lhs": "node", "rhs": "tag"}
    config = make_config(
        tmp_path,
        entities={"node": {"num_partitions": 4}, "tag": {"num_partitions": 1}},
        relations=[relation],
        dimension=8,
        defaults="pbg",
    )
    write_graph(config, {"node": 400, "tag": 1000}, np.array([[0, 0, 0], [399, 0, 999]]))
    row_bytes = 4 * (8 + 1)
    bucket = (1 + 1) * 100 * row_bytes  # its partition, and one that comes
    shared = 2 * 1000 * row_bytes
    context = RunContext(config)
    assert memory.resting_bytes(context, 10 * (bucket + shared)) == 4 * (bucket + shared)
    assert memory.resting_bytes(context, bucket) == 0
