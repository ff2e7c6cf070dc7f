"""The compiled step and passes on queries beside PyTorch's, which the oracle tests: digit by digit."""

import math
import shutil
import stat
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from graphmill.ask.model import Model
from graphmill.cluster.runtime import cpu_threads
from graphmill.config import from_mapping
from graphmill.config.sections.train import TrainConfig
from graphmill.machine import variants
from graphmill.vocab import Side
from tests.train.graphs import make_config, random_triples, write_graph
from train import job
from train.compiled import compiled_step, query_passes
from train.compiled.compiled_step import CompiledStep, obstacle
from train.compiled.query_passes import CompiledPasses
from train.edges.negative_sampling import Batch
from train.model import optimizer
from train.plan.decide import steps_for
from train.step.plain import PlainStep
from train.step.queries import TORCH
from train.step.table import Table

NUM_RELATIONS = 5
RELATIONS = [
    {"name": f"r{i}", "lhs": "node", "rhs": "node", "operator": "complex_diagonal"} for i in range(3)
]

pytestmark = pytest.mark.skipif(compiled_step.library() is None, reason="no C++ compiler")


@st.composite
def cases(draw):
    """A configuration that the kernel supports, counts of rows and edges, a seed."""
    comparator = draw(st.sampled_from(["dot", "cos", "l2", "squared_l2"]))
    dynamic = draw(st.booleans())
    one_type = draw(st.booleans())
    loss_fn = draw(st.sampled_from(["ranking", "softmax", "logistic"]))
    raw = {
        "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
        "relations": [
            {
                "name": "likes",
                "lhs": "user",
                "rhs": "user" if one_type else "item",
                "operator": draw(st.sampled_from(["none", "diagonal", "translation", "complex_diagonal"])),
                "all_negs": draw(st.integers(0, 7)) == 0,
            }
        ],
        "dimension": 2 * draw(st.integers(1, 40)),
        "comparator": comparator,
        "loss_fn": loss_fn,
        "dynamic_relations": dynamic,
        "global_emb": not dynamic and draw(st.booleans()),
        "output": "unused",
        "num_batch_negs": draw(st.sampled_from([0, 1, 3, 8, 33, 70])),
        "num_uniform_negs": draw(st.integers(0, 40)),
        "disable_lhs_negs": draw(st.integers(0, 7)) == 0,
        "lr": 0.1,
        "relation_lr": 0.05,
        "margin": 0.5,
        "max_norm": draw(st.sampled_from([None, 2.0])),
        "regularization_coef": draw(st.sampled_from([0.0, 0.03])),
        "train": {
            "reciprocal_relations": not dynamic and draw(st.booleans()),
            "chunk_edges": draw(st.sampled_from([1, 7, 40, 100])),
        },
    }
    counts = {"user": draw(st.integers(2, 60)), "item": draw(st.integers(2, 60))}
    num_edges, num_steps = draw(st.integers(1, 150)), draw(st.sampled_from([1, 1, 2, 3]))
    return (
        from_mapping(raw),
        counts,
        num_edges * num_steps,
        draw(st.booleans()),
        draw(st.integers(0, 99)),
        num_steps,
    )


