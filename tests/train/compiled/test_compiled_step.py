"""The compiled step and passes on queries beside PyTorch's, which the oracle tests: digit by digit."""

import math
import shutil

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from graphmill.cluster.runtime import cpu_threads
from graphmill.machine import variants
from tests.pairs import pairs
from tests.train.step.test_plain import COMPARATORS, LOSSES, Scene, settings
from train.compiled import compiled_step, query_passes
from train.compiled.compiled_step import CompiledStep, obstacle
from train.compiled.query_passes import CompiledPasses
from train.step.plain import PlainStep
from train.step.queries import TORCH
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


def wide_scene(half, **more):
    """Two chunks of 64 edges and 140 negatives, softmax of ComplEx: what the kernel is made for."""
    wide = {"dimension": 100, "num_batch_negs": 20, "num_uniform_negs": 120, "half_precision": half}
    config = settings("complex_diagonal", "dot", "softmax", True, **wide, train={"chunk_edges": 64})
    return Scene(config, 0, 3, 128, True, {"user": 500, "item": 500}, **more)


SHAPES = [  # dimension, uniform negatives, edges of a chunk
    ("complex_diagonal", "dot", "softmax", 100, 140, 64),
    ("diagonal", "dot", "softmax", 18, 1, 5),
    ("translation", "cos", "ranking", 34, 45, 33),
    ("translation", "l2", "softmax", 130, 31, 77),
    ("complex_diagonal", "dot", "logistic", 400, 63, 100),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_single_precision(half, shape):
    """The distance from float64 is within the precision of what is multiplied; PyTorch's products stay."""

    def scene(half, dtype):
        more = {
            "dimension": shape[3],
            "num_uniform_negs": shape[4],
            "num_batch_negs": 0,
            "half_precision": half,
        }
        config = settings(*shape[:3], True, **more, train={"chunk_edges": shape[5]})
        return Scene(config, 0, 3, 128, True, {"user": 500, "item": 500}, dtype=dtype)

    exact, rounded = scene(False, torch.float64), scene(half, torch.float32)
    moved(exact)
    matrix = torch.randn(64, 64).bfloat16()  # by the registers of the step where it takes tiles
    before = matrix @ matrix
    moved(rounded, CompiledStep, compiled_step.library())
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
        moved(wide_scene(False, dtype=torch.float32), CompiledStep, library)
        for library in (narrow, compiled_step.library(), compiled_step.library())
    )
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, here, rtol=0, atol=0)


def test_without_a_compiler_torch_does_the_steps(monkeypatch, caplog):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level("INFO", "graphmill"):
        assert compiled_step.library.__wrapped__() is None
    assert "no C++ compiler" in caplog.text


@pytest.fixture
def passes():
    return CompiledPasses(query_passes.library())


@pytest.mark.parametrize(
    ("num_threads", "width", "dtype"), pairs([1, 3], [1, 15, 16, 4003], [torch.float32, torch.bfloat16])
)
def test_softmax_is_that_of_exact_numbers(passes, dtype, width, num_threads):
    generator = torch.Generator().manual_seed(width)
    score_QN = (torch.randn(70, width, generator=generator) * 20).to(dtype)
    score_QN[3, -1] = -1e30
    exact_QN = score_QN.double()
    with cpu_threads(num_threads):
        found = passes.softmax(score_QN)
    assert torch.equal(found.best_Q.double(), exact_QN.amax(1))
    torch.testing.assert_close(found.total_Q.double(), exact_QN.logsumexp(1), rtol=1e-6, atol=1e-6)
    assert found.odds_QN.data_ptr() == score_QN.data_ptr()
    rounding = 1e-5 + (2.0**-8 if dtype is torch.bfloat16 else 0)  # scores have six digits
    torch.testing.assert_close(
        found.odds_QN.double(), exact_QN.softmax(1), rtol=rounding, atol=1e-37, check_dtype=False
    )


@pytest.mark.parametrize(("number", "place"), [(math.nan, 0), (math.inf, 63), (math.nan, 64), (math.inf, 66)])
def test_what_is_not_a_number_does_not_get_lost(passes, number, place):
    score_QN = torch.zeros(2, 67)
    score_QN[1, place] = number
    found = passes.softmax(score_QN)
    assert found.total_Q.isfinite().tolist() == [True, False]
    assert found.odds_QN.isfinite().all(1).tolist() == [True, False]


@pytest.mark.parametrize(
    ("element_wise", "max_norm", "dimension"), pairs([False, True], [None, 1.0], [1, 16, 37])
)
def test_rows_move_as_torch_moves_them(passes, dimension, max_norm, element_wise):
    generator = torch.Generator().manual_seed(dimension)
    embeddings_ND = torch.randn(500, dimension, generator=generator)
    sums = torch.rand((500, dimension) if element_wise else 500, generator=generator)
    sums[7] = math.inf  # a row that rests
    ours = [Table(embeddings_ND.clone(), sums.clone()) for _ in range(2)]
    theirs = Table(embeddings_ND.clone(), sums.clone())
    rows_K = torch.randint(0, 300, (20_000,), generator=generator)
    gradient_KD = torch.randn(len(rows_K), dimension, generator=generator)
    for table, num_threads in zip(ours, (1, 5), strict=True):
        with cpu_threads(num_threads):
            passes.update_rows(table, rows_K, gradient_KD, 0.3, max_norm)
    TORCH.update_rows(theirs, rows_K, gradient_KD, 0.3, max_norm)
    for part in ("embeddings_ND", "sums"):
        one, several = (getattr(table, part) for table in ours)
        assert torch.equal(one, several), "the number of threads changes nothing"
        torch.testing.assert_close(one, getattr(theirs, part), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[0].embeddings_ND[300:], embeddings_ND[300:])
    if max_norm is None:
        assert torch.equal(ours[0].embeddings_ND[7], embeddings_ND[7])
