"""Counts from rounded products, against float64 one pair at a time, and without scores kept."""

import itertools
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmill import config as configuration
from graphmill.ask.evaluate import comparison as module
from graphmill.ask.evaluate import counts as counts_module
from graphmill.ask.evaluate.comparison import ComparedEdges, Comparison, dtypes
from graphmill.ask.model import Model
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.vocab import Side

CPU = torch.device("cpu")


def model_of(comparator: str, bias: bool, dimension: int, precision: str, operator: str = "none") -> Model:
    relations = [{"name": "r", "lhs": "user", "rhs": "user", "operator": operator}]
    raw = {"output": ".", "entities": {"user": {"num_partitions": 1}}, "relations": relations}
    raw |= {"dimension": dimension, "comparator": comparator, "bias": bias}
    return Model(configuration.from_mapping(raw | {"evaluate": {"precision": precision}}))


def near_misses(generator: torch.Generator, num: int, dimension: int, scale: float, varied: bool) -> Tensor:
    """Vectors of which many are copies, or differ in the last bits of float32 or of bfloat16: [num, D].

    If not `varied`, they have one sign and about one length: bfloat16 errs as much as the bound says.
    """
    if not varied:
        return torch.linspace(1, 1.02, num).unsqueeze(1).expand(-1, dimension) * scale
    few = torch.randn(4, dimension, generator=generator)
    vectors = few[torch.randint(4, (num,), generator=generator)]
    place = torch.randint(5, (num, 1), generator=generator)
    bits = torch.tensor([0.0, 2.0**-23, 2.0**-16, 2.0**-8, 1.0])[place]
    vectors = vectors * (1 + bits * torch.randn(num, dimension, generator=generator))
    lengths = 10.0 ** torch.randint(-2, 3, (num, 1), generator=generator)
    vectors[::7] *= lengths[::7]
    vectors[::11] = 0
    return vectors * scale


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=15, derandomize=True)
@given(
    comparator=st.sampled_from(("dot", "cos", "l2", "squared_l2")),
    bias=st.booleans(),
    dimension=st.sampled_from((3, 16, 101)),
    exponent=st.integers(-20, 17),
    seed=st.integers(0, 1000),
)
@example(comparator="dot", bias=False, dimension=100, exponent=19, seed=1)  # products overflow
@example(comparator="squared_l2", bias=True, dimension=7, exponent=18, seed=2)
@example(comparator="l2", bias=False, dimension=7, exponent=-16, seed=3)
def test_counts_are_exact(compiled, comparator, bias, dimension, exponent, seed):
    if comparator == "l2" and bias:
        return  # not ordered as products are: compared as float32 has it
    generator = torch.Generator().manual_seed(seed)
    num_queries, num_candidates, num_edges, side = 9, 70, 30, Side.RHS
    counts = {}
    for precision in ("float32", "bfloat16"):
        generator.manual_seed(seed)
        model = model_of(comparator, bias, dimension, precision)
        kind = 10.0**exponent, seed % 2 == 0
        query_PD = model.query(0, side, near_misses(generator, num_queries, dimension, *kind))
        table_ND = model.candidates(0, side, near_misses(generator, num_candidates, dimension, *kind))
        row_C = torch.randint(num_queries, (num_edges,), generator=generator).sort().values
        own_C = torch.randint(num_candidates, (num_edges,), generator=generator)
        left_out = tuple(torch.randint(each, (40,), generator=generator) for each in (num_queries, 60))
        own_column_C = torch.where(torch.arange(num_edges) % 5 == 0, -1, own_C)
        comparison = Comparison(model, CPU)
        score_C = comparison.own_scores(query_PD[row_C], table_ND[own_C], side)
        edges = ComparedEdges(row_C, score_C, own_column_C, (left_out[0], left_out[1]), 66)
        factors = comparison.queries(query_PD), comparison.candidates(table_ND)
        library = counts_module.library() if compiled else None
        with (
            mock.patch.multiple(module, MANY_PAIRS=1.0, MANY_COMPILED=1.0),  # else float32 decides
            mock.patch.object(counts_module, "library", lambda found=library: found),
        ):
            counts[precision] = comparison.count(edges, *factors, side)
    pairs = itertools.product(query_PD.double(), table_ND.double())
    score_PN = torch.stack([model.edge_scores(*pair, side) for pair in pairs]).view(num_queries, -1)
    counts_PN = torch.ones_like(score_PN, dtype=torch.bool)
    counts_PN[left_out] = False
    counts_PN[:, 66:] = False
    counts_CN = counts_PN[row_C]
    chosen = own_column_C >= 0
    counts_CN[chosen, own_column_C[chosen]] = False
    higher_C = ((score_PN[row_C] > score_C[:, None]) & counts_CN).sum(1)
    equal_C = ((score_PN[row_C] == score_C[:, None]) & counts_CN).sum(1)
    for found in counts.values():
        assert found.tolist() == [higher_C.tolist(), equal_C.tolist()]


@pytest.mark.parametrize("dimension", [1, 33, 1000])
def test_the_score_of_a_pair_depends_on_nothing_else(dimension: int) -> None:
    generator = torch.Generator().manual_seed(0)
    model = model_of("dot", False, dimension, "float32")
    query_TD, table_TD = (torch.randn(300, dimension, generator=generator) for _ in range(2))
    comparison = Comparison(model, CPU)
    scores = comparison.own_scores(query_TD, table_TD, Side.LHS)
    for rows in (slice(0, 1), slice(7, 9), slice(3, 300), slice(299, 300)):
        assert torch.equal(comparison.own_scores(query_TD[rows], table_TD[rows], Side.LHS), scores[rows])


@pytest.mark.parametrize(("quantile", "most"), [(0.999, 1 / 100), (0.5, 1 / 1000)])
def test_few_pairs_are_in_doubt(quantile: float, most: float) -> None:
    """The bound is of use: bfloat16 tells most pairs apart, and float32 those near an edge in the middle."""
    if quantile == 0.5 and counts_module.library() is None:
        pytest.skip("no compiler: another product in float32 decides where many are in doubt")
    generator = torch.Generator().manual_seed(0)
    model = model_of("dot", False, 100, "bfloat16")
    scored: list[int] = []
    edge_scores = model.edge_scores

    def counted(queries: Tensor, candidates: Tensor, side: Side) -> Tensor:
        scored.append(len(queries))
        return edge_scores(queries, candidates, side)

    model.edge_scores = counted  # type: ignore[method-assign,assignment]
    comparison = Comparison(model, CPU)
    query_PD, table_ND = (torch.randn(rows, 100, generator=generator) for rows in (64, 1000))
    none = torch.empty(0, dtype=torch.int64)
    own_C = (query_PD @ table_ND.T).double().quantile(quantile, dim=1)
    edges = ComparedEdges(torch.arange(64), own_C, torch.full((64,), -1), (none, none), 1000)
    comparison.count(edges, comparison.queries(query_PD), comparison.candidates(table_ND), Side.LHS)
    assert sum(scored) < 64 * 1000 * most


def test_products_in_bfloat16_are_chosen_by_the_settings() -> None:
    config = model_of("dot", False, 4, "auto").config
    assert dtypes(config, CPU)[-1] is torch.float32
    for precision, expected in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        chosen = config.with_section(EvaluateConfig.model_validate({"precision": precision}))
        assert dtypes(chosen, CPU)[0] is expected
