"""Relation prediction: steps move as autograd says of the scores of every edge with all relations."""

import pytest
import torch

from graphmill.errors import ConfigError
from graphmill.model.operators import OPERATORS, operator_of
from graphmill.vocab import Side
from tests.train.graphs import make_config, random_triples, write_graph
from tests.train.step.test_plain import NUM_RELATIONS, Scene, check_step, settings
from tests.train.step.test_queries import all_negs, check_same_as_step
from train import job
from train.compiled import compiled_step
from train.gpu import supported
from train.model import relation_prediction

WEIGHT = 0.7
PRODUCTS = [name for name, each in OPERATORS.items() if each.is_product]


def predicting(**more):
    return {"train": {"relation_prediction": WEIGHT, "chunk_edges": 1, "engine": "plain"}, **more}


class PredictingScene(Scene):
    """The oracle's loss, and that of the edges' relations."""

    def expected_loss(self, embeddings, parameters):
        total, reg = super().expected_loss(embeddings, parameters)
        entry = self.config.relations[0]
        every = torch.arange(NUM_RELATIONS)
        for (lhs, rel, rhs), weight in zip(self.edges, self.batch.weight_B, strict=True):
            rows = {Side.LHS: embeddings[entry.lhs][lhs], Side.RHS: embeddings[entry.rhs][rhs]}
            for side in Side:
                own = [parameters[key] for key in self.model.operator_keys(0, side)]
                transformed = operator_of(entry.operator).apply(
                    rows[side].expand(NUM_RELATIONS, -1), own, every
                )
                scores = transformed @ rows[side.other]
                total = total + WEIGHT * weight * (scores.logsumexp(0) - scores[rel])
        return total, reg


@pytest.mark.parametrize("elementwise", [False, True], ids=["by row", "by element"])
@pytest.mark.parametrize("operator", PRODUCTS)
def test_plain_step_predicts_relations(operator, elementwise):
    config = settings(operator, "dot", "softmax", True, **predicting(regularization_coef=0.03))
    check_step(PredictingScene(config, elementwise=elementwise))


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("operator", PRODUCTS)
def test_grouped_step_predicts_relations(operator, side, monkeypatch):
    monkeypatch.setattr(relation_prediction, "EDGES_AT_A_TIME", 10)  # 25 edges: three parts
    more = predicting() | {f"disable_{side}_negs": True}
    check_same_as_step(all_negs(operator, "dot", True, **more))


def test_other_engines_leave_it_to_torch():
    with_it, without = (
        settings("diagonal", "dot", "softmax", True, train={"relation_prediction": weight})
        for weight in (WEIGHT, 0.0)
    )
    for engine in (compiled_step, supported):
        assert engine.obstacle(with_it) == "train.relation_prediction"
        assert engine.obstacle(without) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"dynamic_relations": False},
        {"comparator": "cos"},
        {"bias": True},
        {"operator": "translation"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_it_needs(tmp_path, changes):
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": changes.pop("operator", "diagonal")}
    usual = {"dynamic_relations": True, "global_emb": False, "relations": [relation], **predicting()}
    job.check(make_config(tmp_path, **usual | {"relations": [relation | {"operator": "diagonal"}]}))
    with pytest.raises(ConfigError, match=r"train\.relation_prediction needs "):
        job.check(make_config(tmp_path, **usual | changes))


def test_training_learns_the_relations(tmp_path, rng):
    """The loss falls, also of what is predicted."""
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "complex_diagonal", "all_negs": True}
    config = make_config(
        tmp_path, relations=[relation], dynamic_relations=True, global_emb=False, num_epochs=10,
        dimension=16, init_scale=0.1, **predicting(),
    )  # fmt: skip
    write_graph(config, {"node": 30}, random_triples(rng, 30, 3, 30, 90))
    losses = [epoch["loss"] for epoch in job.train(config)["epochs"]]
    assert losses[-1] < losses[0] / 2
