"""Ranking that keeps no scores counts what other ranking counts: ties, known edges, queries that edges share.

Kernels run where there is a GPU, elsewhere their reference.
"""

import numpy as np
import pytest
import torch

from bench.gpu.evaluation import rank_all
from graphmill.ask.edges import Graph, Triples
from graphmill.ask.evaluate.queries import BlockSize
from graphmill.ask.evaluate.ranker import Ranker
from graphmill.ask.model import Model
from graphmill.config import from_mapping
from graphmill.vocab import Side

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNTS = {"user": [70, 41]}


def whole_numbers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Few and small: products are exact, many tie."""
    return torch.randint(-2, 3, shape, generator=generator).float()


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
    graph, block = Graph(config, COUNTS, 2), BlockSize(40, 128)
    rng = np.random.default_rng(4)
    # few entities on each side: edges share queries, and each other's known cells
    entity = np.concatenate([np.arange(8), graph.first["user"][1] + np.arange(8)])
    known = Triples(rng.choice(entity, 300), rng.integers(2, size=300), rng.choice(entity, 300))
    edges = Triples(*(getattr(known, name)[:60] for name in ("lhs", "rel", "rhs")))
    for filtered in (known[:0], known):
        plain, fused = (
            rank_all(Ranker(model, torch.device(DEVICE), fused=each), graph, tables, edges, filtered, block)
            for each in (False, True)
        )
        for side in Side:
            np.testing.assert_array_equal(fused[side].greater, plain[side].greater)
            np.testing.assert_array_equal(fused[side].equal, plain[side].equal)
        assert sum(plain[side].equal.sum() for side in Side) > 100
