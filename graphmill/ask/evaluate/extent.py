"""Number of edges that an evaluation ranks: all of them within its budget, else a sample.

The budget is counted, not timed, so that equal inputs give equal metrics. A score of a ranking costs one
product of D numbers. A training edge has num_batch_negs + num_uniform_negs negatives and itself on both
sides, and each score costs a product forward and two backward. So training, in scores of a ranking, takes

    edges x epochs x 2 x (1 + negatives) x 3

and a ranking may take `evaluate.budget` of it. ALWAYS scores are minutes, and always allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.ask.edges import Numbers
from graphmill.config import Config
from graphmill.display.readable import number
from graphmill.vocab import Side

ALWAYS = 10**13
"""Products of two numbers that are always allowed: 10^11 scores of 100 dimensions."""


@dataclass(frozen=True)
class Extent:
    """Edges to rank of those there are, and why, for the log."""

    num_edges: int
    of_edges: int
    reason: str
    is_asked_for: bool = False
    """Whether `evaluate.sample` has decided."""

    @property
    def is_sampled(self) -> bool:
        """Whether edges are left out."""
        return self.num_edges < self.of_edges


def extent_of(config: Config, of_edges: int, num_entities: Mapping[str, int], num_trained: int) -> Extent:
    """Choose how many of a split's edges to rank, where training reads `num_trained` edges in an epoch."""
    settings = config.evaluate
    if settings.sample is not None:
        return Extent(min(settings.sample, of_edges), of_edges, f"evaluate.sample is {settings.sample}", True)
    if settings.budget == "unlimited":
        return Extent(of_edges, of_edges, "evaluate.budget is unlimited")
    per_edge = scores_per_edge(config, num_entities)
    training = training_scores(config, num_entities, num_trained)
    dimension = max(config.entity_dimension(name) for name in num_entities)
    allowed = max(settings.budget * training, ALWAYS / dimension)
    affordable = max(1, int(allowed // max(per_edge, 1)))
    share = f"{settings.budget:g} of the training's work" if allowed > ALWAYS / dimension else "some minutes"
    all_edges = number(per_edge * of_edges / allowed)
    reason = f"{number(per_edge)} scores an edge, all edges take {all_edges} times the budget of {share}"
    return Extent(min(affordable, of_edges), of_edges, reason)


def scores_per_edge(config: Config, num_entities: Mapping[str, int]) -> int:
    """Scores of both sides of an edge, for the relation with most candidates."""
    return max(
        sum(num_entities[relation.entity_type(side)] for side in Side) for relation in config.relations
    )


def training_scores(config: Config, num_entities: Mapping[str, int], num_trained: int) -> float:
    """The work of training, in scores of a ranking."""
    negatives = config.num_compared(max(num_entities.values()))
    return float(num_trained) * config.num_epochs * 2 * (1 + negatives) * 3


def told(extent: Extent, split: str) -> str:
    """Say how many edges are ranked, why, and how to rank others."""
    num, total = f"{extent.num_edges:,}", f"{extent.of_edges:,}"
    text = f"evaluate: ranking {num} of {total} edges of {split}, drawn at random: {extent.reason}"
    key = "evaluate.sample: null" if extent.is_asked_for else "evaluate.budget: unlimited"
    return f"{text}; {key} ranks all"


def drawn_rows(seed: int, counts: Sequence[int], num_drawn: int) -> list[Numbers]:
    """Draw rows of files with so many rows each, without replacement; the rows of each file, ascending."""
    ends = np.cumsum([0, *counts])
    total = int(ends[-1])
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.choice(total, min(num_drawn, total), replace=False, shuffle=False))
    places = np.searchsorted(drawn, ends).tolist()
    return [
        drawn[first:last] - end for first, last, end in zip(places, places[1:], ends.tolist(), strict=False)
    ]
