"""QueryBatch: the same as their edges one by one, among all entities."""

import math
import sys
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from graphmill.machine.variants import LIMIT_VARIABLE, has_bfloat16_products
from graphmill.vocab import Side
from tests.pairs import pairs
from tests.train.graphs import (
    node_graph,
    relation,
    saved,
)
from tests.train.oracle import adagrad
from tests.train.step.test_plain import COMPARATORS, COUNTS, OPERATORS, Scene, settings
from train import job
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.edges import batches
from train.edges.batches import EdgeTensors
from train.edges.one_vs_all import QueryBatch
from train.edges.own_rows import OwnRows
from train.step import queries as query_module
from train.step.queries import QueryStep

ENGINES = ["torch", "compiled"]
MADE = QueryStep  # what `engine` makes


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    """Let the tests' steps be PyTorch's, or compiled."""
    if request.param == "compiled":
        library = compiled_step.library(double=True)
        if library is None:
            pytest.skip("no C++ compiler")

        def made(config, *own):
            return CompiledQueryStep(config, *own, library)

        monkeypatch.setattr(sys.modules[__name__], "MADE", made)


def all_negs(operator, comparator, dynamic, **more):
    relations = [{"name": "likes", "lhs": "user", "rhs": "item", "operator": operator, "all_negs": True}]
    if not dynamic:
        relations.append({**relations[0], "name": "knows", "rhs": "user"})
    # what adds the same to all scores of a query has no gradient but noise, which Adagrad blows up
    usual = {"relations": relations, "batch_size": 100, "global_emb": comparator != "dot" and not dynamic}
    return settings(operator, comparator, "softmax", dynamic, **(usual | more))


def known_of(scene):
    """Edges that are not trained: some of the queries' own, others, and those of another relation."""
    drawn = Scene(scene.config, scene.relation, seed=9, num_edges=12)
    lhs, rel, rhs = map(torch.tensor, zip(*drawn.edges, *scene.edges[:4], strict=True))
    if scene.batch.rel_B is None:
        rel[:2] = 1 - scene.relation
    return EdgeTensors(lhs, rel, rhs, None)


def queries_of(scene, known=None, seed=1):
    generator, num = torch.Generator().manual_seed(seed), len(scene.config.relations)
    rows = {side: [len(table)] * num for side, table in scene.side_tables.items()}
    edges = EdgeTensors(*map(torch.tensor, zip(*scene.edges, strict=True)), scene.batch.weight_B)
    found = list(batches.cut_for_training(scene.config, edges, generator, rows, known))
    if scene.is_weighted:
        return [replace(each, own=OwnRows(1, 4, 0.3)) for each in found]
    return found


def step(scene, batch):
    return MADE(scene.config, scene.model, scene.adagrad)(batch, scene.side_tables, torch.Generator())


def violators(scene, queries):
    """The numbers of answers that score below another entity, of lhs and of rhs."""
    rows = {side: table.embeddings_ND for side, table in scene.side_tables.items()}
    place = queries.relation, queries.side
    query = scene.model.query(*place, rows[queries.side.other][queries.entity_Q], queries.rel_Q)
    score_QN = scene.model.matrix_scores(query, scene.model.candidates(*place, rows[queries.side]))
    is_below = score_QN[queries.query_A, queries.answer_A] < score_QN.amax(1)[queries.query_A]
    return tuple(int(is_below.sum()) if side is queries.side else 0 for side in Side)


def check_same_as_step(config, relation=0, elementwise=False, num_edges=25):
    """One side's queries move everything as a step on their edges with all_negs does."""
    scenes = [Scene(config, relation, num_edges=num_edges, elementwise=elementwise) for _ in range(2)]
    expected = scenes[0].step()
    (queries,) = queries_of(scenes[1])
    assert isinstance(queries, QueryBatch)
    assert queries.num_edges == num_edges
    num_violators = violators(scenes[1], queries)
    figures = step(scenes[1], queries)
    assert (int(figures.violators_lhs), int(figures.violators_rhs)) == num_violators
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(figures.loss, expected.loss, **close)
    torch.testing.assert_close(figures.reg, expected.reg, **close)
    torch.testing.assert_close(scenes[1].state(), scenes[0].state(), **close)
    return figures