class World:
    """A model, tables and a batch, all random."""

    def __init__(self, config, counts, num_edges, element_wise, seed, num_steps, dtype):
        draw = torch.Generator().manual_seed(seed)
        dynamic = config.dynamic_relations
        self.config = config
        self.model = Model(config, NUM_RELATIONS if dynamic else None).to("cpu", torch.float64)
        for key, value in self.model.parameters.items():
            self.model.parameters[key] = torch.randn(value.shape, generator=draw, dtype=torch.float64)
        self.model.to("cpu", dtype)
        self.adagrad = optimizer.Adagrad(self.model.parameters, config.relation_lr)
        for sums in self.adagrad.sums.values():  # from 0, a gradient that is but noise would be a whole step
            sums += torch.rand(sums.shape, generator=draw, dtype=torch.float64).to(dtype) + 0.1
        entry = config.relations[0]
        self.tables = {
            name: Table(
                torch.randn(count, config.dimension, generator=draw, dtype=torch.float64).to(dtype),
                torch.rand(
                    (count, config.dimension)[: 1 + element_wise], generator=draw, dtype=torch.float64
                ).to(dtype)
                + 0.1,
            )
            for name, count in counts.items()
        }
        self.sides = {side: self.tables[entry.entity_type(side)] for side in Side}
        index = {
            side: torch.randint(counts[entry.entity_type(side)], (num_edges,), generator=draw)
            for side in Side
        }
        rel_B = torch.randint(NUM_RELATIONS, (num_edges,), generator=draw) if dynamic else None
        weight_B = torch.rand(num_edges, generator=draw, dtype=torch.float64).to(dtype) + 0.5
        self.batch = Batch(0, index, rel_B, weight_B, num_steps=num_steps)

    def step(self, make, *more):
        step = make(self.config, self.model, self.adagrad, *more)
        step.lr_scale = 0.7
        figures = [step(self.batch, self.sides, torch.Generator().manual_seed(s)) for s in range(2)]
        return torch.tensor([[float(each) for each in row] for row in figures], dtype=torch.float64)


def check_same(ours, theirs, **close):
    for name, table in theirs.tables.items():
        torch.testing.assert_close(ours.tables[name].embeddings_ND, table.embeddings_ND, **close)
        torch.testing.assert_close(ours.tables[name].sums, table.sums, **close)
    for key, value in theirs.model.parameters.items():
        torch.testing.assert_close(ours.model.parameters[key], value, **close)
        torch.testing.assert_close(ours.adagrad.sums[key], theirs.adagrad.sums[key], **close)
    assert ours.adagrad.steps == theirs.adagrad.steps


@pytest.mark.slow
@settings(max_examples=100)
@given(cases())
def test_equals_the_torch_step(case):
    assert obstacle(case[0]) is None
    torch_world, kernel_world = World(*case, torch.float64), World(*case, torch.float64)
    expected = torch_world.step(PlainStep)
    found = kernel_world.step(CompiledStep, compiled_step.library(double=True))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    check_same(kernel_world, torch_world, rtol=1e-7, atol=1e-7)


