"""A plan: the step of each sort of batch, that it is made, and blocks that fit in memory.

Of devices: tests/train/gpu/test_training.py.
"""

import shutil
import threading
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from graphmill.errors import ConfigError
from graphmill.model.built_in import OPERATORS
from graphmill.vocab import Bucket, Side
from tests.pairs import pairs
from tests.train.graphs import (
    changed,
    make_config,
    mean_reciprocal_rank,
    node_graph,
    random_triples,
    relation,
    saved,
    write_graph,
)
from tests.train.model import test_features as featurized
from train import job
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.compiled.compiled_step import CompiledStep, Workspace
from train.edges import batches
from train.edges.one_vs_all import QueryBatch, sorts_of
from train.gpu import fused_pass
from train.plan.decide import blocks_for, blocks_of_workers, decide, steps_for
from train.run import bucket
from train.run.bucket import BucketTrainer
from train.run.reading import BucketReader
from train.run.run_metrics import RunMetrics
from train.step.plain import PlainStep
from train.step.queries import QueryStep
from train.tables.run_context import RunContext

SORTS = {"queries": (True,), "edges": (False,), "edges and queries": (True, False)}
ENGINES = ["auto", "plain", "fused"]
COMPILED = {"none", "diagonal", "translation", "complex_diagonal"}  # edges; queries of all


def check(config, expected):
    """The plan names these steps, they are made for it, and batches are of the same sorts."""
    context = RunContext(config)
    plan = decide(context)
    assert plan.steps == expected
    first = config.train.first_negatives
    is_told = any("train.first_negatives" in each for each in plan.ignored)
    assert is_told == (first < 1 and "fused" in expected.values())
    trainer = BucketTrainer(context, *context.load_model(), plan)
    found = {}
    for sort, step in trainer.steps.items():
        found[sort] = "plain" if type(step) in (PlainStep, QueryStep) else "compiled"
        kinds = (QueryStep, CompiledQueryStep) if sort == "queries" else (PlainStep, CompiledStep)
        assert type(step) in kinds
        assert getattr(step, "launch", None) is None
    if trainer.fused is not None:
        found["edges"] = "fused"
    assert found == expected
    edges = BucketReader(context).read(Bucket(0, 0), context.schedule.iteration(0))
    ends = {side: [each.entity_type(side) for each in config.relations] for side in Side}
    rows = {side: [(sum(context.num_rows[name]), 0) for name in names] for side, names in ends.items()}
    cut = batches.cut_for_training(config, edges, torch.Generator(), rows)
    for batch in cut:
        sort = "queries" if isinstance(batch, QueryBatch) else "features" if batch.bags else "edges"
        assert sorts_of(config)[batch.relation] == sort
    assert set(sorts_of(config)) == set(expected)


@pytest.mark.parametrize(("operator", "sorts", "engine"), pairs([*OPERATORS], [*SORTS], ENGINES))
def test_steps_are_those_of_the_plan(tmp_path, rng, operator, sorts, engine):
    num, train = len(SORTS[sorts]), {"engine": engine, "first_negatives": 0.5}
    relations = [relation(operator, name=f"r{n}", all_negs=each) for n, each in enumerate(SORTS[sorts])]
    config = node_graph(tmp_path, rng, num_relations=num, relations=relations, global_emb=False, train=train)
    if engine == "fused" and (obstacle := fused_pass.obstacle(config)):
        with pytest.raises(ConfigError, match="fused cannot train"):
            decide(RunContext(config))
        assert sorts != "edges" or operator in obstacle or operator == "translation"
        return
    edges = "fused" if engine == "fused" else "compiled" if operator in COMPILED else "plain"
    fastest = {"edges": edges, "queries": "compiled"}
    names = sorted(sorts.split(" and "))
    check(config, {sort: "plain" if engine == "plain" else fastest[sort] for sort in names})


def test_edges_with_features_have_plain_steps(tmp_path):
    """Beside other edges, which may have compiled ones; all threads work on one batch then."""
    config = featurized.configure(tmp_path)
    featurized.write(config, featurized.EDGES)
    check(config, {"edges": "compiled", "features": "plain"})
    with cpu_threads(3):
        assert decide(RunContext(config)).batches_at_once == 1