@pytest.mark.parametrize(
    ("operator", "comparator", "dynamic", "side", "more", "relation", "elementwise", "height", "engine"),
    pairs(
        list(OPERATORS),
        COMPARATORS,
        [False, True],
        list(Side),
        [
            {},
            {"regularization_coef": 0.03},
            {"bias": True, "global_emb": False},
            {"max_norm": 0.5},
            {"train": {"reciprocal_relations": True}},
        ],
        [0, 1],  # two types, one type
        [False, True],
        [1000, 2],  # all queries at a time, few
        ENGINES,
    ),
    indirect=["engine"],
)
def test_questions_equal_their_edges(
    monkeypatch, operator, comparator, dynamic, side, more, relation, elementwise, height, engine
):
    monkeypatch.setitem(query_module.SCORE_BYTES, "cpu", 4 * COUNTS["item"] * height)
    # dynamic relations are reciprocal, and one side regularises as often as half of the edges
    dynamic = dynamic and more.keys().isdisjoint({"train", "regularization_coef"})
    config = all_negs(operator, comparator, dynamic, **more, **{f"disable_{side}_negs": True})
    check_same_as_step(config, 0 if dynamic else relation, elementwise)


@pytest.mark.usefixtures("engine")
def test_both_directions_regularise_as_often_as_the_edges():
    """N3 alone gives the same result, whether edges or their queries are counted."""
    for dynamic in (False, True):
        config = all_negs("complex_diagonal", "dot", dynamic, regularization_coef=0.03)
        scene = Scene(config, num_edges=25)
        cut = queries_of(scene)
        expected = scene.step().reg
        # each from the state before the first of them
        found = [step(Scene(config, num_edges=25), queries).reg for queries in cut]
        assert len(found) == 2
        torch.testing.assert_close(sum(found), expected)


@pytest.mark.usefixtures("engine")
def test_popularity_is_left_out_of_the_regularizer():
    moved = []
    for coefficient, popularity in ((0.03, True), (0.0, False), (0.03, False)):
        more = {"regularization_coef": coefficient, "train": {"popularity": popularity}}
        scene = Scene(all_negs("none", "dot", False, **more), num_edges=25, elementwise=True)
        step(scene, queries_of(scene)[0])
        moved.append(torch.cat([table.embeddings_ND for table in scene.tables.values()]))
    own, free, usual = moved
    assert torch.equal(own[:, 0], free[:, 0])
    assert torch.equal(own[:, 1:], usual[:, 1:])
    assert not torch.equal(usual[:, 0], free[:, 0])


def test_popularity_starts_at_one(tmp_path, rng):
    settings = {"relations": [relation("none", all_negs=True)], "train": {"popularity": True}}
    config = node_graph(tmp_path, rng, 30, 90, lr=1e-9, num_epochs=1, **settings)
    job.train(config)
    vectors = saved(config)["node", 0]
    torch.testing.assert_close(vectors[:, 0], torch.ones(30))
    assert vectors[:, 1:].abs().max() < 0.1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_every_edge_is_asked_about_on_both_sides(dynamic):
    scene = Scene(all_negs("none", "dot", dynamic).model_copy(update={"batch_size": 4}), num_edges=40)
    asked = {side: [] for side in Side}
    found = queries_of(scene)
    for queries in found:
        assert len(queries.entity_Q) <= 4
        place_A = queries.query_A
        rel_A = torch.full_like(place_A, scene.relation) if queries.rel_Q is None else queries.rel_Q[place_A]
        ends = queries.entity_Q[place_A], queries.answer_A
        lhs, rhs = ends if queries.side is Side.RHS else ends[::-1]
        columns = (each.tolist() for each in (lhs, rel_A, rhs, queries.weight_A))
        asked[queries.side] += zip(*columns, strict=True)
    edges = sorted((*edge, w) for edge, w in zip(scene.edges, scene.batch.weight_B.tolist(), strict=True))
    assert sorted(asked[Side.LHS]) == sorted(asked[Side.RHS]) == edges
    assert sum(queries.num_edges for queries in found) == 40


