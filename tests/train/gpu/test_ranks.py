"""Ranking by kernels counts what ranking by torch counts: ties, known edges, queries that edges share."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.config import from_mapping
from graphmill.vocab import Side
from train.evaluation import ranking
from train.evaluation.queries import Slots, Triples
from train.evaluation.ranking import Ranker
from train.gpu import reference
from train.model.model import Model

pytest.importorskip("triton", reason="triton comes with torch's builds for CUDA")

from train.gpu import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNTS = {"user": [70, 41]}


def whole_numbers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Few and small: products are exact, many tie."""
    return torch.randint(-2, 3, shape, generator=generator).float()


@settings(max_examples=8, deadline=None)
@given(
    dimension=st.integers(1, 200),
    num_queries=st.integers(1, 130),
    num_rows=st.integers(1, 400),
    seed=st.integers(0, 1000),
)
def test_counts(dimension: int, num_queries: int, num_rows: int, seed: int) -> None:
    check_counts(dimension, num_queries, num_rows, seed)


@pytest.mark.slow
def test_counts_of_several_programs() -> None:
    check_counts(20, 70, 64 * 64 + 100, seed=1)


def check_counts(dimension: int, num_queries: int, num_rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query_QD, table_ND = (
        whole_numbers(generator, rows, dimension).to(DEVICE) for rows in (num_queries, num_rows)
    )
    row_T = torch.randint(num_rows, (num_queries,), generator=generator).to(DEVICE)
    query_T = torch.arange(num_queries, device=DEVICE)
    score_Q = kernels.pair_scores(query_QD, table_ND, query_T, row_T)
    torch.testing.assert_close(score_Q, reference.pair_scores(query_QD, table_ND, query_T, row_T))
    for found, wanted in zip(
        kernels.count_above(query_QD, table_ND, score_Q),
        reference.count_above(query_QD, table_ND, score_Q),
        strict=True,
    ):
        assert torch.equal(found, wanted)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies by numpy, which rounds by place")
def test_a_row_ties_with_itself_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    query_QD, table_ND = (torch.randn(rows, 100, generator=generator).to(DEVICE) for rows in (50, 300))
    row_T = torch.randint(300, (50,), generator=generator).to(DEVICE)
    score_Q = kernels.pair_scores(query_QD, table_ND, torch.arange(50, device=DEVICE), row_T)
    _, equal_Q = kernels.count_above(query_QD, table_ND, score_Q)
    assert (equal_Q == 1).all()


@pytest.mark.parametrize("dynamic", [False, True])
def test_ranks(dynamic: bool) -> None:
    config = from_mapping(
        {
            "output": ".",
            "entities": {"user": {"num_partitions": 2}},
            "relations": [
                {"name": f"r{number}", "lhs": "user", "rhs": "user", "operator": "diagonal"}
                for number in range(1 if dynamic else 2)
            ],
            "dynamic_relations": dynamic,
            "global_emb": False,
            "dimension": 6,
            "comparator": "dot",
        }
    )
    generator = torch.Generator().manual_seed(3)
    model = Model(config, 2 if dynamic else None).to(DEVICE)
    for key, initial in model.state_dict().items():
        model.parameters[key] = whole_numbers(generator, *initial.shape).to(DEVICE)
    tables = {("user", part): whole_numbers(generator, count, 6) for part, count in enumerate(COUNTS["user"])}
    slots = Slots(config, COUNTS, 2, 128)
    rng = np.random.default_rng(4)
    # few entities on each side: edges share queries, and each other's known cells
    entity = np.concatenate([np.arange(8), slots.first["user"][1] + np.arange(8)])
    known = Triples(rng.choice(entity, 300), rng.integers(2, size=300), rng.choice(entity, 300))
    edges = Triples(*(getattr(known, name)[:60] for name in ("lhs", "rel", "rhs")))
    for filtered in (known.part(0, 0), known):
        plain, fused = (
            ranking.rank(Ranker(model, torch.device(DEVICE), fused=each), slots, tables, edges, filtered, 40)
            for each in (False, True)
        )
        for side in Side:
            np.testing.assert_array_equal(fused[side].greater, plain[side].greater)
            np.testing.assert_array_equal(fused[side].equal, plain[side].equal)
        assert sum(plain[side].equal.sum() for side in Side) > 100