def test_without_compiled_code_steps_are_plain(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(compiled_step, "library", lambda: None)
    config = node_graph(tmp_path, rng, relations=[relation("rotation", all_negs=True)])
    check(config, {"queries": "plain"})
    assert decide(RunContext(config)).reasons == ("the compiled step cannot be built here",)


def test_a_penalty_by_autograd_takes_edges_one_by_one(tmp_path, rng):
    """A regularizer of the user, also with all_negs: queries have the closed form of N3."""
    penalty = {"regularizer": "my_N3", "regularization_coef": 0.1}
    plug_ins = {"plugins": ["tests.train.plug_ins"]}
    config = node_graph(tmp_path, rng, relations=[relation(all_negs=True)], train=plug_ins, **penalty)
    check(config, {"edges": "plain"})


def test_queries_on_a_gpu_are_replayed(tmp_path):
    config, reasons = make_config(tmp_path, relations=[relation("linear", all_negs=True)]), []
    assert steps_for(config, torch.device("cuda", 0), reasons) == {"queries": "replayed"}
    assert reasons == ["the fused step cannot train operator 'linear' of relation 'r'"]


@pytest.mark.slow
def test_memory_and_workers_decide_how_many_blocks_there_are(tmp_path):
    """At least two for each worker, which holds two; more where its memory holds smaller ones."""
    num_rows = 80_000
    triples = random_triples(np.random.default_rng(1), num_rows, 1, num_rows, 1000)

    @cache
    def context(num_partitions=16, **train):
        train, root = {"resident": "auto"} | train, tmp_path / str(num_partitions)
        settings = {"num_partitions": num_partitions, "dimension": 100, "batch_size": 10}
        config = make_config(root, train=train, **settings)
        if not root.exists():
            write_graph(config, {"node": num_rows}, triples)
        return RunContext(config)

    def blocks(workers, worker_bytes, **settings):
        return blocks_of_workers(context(**settings), workers, worker_bytes)

    rows = num_rows * 4 * 101
    assert [blocks(workers, 100 * rows) for workers in (2, 3, 8)] == [4, 6, 16]
    limits = [int(2 * (6 * joined / 16 * rows + 0.1 * rows)) for joined in (4, 3, 2, 1)]
    assert [blocks(2, limit) for limit in limits] == [4, 6, 8, 16]
    assert blocks(2, rows // 8) == 16  # it does not fit, and there are no more
    assert blocks(9, 100 * rows) == 0  # no two partitions for each worker: bucket by bucket
    assert blocks(2, 100 * rows, num_partitions=3) == 0
    assert blocks(2, 100 * rows, memory_partitions=4) == 8
    assert blocks(2, 100 * rows, memory_partitions=16) == 4
    assert blocks(2, 100 * rows, resident="never") == 16
    held = (2, 3, 4, 6, 8, 15, 16)
    assert [blocks_for(context().config, each) for each in held] == [16, 16, 8, 6, 4, 3, 1]


@pytest.mark.parametrize(
    ("train", "all_negs", "workers", "threads", "varying"),
    [
        ({}, False, 1, 1, []),
        ({}, False, 1, 2, ["2 threads"]),
        ({}, True, 1, 2, []),
        ({"plugins": ["tests.train.plug_ins"]}, True, 1, 2, ["2 threads"]),
        ({"bucket_assignment": "tournament"}, False, 2, 1, []),
        ({}, False, 2, 3, ["train.bucket_assignment: dynamic", "3 threads"]),
    ],
)
def test_a_plan_says_whether_it_repeats(
    tmp_path, caplog, few_products, train, all_negs, workers, threads, varying
):
    more = {"relations": [relation(all_negs=all_negs)], "train": train, "batch_size": 1000}
    config = node_graph(
        tmp_path, np.random.default_rng(1), 40, 100, num_partitions=1 if all_negs else 4, **more
    )
    caplog.set_level("INFO", "graphmill")
    with cpu_threads(threads):
        plan = decide(RunContext(config), workers)
        plan.log()
    assert [found.split(" (")[0] for found in plan.varying] == varying
    assert ("gives the same bytes" in caplog.text) == (not varying)
    assert all(each in caplog.text for each in varying)


def test_a_plan_of_a_gpu_and_of_workers_with_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the host do not train on a GPU; blocks of workers are as many as memory_partitions holds."""
    kept = {"engine": "plain", "resident": "always"}
    config = node_graph(tmp_path, np.random.default_rng(1), 40, 100, num_partitions=4, train=kept)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**11, 10**11))
    with cpu_threads(3):
        plan = decide(RunContext(config, device=torch.device("cuda", 0)))
    assert not plan.varying
    context = RunContext(changed(config, train={"memory_partitions": 2}))
    ignored = [decide(context, 2, blocks_of_all=blocks).ignored for blocks in (4, 0)]
    assert [[text.split(" ")[0] for text in texts] for texts in ignored] == [[], ["train.memory_partitions"]]


def settings(operator="none", **train):
    relations = [relation(operator, all_negs=True)]
    return {"relations": relations, "batch_size": 20, "dimension": 8, "train": {"candidates": 40, **train}}


@pytest.fixture
def few_products(monkeypatch):
    """Batches are as large as those of graphs that fill two threads, and tables are not small."""
    monkeypatch.setattr("train.plan.decide.LEAST_PRODUCTS", 20 * 40 * 8)
    monkeypatch.setattr("train.compiled.compiled_queries.MOST_ROWS", 20)


NEVER = {"entities": {"node": {"num_partitions": 4}}, "train": {"candidates": 40, "resident": "never"}}


@pytest.mark.parametrize(
    ("operator", "more", "num_edges", "num_rows", "expected", "reason"),
    [
        ("none", {}, 20 * 64 * 4, 80, 4, "at most 4"),
        ("linear", {}, 20 * 64 * 8, 80, 4, "at most 4"),  # more cost quality
        ("rotation", {}, 20 * 64 * 3 - 1, 80, 2, "one for each 64 batches of a bucket, which has 191"),
        ("linear", {}, 1, 80, 1, "which has 0"),
        ("linear", {}, 20 * 64 * 4, 79, 1, "all 79 rows of node"),  # too small for a sample
        ("rotation", {"train": {"candidates": None}}, 20 * 64 * 4, 80, 1, "without train.candidates"),
        ("none", NEVER, 20 * 64 * 24, 159, 1, "all 79 rows of node"),  # of two of four blocks
        ("none", NEVER, 20 * 64 * 12, 160, 2, "which has 128"),  # of six visits
        ("none", {"train": {"candidates": 40, "engine": "plain"}}, 20 * 64 * 4, 80, 1, None),
    ],
)
def test_number_at_once(tmp_path, rng, few_products, operator, more, num_edges, num_rows, expected, reason):
    config = make_config(tmp_path, **(settings(operator) | more))
    triples = np.stack([rng.integers(0, num_rows, num_edges) for _ in range(3)], axis=1)
    triples[:, 1] = 0
    write_graph(config, {"node": num_rows}, triples)
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.batches_at_once, plan.threads_of_batch) == (expected, 6 // expected)
    assert (reason is None) == (plan.reasons == ())
    assert reason is None or reason in plan.reasons[-1]
    assert (f"on {expected} batches at the same time" in str(plan)) == (expected > 1)


@pytest.mark.parametrize(
    ("engine", "candidates", "dimension", "expected"),
    [
        ("auto", None, 8, 6),
        ("plain", None, 6, 1),
        ("auto", 20, 8, 1),  # compiled
        ("plain", 40, 8, 6),  # 40 rows: sampled with 20, not with 40
    ],
)
def test_small_batches_have_one_thread(tmp_path, few_products, engine, candidates, dimension, expected):
    train = {"candidates": candidates, "engine": engine}
    config = make_config(tmp_path, **settings(**train) | {"dimension": dimension})
    write_graph(config, {"node": 40}, np.array([[0, 0, 1]]))
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.threads, plan.threads_of_batch, plan.batches_at_once) == (expected, expected, 1)
    told = "one thread trains: a batch of 20 queries is not shared by 6" in plan.reasons
    assert told == (expected == 1)
    assert plan.varying == ()


def test_edges_take_all_threads(tmp_path):
    config = make_config(tmp_path, relations=[relation("none")])
    write_graph(config, {"node": 5}, np.zeros((1, 3), int))
    with cpu_threads(6):
        plan = decide(RunContext(config))
    assert (plan.batches_at_once, plan.threads_of_batch) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("candidates", "operator"), [(40, "none"), (None, "none"), (40, "rotation")])
def test_threads_train_as_well_as_one(tmp_path, rng, monkeypatch, few_products, candidates, operator):
    """Steps on a sample run side by side, and of those that move all rows one at a time."""
    group = rng.integers(0, 10, 200)
    members = [np.flatnonzero(group == each) for each in range(10)]
    lhs = rng.integers(0, 200, 6000)
    rhs = np.array([rng.choice(members[each]) for each in group[lhs]])
    # enough queries that some are compared with all rows (train/edges/candidates.py)
    triples = np.unique(np.stack([lhs, rng.integers(0, 30, 6000), rhs], axis=1), axis=0)
    lock, running, most = threading.Lock(), Counter(), Counter()
    threads = {"sample": set(), "all rows": set()}

    def watch(owner, name, kind_of):
        original = getattr(owner, name)

        def watched(self, *given, **more):
            kind = kind_of(*given)
            with lock:
                running[kind] += 1
                most[kind] = max(most[kind], running[kind])
                threads[kind].add(torch.get_num_threads())
            try:
                return original(self, *given, **more)
            finally:
                with lock:
                    running[kind] -= 1

        monkeypatch.setattr(owner, name, watched)

    watch(QueryStep, "begin", lambda batch, *_: "all rows" if batch.candidate_C is None else "sample")
    watch(Workspace, "call", lambda *_: "sample")
    own = settings(operator, candidates=candidates)
    config = make_config(tmp_path, num_epochs=4, workers=3, dynamic_relations=True, **own)
    write_graph(config, {"node": 200}, triples)
    plan = job.train(config)["plan"]
    is_compiled = plan["steps"] == {"queries": "compiled"}
    assert (plan["batches_at_once"] > 1) == (candidates is not None and is_compiled)
    # by chance .03
    assert mean_reciprocal_rank(config, triples, triples[:300]) > 0.15
    assert most["all rows"] == 1
    if plan["batches_at_once"] > 1:
        assert most["sample"] > 1
        assert threads == {"sample": {1}, "all rows": {3}}
    else:
        assert threads["sample"] | threads["all rows"] == {3}
    before = saved(config)
    for workers in (3, 1) if operator == "none" and candidates else (3,):
        shutil.rmtree(config.checkpoint_path)
        job.train(changed(config, workers=workers))
        torch.testing.assert_close(saved(config), before, rtol=0, atol=0)


def test_the_live_loss_is_that_of_the_edges_beside_it(tmp_path, rng, monkeypatch):
    """In the middle of an epoch too: queries of both sides count the edges of their loss."""
    triples = np.stack([rng.permutation(4000), np.zeros(4000, int), rng.integers(0, 20, 4000)], axis=1)
    config = make_config(tmp_path, num_epochs=1, workers=3, lr=1e-12, **settings())
    write_graph(config, {"node": 4000}, triples)
    told = []
    report = RunMetrics.report
    monkeypatch.setattr(bucket, "CHECK_BATCHES", 1)
    monkeypatch.setattr(
        RunMetrics, "report", lambda self, *said: told.append(said[1:]) or report(self, *said)
    )
    loss = job.train(config)["loss"]
    assert told[-1][0] == 4000
    assert len(told) > 2
    assert [total / num_edges for num_edges, total in told] == pytest.approx([loss] * len(told), rel=0.2)