class Raced(QueryStep):
    """A step during which another thread moves all rows and parameters."""

    def move(self, batch, tables, lr_scale):
        self._moved = [*self.model.parameters.values(), *(table.embeddings_ND for table in tables.values())]
        return super().move(batch, tables, lr_scale)

    def _compare(self, *given):
        for tensor in self._moved:
            tensor.add_(0.0)
        return super()._compare(*given)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_another_thread_may_move_what_a_step_reads(operator, dynamic):
    moved = []
    for kind in (QueryStep, Raced):
        scene = Scene(all_negs(operator, "dot", dynamic), num_edges=25)
        step = kind(scene.config, scene.model, scene.adagrad)
        for queries in queries_of(scene):
            step(queries, scene.side_tables, torch.Generator())
        moved.append([*scene.model.parameters.values(), *(t.embeddings_ND for t in scene.tables.values())])
    torch.testing.assert_close(*moved, rtol=0, atol=0)


@pytest.mark.parametrize("has_products", [True, False])
def test_half_precision_is_close(monkeypatch, has_products):
    """Without products of bfloat16 it has no effect."""
    if not has_products:
        monkeypatch.setenv(LIMIT_VARIABLE, "avx2")
    elif not has_bfloat16_products():
        pytest.skip("the processor has no products of bfloat16")
    config = all_negs("complex_diagonal", "dot", True, half_precision=True)
    figures = []
    for half in (False, True):
        scene = Scene(config.model_copy(update={"half_precision": half}), num_edges=25)
        step = QueryStep(scene.config, scene.model, scene.adagrad)
        figures.append([step(each, scene.side_tables, torch.Generator()) for each in queries_of(scene)])
    for exact, near in zip(*figures, strict=True):
        assert bool(exact.loss != near.loss) is has_products
        torch.testing.assert_close(near.loss, exact.loss, rtol=0.02, atol=0.1)


@pytest.mark.usefixtures("engine")
def test_edges_without_weight_move_nothing():
    config = all_negs("complex_diagonal", "dot", True, disable_lhs_negs=True)
    scene = Scene(config, num_edges=25)
    scene.batch.weight_B.zero_()
    before = {name: table.embeddings_ND.clone() for name, table in scene.tables.items()}
    for queries in queries_of(scene):
        assert step(scene, queries).loss == 0
    assert max(scene.adagrad.steps.values()) == 1  # as of any step
    for name, table in scene.tables.items():
        assert torch.equal(table.embeddings_ND, before[name])


def with_candidates(scene, known=None, drawn=None, log_weights=None):
    """The queries of `queries_of`, with candidates: some rows of their table, by default all."""
    found = []
    for each in queries_of(scene, known):
        rows_C = torch.tensor(drawn or list(range(len(scene.side_tables[each.side]))))
        weight_C = torch.tensor(log_weights or [0.0] * len(rows_C), dtype=torch.float64)
        mass_C = torch.zeros_like(weight_C)
        found.append(replace(each, candidate_C=rows_C, log_weight_C=weight_C, mass_C=mass_C))
    return found


@pytest.mark.parametrize(
    ("more", "relation", "height", "has_known", "is_weighted", "engine"),
    pairs(
        [
            {},
            {"regularization_coef": 0.03},
            {"max_norm": 0.5},
            {"disable_lhs_negs": True},
            {"train": {"reciprocal_relations": True}},
            {"train": {"freeze": ["item"]}},
            {"train": {"relation_prediction": 0.5}, "dynamic_relations": True, "global_emb": False},
        ],
        [0, 1],  # two types, one type
        [1000, 2],  # whole, in parts
        [False, True],  # all, delta
        [False, True],  # weights of entities: all 1, others
        ENGINES,
    ),
    indirect=["engine"],
)
def test_a_sample_of_all_entities_equals_all_entities(
    monkeypatch, more, relation, height, has_known, is_weighted, engine
):
    monkeypatch.setitem(query_module.SCORE_BYTES, "cpu", 4 * COUNTS["user"] * height)
    dynamic = more.get("dynamic_relations", False)
    config = all_negs("complex_diagonal", "dot", dynamic, **more)
    scenes = [Scene(config, 0 if dynamic else relation, num_edges=25, elementwise=True) for _ in range(2)]
    figures = []
    for scene, cut in zip(scenes, (queries_of, with_candidates), strict=True):
        scene.is_weighted = is_weighted
        step = MADE(config, scene.model, scene.adagrad)
        known = known_of(scene) if has_known else None
        figures.append([step.move(each, scene.side_tables, 1.0)[0] for each in cut(scene, known)])
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(figures[1], figures[0], **close)
    torch.testing.assert_close(scenes[1].state(), scenes[0].state(), **close)


