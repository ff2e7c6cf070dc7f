"""Solutions of new ids: their objective by an oracle, independence of each other, what they are good for."""

import math
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from graphmill import config as configuration
from graphmill.ask.fold_in import comparison, solver
from graphmill.ask.fold_in.frozen import FrozenModel, read_model, spread
from graphmill.ask.fold_in.new_edges import NewEdges
from graphmill.ask.fold_in.others import other_queries
from graphmill.ask.fold_in.settings import FoldInOptions
from graphmill.ask.fold_in.solver import OF_CALL, Objective, Solver, TileSizes
from graphmill.model.built_in import COMPARATORS, LOSSES, OPERATORS
from graphmill.model.plug_ins import MASKED
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import KINDS, World, tables_of, write_world
from tests.train import oracle, plug_ins

SMALL = TileSizes(32, 64, 32)
WIDE = 16  # products whose results have fewer than 12 columns are rounded by the place of a row
COMBINATIONS = [
    (kind, operator, [*COMPARATORS][(i + j) % 4], [*LOSSES][(i + 2 * j) % 3], (i + j) % 3 == 1)
    for i, operator in enumerate(OPERATORS)
    for j, kind in enumerate(KINDS)
]
Worlds = dict[str, tuple[World, FrozenModel]]


def model_of(world: World, **options: Any) -> FrozenModel:
    trained, tables = tables_of(world.config)
    return read_model(trained, tables, FoldInOptions(**{"num_candidates": 7, **options}))


def random_edges(world: World, rng: Generator, num_ids: int, most: int = 5) -> NewEdges:
    """Edges of new users, of all relations and sides that users have."""
    rows = []
    num_relations = 3 if world.config.dynamic_relations else 2
    for new in range(num_ids):
        for _ in range(int(rng.integers(0, most + 1))):
            relation = int(rng.integers(num_relations))
            sides = [side for side in Side if world.types(relation)[side] == "user"]
            side = sides[int(rng.integers(len(sides)))]
            other = world.types(relation)[side.other]
            known = int(rng.integers(len(world.vectors[other])))
            rows.append((new, relation, int(side is Side.RHS), known, world.vectors[other][known]))
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(4)]
    vectors = np.array([row[4] for row in rows], np.float32).reshape(len(rows), world.config.dimension)
    return NewEdges(*columns, vectors, rng.uniform(0.5, 2, len(rows)).astype(np.float32))


def objective_of(model: FrozenModel, edges: NewEdges) -> Objective:
    return Objective(model, "user", edges, edges.take(slice(0)), SMALL, other_queries(model, "user"))