def wide(half: bool):
    """Two chunks of 64 edges and 140 negatives, softmax of ComplEx: what the kernel is made for."""
    return from_mapping(
        {
            "entities": {"user": {"num_partitions": 1}},
            "relations": [{"name": "all", "lhs": "user", "rhs": "user", "operator": "complex_diagonal"}],
            "dynamic_relations": True,
            "global_emb": False,
            "dimension": 100,
            "comparator": "dot",
            "loss_fn": "softmax",
            "lr": 0.1,
            "relation_lr": 0.1,
            "num_batch_negs": 20,
            "num_uniform_negs": 120,
            "half_precision": half,
            "output": "unused",
            "train": {"chunk_edges": 64},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_single_precision(half):
    """The distance from float64 is within the precision of the products' operands."""
    case = {"user": 500}, 128, True, 3, 1
    exact, kernel_world = World(wide(False), *case, torch.float64), World(wide(half), *case, torch.float32)
    exact.step(PlainStep)
    kernel_world.step(CompiledStep, compiled_step.library())
    rough = half and compiled_step.library().graphmill_has_half()
    found, expected = (world.tables["user"].embeddings_ND for world in (kernel_world, exact))
    error = (found.double() - expected).abs()
    assert error.max() < (0.05 if rough else 5e-5)
    assert error.mean() < (1e-3 if rough else 5e-7)
    assert not rough or error.max() > 1e-5  # bfloat16 was really used


@pytest.mark.slow
def test_processors_of_another_level_differ_by_rounding_alone(monkeypatch):
    """AVX2 sums eight numbers at a time, AVX-512 sixteen."""
    monkeypatch.setenv(variants.LIMIT_VARIABLE, "avx2")
    narrow = compiled_step.library.__wrapped__()
    assert "v4" not in narrow.origin
    case = wide(False), {"user": 500}, 128, True, 3, 1
    here, there = World(*case, torch.float32), World(*case, torch.float32)
    found, expected = there.step(CompiledStep, narrow), here.step(CompiledStep, compiled_step.library())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    check_same(there, here, rtol=1e-4, atol=1e-5)


def test_one_thread_repeats_to_the_last_bit():
    case = wide(False), {"user": 500}, 256, False, 3, 2
    first, second = World(*case, torch.float32), World(*case, torch.float32)
    first.step(CompiledStep, compiled_step.library())
    second.step(CompiledStep, compiled_step.library())
    check_same(first, second, rtol=0, atol=0)


@pytest.mark.slow
def test_several_threads_learn_as_one_does(tmp_path):
    """Hogwild: four threads on one table, in batches of 50, end with a loss like that of one."""
    losses = {}
    triples = random_triples(np.random.default_rng(1), 200, 3, 200, 3000)
    for workers in (1, 4):
        config = make_config(tmp_path / str(workers), dimension=32, num_epochs=10, workers=workers,
                             relations=RELATIONS, init_scale=0.1)  # fmt: skip
        write_graph(config, {"node": 200}, triples)
        losses[workers] = job.train(config)["loss"]
    assert losses[4] == pytest.approx(losses[1], rel=0.1)


def test_without_a_compiler_torch_does_the_steps(monkeypatch, caplog):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level("INFO", "graphmill"):
        assert compiled_step.library.__wrapped__() is None
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_told_of(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(variants, "FLAGS", ("-no-such-flag",))
    assert compiled_step.library.__wrapped__() is None
    assert "no-such-flag" in caplog.text
    assert not list((tmp_path / "graphmill").iterdir())  # nothing half done is left


@pytest.mark.slow
def test_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(variants, "FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC"))
    assert compiled_step.library.__wrapped__() is not None
    (made,) = (tmp_path / "graphmill").iterdir()
    before = made.stat().st_mtime_ns
    assert compiled_step.library.__wrapped__() is not None
    assert made.stat().st_mtime_ns == before
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert not list((tmp_path / "tmp").iterdir())


def no_home(path):
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["a file", "no home"])
def test_compiled_where_nobody_has_a_home(monkeypatch, tmp_path, cache):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "" if cache == "no home" else str(tmp_path / "a file"))
    monkeypatch.setattr(Path, "expanduser", no_home)  # of a user without a name, where HOME is not set
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(variants, "FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC"))
    assert compiled_step.library.__wrapped__() is not None
    assert not list((tmp_path / "tmp").iterdir())  # it is loaded by then


@pytest.mark.parametrize(
    "change",
    [{"bias": True}, {"relations": ["linear"]}, {"train": TrainConfig(engine="plain")}],
    ids=["bias", "linear", "plain"],
)
def test_what_the_compiled_step_cannot_train_is_left_to_torch(change):
    config, cpu = wide(False), torch.device("cpu")
    if "relations" in change:
        change = {"relations": [config.relations[0].model_copy(update={"operator": "linear"})]}
    assert steps_for(config, cpu, []) == {"edges": "compiled"}
    changed = config.model_copy(update=change)
    reasons = []
    assert steps_for(changed, cpu, reasons) == {"edges": "plain"}
    if "train" not in change:
        assert reasons == [f"the compiled step cannot train {obstacle(changed)}"]


@pytest.fixture
def passes():
    return CompiledPasses(query_passes.library())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 65, 4003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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


@pytest.mark.parametrize("place", [0, 63, 64, 66])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_a_number_does_not_get_lost(passes, number, place):
    score_QN = torch.zeros(2, 67)
    score_QN[1, place] = number
    found = passes.softmax(score_QN)
    assert found.total_Q.isfinite().tolist() == [True, False]
    assert found.odds_QN.isfinite().all(1).tolist() == [True, False]


@pytest.mark.parametrize("element_wise", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("dimension", [1, 16, 37])
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