def sampled_loss(scene, queries, tables, known):
    """The loss of each answer among all answers of its query and the weighted candidates, one by one.

    Other known answers are left out.

    Returns also each candidate's share of the softmax, by its own weight, summed up over the queries.
    """
    total = torch.zeros((), dtype=torch.float64)
    mass = [0.0] * len(queries.candidate_C)
    for number, entity in enumerate(queries.entity_Q.tolist()):
        rel = None if queries.rel_Q is None else queries.rel_Q[number : number + 1]
        vector = tables[queries.side.other][[entity]]
        query = scene.model.query(queries.relation, queries.side, vector, rel)
        candidates = scene.model.candidates(queries.relation, queries.side, tables[queries.side])
        scores = (query @ candidates.T)[0]
        places = (queries.query_A == number).nonzero()[:, 0]
        answers = queries.answer_A[places].tolist()
        asked = queries.relation if rel is None else int(rel), entity
        left_out = {*answers, *known.get((queries.side, *asked), ())}
        others = [
            (place, row) for place, row in enumerate(queries.candidate_C.tolist()) if row not in left_out
        ]
        own, log_own_N = queries.own, torch.zeros_like(scores)
        log_own_N[own.start : own.stop] = math.log(own.weight)
        scores_N = scores + log_own_N
        weighted = [scores_N[row] + queries.log_weight_C[place] for place, row in others]
        z = torch.stack([*(scores_N[row] for row in sorted(set(answers))), *weighted]).logsumexp(0)
        weights = queries.weight_A[places]
        total = total + ((z - scores[answers]) * weights).sum()
        for place, row in others:
            mass[place] += float((scores_N[row] - z).detach().exp() * weights.sum())
    return total, mass


@pytest.mark.parametrize(
    ("dynamic", "sample", "side", "height", "has_known", "is_weighted", "engine"),
    pairs(
        [False, True],
        [([0, 3, 6], None), ([2], [1.5]), ([1, 1, 4, 6, 6], [0.5, 0.5, 2, -1, -1])],  # rows, log weights
        list(Side),
        [1000, 2],  # whole, in parts
        [False, True],  # all, delta
        [False, True],  # weights of entities: all 1, others
        ENGINES,
    ),
    indirect=["engine"],
)
def test_a_sample_by_autograd(monkeypatch, dynamic, sample, side, height, has_known, is_weighted, engine):
    drawn, log_weights = sample
    monkeypatch.setitem(query_module.SCORE_BYTES, "cpu", 4 * len(drawn) * height)
    config = all_negs("complex_diagonal", "dot", dynamic, **{f"disable_{side}_negs": True})
    scene, other = (Scene(config, num_edges=25, elementwise=True) for _ in range(2))
    scene.is_weighted = is_weighted
    known = known_of(scene) if has_known else None
    (queries,) = with_candidates(scene, known, drawn, log_weights)
    known_answers = defaultdict(set)
    for lhs, rel, rhs in (
        [] if known is None else zip(*(c.tolist() for c in (known.lhs, known.rel, known.rhs)), strict=True)
    ):
        known_answers[Side.RHS, rel, lhs].add(rhs)
        known_answers[Side.LHS, rel, rhs].add(lhs)
    embeddings, parameters = other.leaves()
    other.model.parameters.update(parameters)
    entry = config.relations[0]
    loss, mass = sampled_loss(
        other, queries, {s: embeddings[entry.entity_type(s)] for s in Side}, known_answers
    )
    loss.backward()
    figures, _ = MADE(config, scene.model, scene.adagrad).move(queries, scene.side_tables, 1.0)
    torch.testing.assert_close(figures.loss, loss.detach())
    torch.testing.assert_close(queries.mass_C, torch.tensor(mass, dtype=torch.float64))
    for name, leaf in embeddings.items():
        expected, sums = adagrad(leaf.detach(), other.tables[name].sums, leaf.grad, config.lr)
        torch.testing.assert_close(scene.tables[name].embeddings_ND, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(scene.tables[name].sums, sums, rtol=1e-9, atol=1e-9)
    for key, leaf in parameters.items():
        if leaf.grad is not None:
            expected, _ = adagrad(leaf.detach(), torch.full_like(leaf, 0.1), leaf.grad, config.relation_lr)
            torch.testing.assert_close(scene.model.parameters[key], expected, rtol=1e-9, atol=1e-9)