class Oracle:
    """The objective of one id in plain loops, in float64."""

    def __init__(self, world: World, model: FrozenModel) -> None:
        self.world, self.model, self.config = world, model, world.config

    def score(self, relation: int, side: Side, query: Any, answer: Any) -> Any:
        """Score an answer for `side` to a query."""
        position = 0 if self.config.dynamic_relations else relation
        operator, two_sided = self.config.relations[position].operator, self.world.model.two_sided
        transformed = side.other if two_sided else Side.RHS
        keys = self.world.model.operator_keys(position, transformed)
        values = [self.world.model.parameters[key].double() for key in keys]
        values = [each[relation] for each in values] if self.config.dynamic_relations else values
        if transformed is side:
            answer = oracle.operate(operator, values, answer)
        else:
            query = oracle.operate(operator, values, query)
        return oracle.compare(self.config.comparator, self.config.bias, query, answer)

    def loss(self, pos: Any, negs: list[Any], num: float) -> Any:
        """Loss of a score among others, which stand for `num` negatives."""
        kind, factor = self.config.loss_fn, num / len(negs)
        more = math.log(factor) if kind == "softmax" else 0
        loss = oracle.loss_of(kind, self.config.margin, pos, [neg + more for neg in negs], len(negs))
        return factor * loss if kind == "ranking" else loss

    def asked(self, edges: NewEdges, row: int, vector: Any) -> tuple[Any, list[Any]]:
        """Score an edge's known end, and the other entities of the sample."""
        relation, side = int(edges.relation_E[row]), (Side.LHS, Side.RHS)[int(edges.is_rhs_E[row])]
        sample = self.model.samples[self.world.types(relation)[side.other]]
        known = torch.from_numpy(edges.known_ED[row]).double()
        negs = [
            self.score(relation, side.other, vector, each.double())
            for number, each in zip(sample.numbers.tolist(), sample.vectors_MD, strict=True)
            if number != edges.known_E[row]
        ]
        return self.score(relation, side.other, vector, known), negs

    def confidence(self, edges: NewEdges, vector: Any, margin: float) -> float:
        evidence = 0.0
        for row in range(len(edges.id_E)):
            pos, negs = self.asked(edges, row, vector)
            beaten = sum(float(neg < pos + margin) for neg in negs) / len(negs)
            evidence += max(0.0, 2 * beaten - 1)
        return evidence / (evidence + 5)

    def objective(self, edges: NewEdges, mean: Any, spread: Any, vector: Any) -> Any:
        strength = self.model.options.prior_strength
        total = strength / 2 * ((vector - mean) / spread).square().sum()
        for row in range(len(edges.id_E)):
            relation, side = int(edges.relation_E[row]), (Side.LHS, Side.RHS)[int(edges.is_rhs_E[row])]
            known = torch.from_numpy(edges.known_ED[row]).double()
            types, weight = self.world.types(relation), float(edges.weight_E[row])
            sample = self.model.samples[types[side.other]]
            pos, negs = self.asked(edges, row, vector)
            # a masked entity of the sample stands for nothing, and is counted
            negs += [torch.tensor(MASKED, dtype=torch.float64)] * (len(sample.numbers) - len(negs))
            num = self.model.num_negatives(relation, side.other)
            total += weight * self.loss(pos, negs, num)
            own = self.model.samples[types[side]].vectors_MD
            negs = [self.score(relation, side, known, each.double()) for each in own]
            num = self.model.num_negatives(relation, side)
            pos = self.score(relation, side, known, vector)
            if self.config.loss_fn == "logistic":  # its negatives do not move: they are left out
                total += weight * torch.nn.functional.softplus(-pos) + weight * math.log(2)
            else:
                total += weight * self.loss(pos, negs, num)
            examples = 2 if self.world.model.two_sided else 1
            added = self.model.global_of("user")
            row_D = vector if added is None else vector - added.double()
            if self.config.train.popularity:
                row_D = row_D[1:]
            operator = self.config.entry(relation).operator
            total += self.config.regularization_coef * examples * oracle.n3(operator, row_D)
        return total + (self.as_others(vector) if len(edges.id_E) else 0)

    def as_others(self, vector: Any) -> Any:
        """The loss of other queries, of which the id is a negative."""
        total: Any = 0.0
        for types, edges in self.model.edges.items():
            for side, name in zip(Side, types, strict=True):
                if name != "user":
                    continue
                sample = self.model.samples["user"]
                for row, relation in enumerate(edges.relation_E.tolist()):
                    query = torch.from_numpy(edges.vectors[side.other][row]).double()
                    answer = torch.from_numpy(edges.vectors[side][row]).double()
                    pos, own = (self.score(relation, side, query, each) for each in (answer, vector))
                    num = self.model.num_negatives(relation, side)
                    share = num / sample.num_entities
                    if self.config.loss_fn == "softmax":
                        others = [self.score(relation, side, query, each.double()) for each in sample.more_ND]
                        scaled = torch.logsumexp(torch.stack(others), 0) + math.log(num / len(others))
                        loss = torch.nn.functional.softplus(own - torch.logaddexp(pos, scaled))
                    elif self.config.loss_fn == "ranking":
                        loss = (own - pos + self.config.margin).clamp_min(0)
                    else:
                        loss, share = torch.nn.functional.softplus(own), 1 / sample.num_entities
                    total += loss * share * edges.stands_for * float(edges.weight_E[row])
        return total


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "operator", "comparator", "loss_fn", "bias"), COMBINATIONS)
def test_objective_and_gradient(tmp_path, kind, operator, comparator, loss_fn, bias, rng):
    own = {"loss_fn": loss_fn, "margin": 0.3, "regularization_coef": 0.05, "bias": bias}
    own |= {"num_uniform_negs": 20, "num_batch_negs": 0}
    train = {"reciprocal_relations": kind == "reciprocal", "popularity": operator == "none"}
    names = {"operator": operator, "comparator": comparator}
    world = write_world(tmp_path, **names, **own, **KINDS[kind], train=train)
    model = model_of(world, num_known_edges=12)
    edges = random_edges(world, rng, 3)
    objective = objective_of(model, edges)
    point = objective.mean_BD + objective.spread_D * torch.from_numpy(
        rng.normal(size=objective.mean_BD.shape).astype(np.float32)
    )
    loss_B, slope_BD = objective(point)
    for number in range(3):
        own = edges.take(np.flatnonzero(edges.id_E == number))
        leaf = point[number].double().requires_grad_()
        mean = objective.mean_BD[number].double()
        expected = Oracle(world, model).objective(own, mean, objective.spread_D.double(), leaf)
        assert float(loss_B[number]) == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-3)
        (slope,) = torch.autograd.grad(expected, leaf)
        scale = float(slope.abs().max()) + 1e-3
        assert torch.allclose(slope_BD[number].double(), slope, atol=2e-4 * scale), (number, len(own.id_E))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    found: Worlds = {}
    for kind, own in KINDS.items():
        operator, folder = "linear" if kind == "static" else "complex_diagonal", tmp_path_factory.mktemp(kind)
        world = write_world(folder, operator=operator, loss_fn="softmax", dimension=WIDE, **own)
        found[kind] = world, model_of(world, num_candidates=16)
    return found


