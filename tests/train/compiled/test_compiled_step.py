"""The compiled steps beside PyTorch's, which the oracle tests: digit by digit."""

import copy
import math
import shutil
from dataclasses import replace
from functools import partial

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from graphmill.machine import variants
from graphmill.vocab import Side
from tests.pairs import pairs
from tests.train.step.test_plain import COMPARATORS, LOSSES, Scene, settings
from tests.train.step.test_queries import all_negs, queries_of
from train.compiled import compiled_step
from train.compiled.compiled_queries import CompiledQueryStep
from train.compiled.compiled_step import CompiledStep, obstacle
from train.step.plain import PlainStep
from train.step.queries import QueryStep
from train.step.step import Table

pytestmark = pytest.mark.skipif(compiled_step.library() is None, reason="no C++ compiler")


@st.composite
def cases(draw):
    """A scene of a configuration that the kernel supports."""
    dynamic = draw(st.booleans())
    config = settings(
        draw(st.sampled_from(["none", "diagonal", "translation", "complex_diagonal"])),
        draw(st.sampled_from(COMPARATORS)),
        draw(st.sampled_from(LOSSES)),
        dynamic,
        dimension=2 * draw(st.integers(1, 40)),
        global_emb=not dynamic and draw(st.booleans()),
        num_batch_negs=draw(st.sampled_from([0, 1, 3, 8, 33, 70])),
        num_uniform_negs=draw(st.integers(0, 40)),
        disable_lhs_negs=draw(st.integers(0, 7)) == 0,
        margin=0.5,
        max_norm=draw(st.sampled_from([None, 2.0])),
        regularization_coef=draw(st.sampled_from([0.0, 0.03])),
        train={
            "reciprocal_relations": not dynamic and draw(st.booleans()),
            "chunk_edges": draw(st.sampled_from([1, 7, 40, 100])),
        },
    )
    update = {"all_negs": draw(st.integers(0, 7)) == 0}
    relations = [each.model_copy(update=update) for each in config.relations]
    num_steps = draw(st.sampled_from([1, 1, 2, 3]))
    return {
        "config": config.model_copy(update={"relations": relations}),
        "relation": 0 if dynamic else draw(st.integers(0, 1)),  # of two types, of one
        "seed": draw(st.integers(0, 99)),
        "num_edges": num_steps * draw(st.integers(1, 150)),
        "elementwise": draw(st.booleans()),
        "counts": {"user": draw(st.integers(2, 60)), "item": draw(st.integers(2, 60))},
        "num_steps": num_steps,
    }


def moved(scene, make=PlainStep, *more):
    """Figures of two steps, and all that they have moved."""
    step = make(scene.config, scene.model, scene.adagrad, *more)
    step.lr_scale = 0.7
    figures = [step(scene.batch, scene.side_tables, torch.Generator().manual_seed(s)) for s in range(2)]
    numbers = [float(each) for row in figures for each in row]
    return torch.tensor(numbers, dtype=torch.float64), scene.state(), scene.adagrad.steps


@pytest.mark.slow
@hypothesis.settings(max_examples=60)
@given(cases())
def test_equals_the_torch_step(case):
    assert obstacle(case["config"]) is None
    found = moved(Scene(**case), CompiledStep, compiled_step.library(double=True))
    torch.testing.assert_close(found, moved(Scene(**case)), rtol=1e-7, atol=1e-7)


class OfPartitions(Scene):
    """Edges between two partitions of one type."""

    @property
    def side_tables(self):
        return dict(zip(Side, self.tables.values(), strict=True))


