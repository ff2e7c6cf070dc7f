"""Names that users import to write a plug-in, as in PyTorch-BigGraph, and checks of a plug-in.

docs/how_to/plug_ins.md has examples.
"""

from graphmill.model.abstract import (
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
    ChunkedEdges,
)
from graphmill.model.registry import (
    COMPARATORS,
    DYNAMIC_OPERATORS,
    LOSS_FUNCTIONS,
    NEGATIVE_SAMPLERS,
    OPERATORS,
    REGULARIZERS,
)
from graphmill.plugins.checks import check
from graphmill.vocab import Side

__all__ = [
    "COMPARATORS",
    "DYNAMIC_OPERATORS",
    "LOSS_FUNCTIONS",
    "NEGATIVE_SAMPLERS",
    "OPERATORS",
    "REGULARIZERS",
    "AbstractComparator",
    "AbstractDynamicOperator",
    "AbstractLossFunction",
    "AbstractNegativeSampler",
    "AbstractOperator",
    "AbstractRegularizer",
    "ChunkedEdges",
    "Side",
    "check",
]