@pytest.mark.slow
@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32), num_ids=st.integers(1, 80))
@settings(max_examples=12)
def test_an_id_has_the_same_bytes_beside_others(worlds: Worlds, kind: str, seed: int, num_ids: int) -> None:
    world, model = worlds[kind]
    rng = np.random.default_rng(seed)
    edges = random_edges(world, rng, num_ids)
    solver = Solver(model, "user", SMALL)
    together = solver.solve(edges, num_ids)
    chosen = rng.permutation(num_ids)[: rng.integers(1, num_ids + 1)]
    rows = [np.flatnonzero(edges.id_E == number) for number in chosen]
    some = edges.take(np.concatenate(rows))
    again = np.repeat(np.arange(len(chosen)), [len(each) for each in rows])
    apart = solver.solve(some._replace(id_E=again), len(chosen))
    assert np.array_equal(apart.vectors_BD, together.vectors_BD[chosen])
    assert np.array_equal(apart.confidence_B, together.confidence_B[chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_solves_as_a_job(worlds: Worlds, kind: str, rng: Generator) -> None:
    world, model = worlds[kind]
    edges = random_edges(world, rng, 12)
    jobs = Solver(model, "user").solve(edges, 12)
    calls = Solver(model, "user", OF_CALL).solve(edges, 12)
    assert np.allclose(jobs.vectors_BD, calls.vectors_BD, atol=1e-3)
    assert np.allclose(jobs.confidence_B, calls.confidence_B, atol=0.05)  # the sample has ties


def test_edges_are_read_for_a_few_ids_at_a_time(worlds, rng, monkeypatch):
    """The known ends of a block take limited memory, even if those of one tile do not."""
    world, model = worlds["static"]
    edges = random_edges(world, rng, 12)
    expected = Solver(model, "user").solve(edges, 12)
    monkeypatch.setattr(solver, "MOST_FLOATS", 6 * WIDE)
    tables = tables_of(world.config)[1]
    blocks = solver.solutions(model, tables, "user", edges, edges.take(slice(0)), 12)
    for start, solution in blocks:
        own = slice(start, start + len(solution.vectors_BD))
        assert np.isin(edges.id_E, np.arange(12)[own]).sum() <= 6
        assert np.array_equal(solution.vectors_BD, expected.vectors_BD[own])


@pytest.mark.parametrize(("kind", "comparator"), [*zip(cycle(KINDS), COMPARATORS)])
def test_solutions_beat_their_priors(tmp_path: Path, kind: str, comparator: str, rng: Generator) -> None:
    world = write_world(tmp_path, operator="translation", comparator=comparator, **KINDS[kind])
    model = model_of(world)
    edges = random_edges(world, rng, SMALL.ids)
    solution = Solver(model, "user", SMALL).solve(edges, SMALL.ids)
    objective = objective_of(model, edges)
    before_B, _ = objective(objective.mean_BD)
    after_B, _ = objective(torch.from_numpy(solution.vectors_BD))
    has_edges_B = np.bincount(edges.id_E, minlength=SMALL.ids) > 0
    assert (after_B[has_edges_B] < before_B[has_edges_B]).all()
    assert np.array_equal(solution.vectors_BD[~has_edges_B], objective.mean_BD.numpy()[~has_edges_B])
    assert (solution.confidence_B[~has_edges_B] == 0).all()
    assert ((solution.confidence_B >= 0) & (solution.confidence_B < 1)).all()


def test_confidence_counts_the_edges_that_beat_chance(worlds: Worlds, rng: Generator) -> None:
    world, model = worlds["dynamic"]
    edges = random_edges(world, rng, SMALL.ids)
    solution = Solver(model, "user", SMALL).solve(edges, SMALL.ids)
    vectors_BD = torch.from_numpy(solution.vectors_BD).double()
    of_ids = [edges.take(np.flatnonzero(edges.id_E == number)) for number in range(SMALL.ids)]
    least, most = (  # the sample has ties
        [Oracle(world, model).confidence(*own, margin) for own in zip(of_ids, vectors_BD, strict=True)]
        for margin in (-1e-4, 1e-4)
    )
    assert len(set(least)) > 5
    assert np.mean(np.equal(least, most)) > 0.5
    assert (solution.confidence_B > np.array(least) - 1e-6).all()
    assert (solution.confidence_B < np.array(most) + 1e-6).all()


class Waves:
    """An objective with hills, of one id: two steps of the first twelve climb."""

    spread_D, mean_BD, tells_losses = torch.ones(1), torch.tensor([[4.0]]), True

    def __call__(self, vectors_BD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss_BD = vectors_BD.square() / 2 + (3 * vectors_BD).sin()
        return loss_BD.sum(1), vectors_BD + 3 * (3 * vectors_BD).cos()

    def allowed(self, vectors_BD: torch.Tensor) -> torch.Tensor:
        return vectors_BD


def test_the_best_point_is_the_result() -> None:
    waves: Any = Waves()
    losses = [float(waves(solver.minimised(waves, num_points))[0]) for num_points in range(1, 20)]
    assert losses == sorted(losses, reverse=True)
    assert losses[8:13] == [losses[8]] * 5  # nothing better is found from the ninth point on
    assert losses[-1] == pytest.approx(0.1081, abs=1e-4)


def test_max_norm_holds(tmp_path: Path, rng: Generator) -> None:
    world = write_world(tmp_path, max_norm=0.5)
    model = model_of(world)
    edges = random_edges(world, rng, 8)
    solution = Solver(model, "user", SMALL).solve(edges, 8)
    added = model.global_of("user")
    assert added is not None
    moved = (solution.confidence_B > 0) & (np.bincount(edges.id_E, minlength=8) > 0)
    norms = np.linalg.norm(solution.vectors_BD - added.numpy(), axis=1)[moved]
    prior = np.linalg.norm(model.priors["user"].mean_D - added.numpy())
    assert (norms <= max(0.5, prior) + 1e-5).all()


def test_priors_of_mentions(worlds: Worlds) -> None:
    """An id without edges has the prior of the sides on which it is mentioned, else that of its type."""
    world, model = worlds["dynamic"]
    none = random_edges(world, np.random.default_rng(0), 0)
    one = [np.array([number]) for number in (1, 2, 0, -1)]
    mentions = NewEdges(*one, np.empty((1, 0), np.float32), np.ones(1, np.float32))
    solution = Solver(model, "user", SMALL).solve(none, 2, mentions)
    numbers = [lhs for lhs, rel, _ in world.edges["train"] if rel == 2]
    mean = model.priors["user"].mean_D.astype(float)
    gaps = world.vectors["user"][numbers] - mean
    assert solution.vectors_BD[0] == pytest.approx(mean, abs=1e-6)
    assert solution.vectors_BD[1] == pytest.approx(mean + gaps.sum(0) / (len(numbers) + 8), abs=1e-5)
    assert (solution.confidence_B == 0).all()


def test_without_the_edges_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = write_world(tmp_path, splits=())
    model = model_of(world)
    assert "there are no such edges; priors are those of types" in caplog.text
    edges = random_edges(world, np.random.default_rng(1), 4)
    assert np.isfinite(Solver(model, "user", SMALL).solve(edges, 4).vectors_BD).all()


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**63))
def test_spread(num_rows: int, count: int, seed: int) -> None:
    numbers = spread(num_rows, count, seed)
    assert len(set(numbers.tolist())) == min(num_rows, count)
    assert sorted(numbers.tolist()) == numbers.tolist()
    assert 0 <= numbers[0] <= numbers[-1] < num_rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "operator"), [*zip(KINDS, ("linear", "diagonal", "complex_diagonal"), strict=True)]
)
def test_plug_ins_solve_as_built_ins(tmp_path: Path, kind: str, operator: str, rng: Generator) -> None:
    assert plug_ins.Diagonal  # the import registers the built-ins, written again
    world = write_world(tmp_path, operator=operator, comparator="l2", loss_fn="softmax", **KINDS[kind])
    raw = world.config.model_dump(mode="json")
    raw["comparator"] = "my_l2"
    for relation in raw["relations"]:
        relation["operator"] = f"my_{operator}"
    again = replace(world, config=configuration.from_mapping(raw))
    edges = random_edges(world, rng, 6)
    expected = Solver(model_of(world), "user", SMALL).solve(edges, 6)
    found = Solver(model_of(again), "user", SMALL).solve(edges, 6)
    assert np.allclose(found.vectors_BD, expected.vectors_BD, atol=0.05)
    raw |= {"loss_fn": "my_softmax"}
    with_loss = replace(world, config=configuration.from_mapping(raw))
    moved = Solver(model_of(with_loss), "user", SMALL).solve(edges, 6)
    has_edges_B = np.bincount(edges.id_E, minlength=6) > 0
    assert np.isfinite(moved.vectors_BD).all()
    assert (moved.confidence_B[has_edges_B] > 0).any()
    assert (np.abs(moved.vectors_BD - expected.vectors_BD).max(1)[~has_edges_B] == 0).all()
    start = objective_of(model_of(with_loss), edges)
    _, slope_BD = start(start.mean_BD)
    _, at_end_BD = start(torch.cat([torch.from_numpy(moved.vectors_BD), start.mean_BD[6:]]))
    assert at_end_BD[:6].norm() < slope_BD[:6].norm()