def test_two_partitions_move_what_is_added_to_all_rows_of_their_type():
    config = settings("none", "dot", "softmax", False, global_emb=True, num_uniform_negs=5)
    ours, theirs = (OfPartitions(config, 1, 3, 30, True, {"user": 20, "item": 20}) for _ in range(2))
    found = moved(ours, CompiledStep, compiled_step.library(double=True))
    torch.testing.assert_close(found, moved(theirs), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_equal_vectors_do_not_pull_at_each_other(loss):
    """Their distance has no gradient; sums of many are not exact."""
    config = settings("none", "l2", loss, True, num_uniform_negs=40)
    scene = Scene(config, 0, 3, 100, True, MANY)
    for table in scene.tables.values():
        table.embeddings_ND.fill_(0.5)
    moved(scene, CompiledStep, compiled_step.library(double=True))
    assert all((table.embeddings_ND == 0.5).all() for table in scene.tables.values())


MANY = {"user": 500, "item": 500}
SHAPES = [  # dimension, uniform negatives, edges of a chunk
    ("complex_diagonal", "dot", "softmax", 100, 140, 64),  # what the kernel is made for
    ("diagonal", "dot", "softmax", 18, 1, 5),
    ("translation", "cos", "ranking", 34, 45, 33),
    ("translation", "l2", "softmax", 130, 31, 77),
    ("complex_diagonal", "cos", "logistic", 400, 363, 100),  # whose product would be infinite
]


def wide_scene(shape, dtype, *, half=False, num_batch_negs=0):
    names, (dimension, num_negs, chunk_edges) = shape[:3], shape[3:]
    negatives = {"num_uniform_negs": num_negs, "num_batch_negs": num_batch_negs}
    more = {"dimension": dimension, "half_precision": half, "train": {"chunk_edges": chunk_edges}}
    return Scene(settings(*names, True, **negatives, **more), 0, 3, 128, True, MANY, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_single_precision(half, shape):
    """The distance from float64 is within the precision of what is multiplied; PyTorch's products stay."""
    exact, rounded = wide_scene(shape, torch.float64), wide_scene(shape, torch.float32, half=half)
    figures = moved(exact)[0]
    matrix = torch.randn(64, 64).bfloat16()  # by the registers of the step where it takes tiles
    before = matrix @ matrix
    found = moved(rounded, CompiledStep, compiled_step.library())[0]
    torch.testing.assert_close(found, figures, rtol=0.05, atol=1)
    torch.testing.assert_close(matrix @ matrix, before, rtol=0, atol=0)
    rough = half and compiled_step.library().graphmill_has_half()
    error = (rounded.tables["user"].embeddings_ND.double() - exact.tables["user"].embeddings_ND).abs()
    assert error.max() < (0.05 if rough else 5e-5)
    assert error.mean() < (1e-3 if rough else 5e-7)
    assert not rough or error.max() > 1e-5  # bfloat16 was really used


@pytest.mark.slow
def test_processors_of_another_level_differ_by_rounding_alone(monkeypatch):
    """AVX2 sums eight numbers at a time, AVX-512 sixteen; the same twice is the same to the last bit."""
    monkeypatch.setenv(variants.LIMIT_VARIABLE, "avx2")
    narrow = compiled_step.library.__wrapped__()
    assert "v4" not in narrow.origin
    there, here, again = (
        moved(wide_scene(SHAPES[0], torch.float32, num_batch_negs=20), CompiledStep, library)
        for library in (narrow, compiled_step.library(), compiled_step.library())
    )
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, here, rtol=0, atol=0)


def test_without_a_compiler_torch_does_the_steps(monkeypatch, caplog):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    caplog.set_level("INFO", "graphmill")
    assert compiled_step.library.__wrapped__() is None
    assert "no C++ compiler" in caplog.text


def sampled_queries_of(scene):
    """Queries of many edges, and 40 candidates, some of them answers."""
    draw = torch.Generator().manual_seed(1)
    for each in queries_of(scene):
        rows_C = torch.cat([torch.randint(0, 500, (35,), generator=draw), each.answer_A[:5]]).sort().values
        weight_C = torch.rand(len(rows_C), generator=draw)
        yield replace(each, candidate_C=rows_C, log_weight_C=weight_C, mass_C=torch.zeros(len(rows_C)))


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_queries_in_single_precision(half):
    def result(half, dtype, *library):
        more = {"dimension": 100, "half_precision": half, "batch_size": 70, "regularization_coef": 0.03}
        config = all_negs("complex_diagonal", "dot", True, **more)
        scene = Scene(config, 0, 3, 300, True, MANY, dtype=dtype)
        make = CompiledQueryStep if library else QueryStep
        step = make(config, scene.model, scene.adagrad, *library)
        cut = list(sampled_queries_of(scene))
        loss = sum(float(step.move(each, scene.side_tables, 0.7)[0].loss) for each in cut)
        mass = torch.cat([each.mass_C for each in cut]).double()
        return loss, mass, scene.tables["user"].embeddings_ND.double()

    exact = result(False, torch.float64)
    found = result(half, torch.float32, compiled_step.library())
    rough = half and compiled_step.library().graphmill_has_half()
    assert found[0] == pytest.approx(exact[0], rel=1e-3 if rough else 1e-6)
    torch.testing.assert_close(found[1], exact[1], rtol=0.1 if rough else 1e-3, atol=1e-3)
    error = (found[2] - exact[2]).abs()
    assert error.max() < (0.1 if rough else 5e-4)
    assert error.mean() < (1e-3 if rough else 1e-6)
    assert not rough or error.max() > 1e-5  # bfloat16 was really used


@pytest.mark.parametrize("global_emb", [False, True])
def test_parts_of_an_update_are_all_of_it(global_emb):
    """In any order, and after another batch has begun with a workspace of its own."""
    states = []
    for num_parts in (1, 3):
        more = {"global_emb": global_emb, "regularization_coef": 0.03}
        scene = Scene(all_negs("complex_diagonal", "cos", not global_emb, **more), 0, 3, 300, True, MANY)
        step = CompiledQueryStep(scene.config, scene.model, scene.adagrad, compiled_step.library(double=True))
        before = copy.deepcopy(scene.state())
        ends = [step.begin(each, scene.side_tables, 0.7, num_parts) for each in sampled_queries_of(scene)]
        torch.testing.assert_close(scene.state(), before, rtol=0, atol=0)
        for parts in ends:
            assert len([end() for end in reversed(parts)]) == num_parts
        states.append(scene.state())
        assert not torch.equal(scene.tables["user"].embeddings_ND, before[0][0])
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_a_number_does_not_get_lost(number):
    """In a candidate, which answers no query."""
    scene = Scene(all_negs("none", "dot", True, disable_lhs_negs=True), 0, 3, 30, True, dtype=torch.float32)
    scene.tables["item"].embeddings_ND[6, 0] = number
    each = next(sampled_queries_of(scene))
    own = each.answer_A != 6
    each = replace(each, **{name: getattr(each, name)[own] for name in ("query_A", "answer_A", "weight_A")})
    one = {"candidate_C": torch.tensor([6]), "log_weight_C": torch.zeros(1), "mass_C": torch.zeros(1)}
    step = CompiledQueryStep(scene.config, scene.model, scene.adagrad, compiled_step.library())
    assert not math.isfinite(step.move(replace(each, **one), scene.side_tables, 1.0)[0].loss)


@pytest.mark.parametrize(
    ("element_wise", "max_norm", "dimension"), pairs([False, True], [None, 1.0], [1, 16, 37])
)
def test_rows_move_as_torch_moves_them(dimension, max_norm, element_wise):
    """Also rows that repeat; operators of PyTorch move them so."""
    generator = torch.Generator().manual_seed(dimension)
    embeddings_ND = torch.randn(500, dimension, generator=generator)
    sums = torch.rand((500, dimension) if element_wise else 500, generator=generator)
    sums[7] = math.inf  # a row that rests
    ours, theirs = (Table(embeddings_ND.clone(), sums.clone()) for _ in range(2))
    rows_K = torch.randint(0, 300, (20_000,), generator=generator)
    gradient_KD = torch.randn(len(rows_K), dimension, generator=generator)
    scene = Scene(settings("linear", "dot", "softmax", False))
    for table, make in (
        (ours, partial(CompiledQueryStep, library=compiled_step.library())),
        (theirs, QueryStep),
    ):
        make(scene.config, scene.model, scene.adagrad)._update_rows(table, rows_K, gradient_KD, 0.3, max_norm)
    for part in ("embeddings_ND", "sums"):
        torch.testing.assert_close(getattr(ours, part), getattr(theirs, part), rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.embeddings_ND[300:], embeddings_ND[300:])
    if max_norm is None:
        assert torch.equal(ours.embeddings_ND[7], embeddings_ND[7])
