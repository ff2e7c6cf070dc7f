"""A plan: the step of each sort of batch, that it is made, and blocks that fit in memory.

Of devices: tests/train/gpu/test_training.py.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from graphmill.errors import ConfigError
from graphmill.model.built_in import OPERATORS
from graphmill.vocab import Bucket, Side
from tests.pairs import pairs
from tests.train.graphs import changed, make_config, node_graph, random_triples, relation, write_graph
from tests.train.model import test_features as featurized
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.compiled.compiled_step import CompiledStep
from train.edges import batches
from train.edges.one_vs_all import QueryBatch, sorts_of
from train.gpu import fused_pass
from train.plan.decide import blocks_for, blocks_of_workers, decide, steps_for
from train.run.bucket import BucketTrainer
from train.run.reading import BucketReader
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

    def configured(num_partitions=16, **train):
        train, root = {"resident": "auto"} | train, tmp_path / str(num_partitions)
        settings = {"num_partitions": num_partitions, "dimension": 100, "batch_size": 10}
        config = make_config(root, train=train, **settings)
        if not root.exists():
            write_graph(config, {"node": num_rows}, triples)
        return config

    def blocks(workers, worker_bytes, **settings):
        return blocks_of_workers(RunContext(configured(**settings)), workers, worker_bytes)

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
    assert [blocks_for(configured(), each) for each in held] == [16, 16, 8, 6, 4, 3, 1]


@pytest.mark.parametrize(
    ("train", "workers", "threads", "varying"),
    [
        ({}, 1, 1, []),
        ({}, 1, 2, ["2 threads"]),
        ({"bucket_assignment": "tournament"}, 2, 1, []),
        ({}, 2, 3, ["train.bucket_assignment: dynamic", "3 threads"]),
    ],
)
def test_a_plan_says_whether_it_repeats(tmp_path, caplog, train, workers, threads, varying):
    config = node_graph(tmp_path, np.random.default_rng(1), 40, 100, num_partitions=4, train=train)
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
