"""Featurized entities, relation prediction and the state of optimizers: steps and runs as autograd says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.checkpoints import pbg
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets import Edges
from graphmill.formats.edge_buckets.features import Features
from graphmill.model.operators import OPERATORS, operator_of
from graphmill.vocab import Bucket, Side
from tests.train.graphs import make_config
from tests.train.oracle import Oracle, adagrad
from tests.train.step.test_plain import NUM_RELATIONS, Scene, check_step, settings
from tests.train.step.test_queries import all_negs, check_same_as_step
from train import job
from train.compiled import compiled_step
from train.edges import batches
from train.gpu import fused_pass
from train.model import optimizer, regularizers
from train.model.features import distinct
from train.step.plain import PlainStep

DEVICE = torch.device("cpu")
TYPES = {"doc": {"num_partitions": 1, "featurized": True}, "user": {"num_partitions": 1}}
COUNTS = {"doc": 12, "user": 9}
RELATIONS = [
    {"name": "reads", "lhs": "user", "rhs": "doc", "operator": "diagonal"},
    {"name": "cites", "lhs": "doc", "rhs": "doc", "operator": "diagonal"},
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "diagonal"},
]


def features(lists) -> Features:
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    return Features(offsets, np.array([each for part in lists for each in part], np.int64))


def write(config, edges) -> None:
    """Edges (lhs, relation, rhs), where an entity is a number or a list of features."""
    lhs, rel, rhs = zip(*edges, strict=True)
    numbers = [[-1 if isinstance(each, list) else each for each in ends] for ends in (lhs, rhs)]
    lists = [features([each if isinstance(each, list) else [] for each in ends]) for ends in (lhs, rhs)]
    columns = (np.array(each, np.int64) for each in (numbers[0], rel, numbers[1]))
    edge_buckets.write_bucket(config.edge_paths[0], Bucket(0, 0), Edges(*columns, None, *lists))
    for name, count in COUNTS.items():
        entity_counts.write_count(config.entity_path, name, 0, count)


def read(config):
    num_rows = {side: [COUNTS[each.entity_type(side)] for each in config.relations] for side in Side}
    return batches.read(config, config.edge_paths[0], Bucket(0, 0), (0, 10**6), num_rows, 3, DEVICE)


def configure(root, **more):
    usual = {"entities": TYPES, "relations": RELATIONS, "global_emb": False, "num_uniform_negs": 3}
    return make_config(root, **(usual | more))


EDGES = [
    (0, 0, [1, 2, 3]),
    (1, 0, [5]),
    (0, 0, [3, 1, 2]),
    ([7, 7, 8], 1, [1, 2, 3]),
    ([5], 1, [7, 8]),
    (4, 2, 5),
    (3, 2, 4),
    (2, 0, []),
    ([], 1, [4]),
    ([9, 10], 1, []),
]


class FeaturizedOracle(Oracle):
    """An entity is a number, or a tuple of features."""

    def entity(self, entity_type, index):
        if not isinstance(index, tuple):
            return super().entity(entity_type, index)
        rows = [self.embeddings[entity_type][each] for each in index]
        return sum(rows) / len(rows) if rows else torch.zeros_like(self.embeddings[entity_type][0])


@pytest.mark.parametrize("relation", [0, 1, 2])
def test_step_on_features_equals_the_oracle(tmp_path, relation):
    train = {"chunk_edges": 1, "engine": "plain"}
    config = configure(tmp_path, num_batch_negs=4, num_uniform_negs=2, dimension=4, train=train)
    write(config, EDGES)
    (batch,) = (
        each for each in batches.cut(config, read(config), torch.Generator()) if each.relation == relation
    )
    scene = Scene(config, relation, counts=COUNTS)
    tables, sides = scene.tables, scene.side_tables
    before = {name: (table.embeddings_ND.clone(), table.sums.clone()) for name, table in tables.items()}
    step = PlainStep(config, scene.model, scene.adagrad)
    leaves, _ = scene.leaves()
    values = [scene.model.parameters[f"rhs_operators.{relation}.diagonal"].clone()]

    def entities(side, numbers):
        bags = batch.bags.get(side)
        if bags is None:
            return numbers.tolist()
        return [tuple(bags.row_F[bags.start_G[k] :][: bags.count_G[k]].tolist()) for k in numbers.tolist()]

    (block,) = step.sampling.blocks(batch, sides, torch.Generator().manual_seed(3))
    drawn = {str(side): entities(side, block.rows[side][0, len(batch) :]) for side in Side}
    pairs = zip(
        entities(Side.LHS, batch.index[Side.LHS]), entities(Side.RHS, batch.index[Side.RHS]), strict=True
    )
    oracle = FeaturizedOracle(config, leaves, lambda side, rel: values, {})
    loss = oracle.chunk_loss([(lhs, relation, rhs) for lhs, rhs in pairs], drawn)
    loss.backward()

    figures = step(batch, sides, torch.Generator().manual_seed(3))
    torch.testing.assert_close(figures.loss, loss.detach())
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            rows, sums = adagrad(*before[name], leaf.grad, config.lr)
            torch.testing.assert_close(tables[name].embeddings_ND, rows)
            torch.testing.assert_close(tables[name].sums, sums)


def test_equal_lists_are_one_bag():
    bags, number_E = distinct(features([[1, 2], [3], [2, 1], [], [3, 3], [1, 2]]), np.array([0, 1, 2, 4, 5]))
    assert len(bags) == 3
    assert number_E[0] == number_E[2] == number_E[4] != number_E[1] != number_E[3] != number_E[0]


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=30), st.data())
def test_bags_are_their_lists(lists, more):
    bags, number_E = distinct(features(lists), np.arange(len(lists)))
    table_ND = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    chosen = torch.tensor(more.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=40)))
    expected = torch.stack([table_ND[lists[each]].sum(0) / max(len(lists[each]), 1) for each in chosen])
    found = bags.means(table_ND.detach(), number_E[chosen])
    torch.testing.assert_close(found, expected.detach())
    pull = torch.randn_like(found)
    expected.backward(pull)
    row_F, gradient_FD = bags.feature_gradients(number_E[chosen], pull)
    torch.testing.assert_close(torch.zeros_like(table_ND).index_add_(0, row_F, gradient_FD), table_ND.grad)


@pytest.mark.slow
def test_training_on_features(tmp_path):
    config = configure(tmp_path, num_epochs=5, eval_fraction=0.2, num_batch_negs=2)
    write(config, EDGES * 18)
    job.train(config)
    version = pbg.read_version(config.checkpoint_path)
    saved, state = pbg.read_embeddings(config.checkpoint_path, "doc", 0, version)
    assert saved.shape == (12, 8)
    moved = {1, 2, 3, 4, 5, 7, 8, 9, 10}
    assert {row for row in range(12) if state["state"][0]["sum"][row] > 0} == moved
    lines = pbg.read_stats(config.checkpoint_path)
    assert lines[-1]["stats"]["metrics"]["loss"] < 0.5 * lines[0]["stats"]["metrics"]["loss"]
    assert lines[-1]["eval_stats_after"]["metrics"]["mrr"] > 0


@pytest.mark.parametrize("comparator", ["cos", "l2"])
def test_training_on_empty_lists_alone_stays_finite(tmp_path, comparator):
    """PBG's cosine of a zero vector is no number; ours is 0."""
    config = configure(tmp_path, num_epochs=2, eval_fraction=0.2, num_batch_negs=2, comparator=comparator)
    write(config, [(0, 0, []), (1, 0, []), ([], 1, []), (4, 2, 5)] * 3)
    job.train(config)
    for name in COUNTS:
        saved, _ = pbg.read_embeddings(config.checkpoint_path, name, 0, 2)
        assert np.isfinite(saved).all()
    lines = pbg.read_stats(config.checkpoint_path)
    assert np.isfinite(lines[-1]["stats"]["metrics"]["loss"])


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ((0, 0, 3), r"rhs\[1\] is 3, expected -1 and a list of features: the type 'doc' is featurized"),
        (([1], 0, [3]), r"lhs\[1\] has a list of features, and its type 'user' is not featurized"),
        ((0, 0, [1, 10**6]), "rhsd_data holds 1000000; expected less than 12"),
        (([1, 2], 1, [3, 12]), "rhsd_data holds 12; expected less than 12"),
        ((9, 2, 1), r"lhs\[1\] is 9; expected less than 9, rows of"),
    ],
)
def test_edges_that_do_not_fit_are_refused(tmp_path, edge, words):
    config = configure(tmp_path)
    write(config, [EDGES[0], edge])
    with pytest.raises(FormatError, match=words):
        read(config)