@pytest.mark.parametrize("is_compiled", [True, False])
@given(
    num_ids=st.integers(1, 5),
    num_queries=st.integers(1, 70),
    shift=st.sampled_from([-1000.0, -90.0, -15.0, 0.0, 15.0, 79.0, 1000.0]),
    temperature=st.sampled_from([1.0, 3.0]),
    seed=st.integers(0, 2**32),
)
def test_sums_of_log_1_plus_exp_and_their_slopes(is_compiled, num_ids, num_queries, shift, temperature, seed):
    rng = np.random.default_rng(seed)
    offset, weight = rng.normal(size=num_queries), rng.uniform(0, 100, num_queries)
    score = temperature * (shift + 4 * rng.normal(size=(num_ids, num_queries)))
    score_BQ, offset_Q, weight_Q = (torch.from_numpy(each).float() for each in (score, offset, weight))
    gap = ((score_BQ.double() - offset_Q.double()) / temperature).clamp_max(80)
    odds = gap.exp()
    expected_B, slope_BQ = torch.log1p(odds) @ weight_Q.double(), odds / (1 + odds) * weight_Q
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(comparison, "library", lambda: None)
        elif comparison.library() is None:
            pytest.skip("no compiler")
        loss_B, found_BQ = comparison.weighted_softplus(score_BQ.clone(), offset_Q, weight_Q, temperature)
        apart_B, _ = comparison.weighted_softplus(score_BQ[-1:].clone(), offset_Q, weight_Q, temperature)
    # A gap of 80 has an error of 4e-6, which its exp has too; below -87 all is 0.
    assert torch.allclose(loss_B.double(), expected_B, rtol=2e-5, atol=1e-30)
    assert torch.allclose(found_BQ.double(), slope_BQ.double(), rtol=2e-5, atol=1e-30)
    if is_compiled:
        assert apart_B[0] == loss_B[-1]
