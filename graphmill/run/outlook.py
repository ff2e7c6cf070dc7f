"""Estimates of a run before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = dict[str, str]
"""Lines of a table: label and text."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class GraphSize:
    """Size of a graph, counted or estimated."""

    num_edges: Sizes
    """Edges by split."""
    num_entities: Sizes = field(default_factory=dict)
    """Entities by type."""


@dataclass(frozen=True)
class Estimate:
    """Estimated needs of a stage."""

    rows: Rows
    size: GraphSize | None = None
    """Size of the graph, as far as known after the stage."""