SHAPE = (3, 2)


@pytest.mark.slow
def test_elementwise_state_is_that_of_torch():
    """torch's own Adagrad loads what we save, and moves on as ours does."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sums = torch.tensor([[1.0, 4.0], [9.0, 16.0], [25.0, 36.0]])
    gradient = torch.tensor([[0.5, -0.5], [1.0, 2.0], [0.0, 3.0]])
    theirs = rows.clone().requires_grad_()
    torch_adagrad = torch.optim.Adagrad([theirs], lr=0.1)
    torch_adagrad.load_state_dict(optimizer.table_state(sums.clone(), 0.1))
    theirs.grad = gradient
    torch_adagrad.step()
    optimizer.update_rows(rows, sums, torch.arange(3), gradient, 0.1)
    torch.testing.assert_close(rows, theirs.detach())
    torch.testing.assert_close(sums, torch_adagrad.state[theirs]["sum"])


def test_either_state_is_taken_over():
    by_row = optimizer.table_state(torch.tensor([1.0, 2.0, 3.0]), 0.1)
    by_element = optimizer.table_state(torch.tensor([[0.0, 2.0], [2.0, 2.0], [0.0, 6.0]]), 0.1)
    for state in (by_row, by_element):
        found = optimizer.sums_of_table_state(state, "row_adagrad", SHAPE, "here")
        assert found.tolist() == [1.0, 2.0, 3.0]
    spread = optimizer.sums_of_table_state(by_row, "adagrad", SHAPE, "here")
    assert spread.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert torch.equal(
        optimizer.sums_of_table_state(by_element, "adagrad", SHAPE, "here"), by_element["state"][0]["sum"]
    )


@pytest.mark.parametrize("sums", [torch.ones(2), torch.ones(3, 3), torch.ones(3, 2, 1), None])
def test_states_of_other_shapes_are_refused(sums):
    state = {"state": {0: {"sum": sums}}}
    for kind in ("row_adagrad", "adagrad"):
        with pytest.raises(FormatError, match="here: optimizer state: expected"):
            optimizer.sums_of_table_state(state, kind, SHAPE, "here")


@pytest.mark.parametrize("step", [math.nan, math.inf, "many", None])
def test_steps_that_are_no_number_are_refused(step):
    adagrad = optimizer.Adagrad({"key": torch.zeros(3)}, 0.1)
    with pytest.raises(FormatError, match=r"here: .* expected 'sum' and 'step' of parameter 'key'"):
        adagrad.load_state_dict({"state": {0: {"sum": torch.zeros(3), "step": step}}}, ["key"], "here")


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


@pytest.mark.parametrize("operator", PRODUCTS)
def test_plain_step_predicts_relations(operator):
    config = settings(operator, "dot", "softmax", True, **predicting(regularization_coef=0.03))
    check_step(PredictingScene(config, elementwise=operator == "diagonal"))


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("operator", PRODUCTS)
def test_grouped_step_predicts_relations(operator, side, monkeypatch):
    monkeypatch.setattr(regularizers, "EDGES_AT_A_TIME", 10)  # 25 edges: three parts
    more = predicting() | {f"disable_{side}_negs": True}
    check_same_as_step(all_negs(operator, "dot", True, **more))


def test_other_engines_leave_it_to_torch():
    with_it, without = (
        settings("diagonal", "dot", "softmax", True, train={"relation_prediction": weight})
        for weight in (WEIGHT, 0.0)
    )
    for engine in (compiled_step, fused_pass):
        assert engine.obstacle(with_it) == "train.relation_prediction"
        assert engine.obstacle(without) is None
