"""A plan names the step of each sort of batch, and that step is made; no other sorts of batches come."""

import pytest
import torch

from graphmill.cluster.runtime import cpu_threads
from graphmill.errors import ConfigError
from graphmill.model.built_in import OPERATORS
from graphmill.vocab import Bucket, Side
from tests.pairs import pairs
from tests.train.graphs import make_config, random_triples, write_graph
from tests.train.model import test_features as featurized
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.compiled.compiled_step import CompiledStep
from train.edges import batches
from train.edges.one_vs_all import QueryBatch, sorts_of
from train.gpu import fused_pass
from train.plan.decide import decide, steps_for
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
        assert type(step) in (
            (QueryStep, CompiledQueryStep) if sort == "queries" else (PlainStep, CompiledStep)
        )
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
    relations = [
        {"name": f"r{number}", "lhs": "node", "rhs": "node", "operator": operator, "all_negs": all_negs}
        for number, all_negs in enumerate(SORTS[sorts])
    ]
    config = make_config(
        tmp_path, relations=relations, global_emb=False, train={"engine": engine, "first_negatives": 0.5}
    )
    write_graph(config, {"node": 20}, random_triples(rng, 20, len(relations), 20, 60))
    if engine == "fused" and (obstacle := fused_pass.obstacle(config)):
        with pytest.raises(ConfigError, match="fused cannot train"):
            decide(RunContext(config))
        assert sorts != "edges" or operator in obstacle or operator == "translation"
        return
    fastest = {
        "edges": "fused" if engine == "fused" else "compiled" if operator in COMPILED else "plain",
        "queries": "compiled",
    }
    check(
        config,
        {sort: "plain" if engine == "plain" else fastest[sort] for sort in sorted(sorts.split(" and "))},
    )


def test_edges_with_features_have_plain_steps(tmp_path):
    """Beside other edges, which may have compiled ones; all threads work on one batch then."""
    config = featurized.configure(tmp_path)
    featurized.write(config, featurized.EDGES)
    check(config, {"edges": "compiled", "features": "plain"})
    with cpu_threads(3):
        assert decide(RunContext(config)).batches_at_once == 1


def test_without_compiled_code_steps_are_plain(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(compiled_step, "library", lambda: None)
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "rotation", "all_negs": True}
    config = make_config(tmp_path, relations=[relation])
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 60))
    check(config, {"queries": "plain"})
    assert decide(RunContext(config)).reasons == ("the compiled step cannot be built here",)


def test_a_penalty_by_autograd_takes_edges_one_by_one(tmp_path, rng):
    """A regularizer of the user, also with all_negs: queries have the closed form of N3."""
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "diagonal", "all_negs": True}
    config = make_config(
        tmp_path,
        relations=[relation],
        regularizer="my_N3",
        regularization_coef=0.1,
        train={"plugins": ["tests.train.plug_ins"]},
    )
    write_graph(config, {"node": 20}, random_triples(rng, 20, 1, 20, 60))
    check(config, {"edges": "plain"})


def test_queries_on_a_gpu_are_replayed(tmp_path):
    relations = [{"name": "r", "lhs": "node", "rhs": "node", "operator": "linear", "all_negs": True}]
    config, reasons = make_config(tmp_path, relations=relations), []
    assert steps_for(config, torch.device("cuda", 0), reasons) == {"queries": "replayed"}
    assert reasons == ["the fused step cannot train operator 'linear' of relation 'r'"]
