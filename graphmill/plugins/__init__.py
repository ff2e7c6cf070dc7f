"""Names that users import to write a plug-in, as in PyTorch-BigGraph, and checks of a plug-in.

docs/how_to/plug_ins.md has examples.
"""

from graphmill.model.abstract import AbstractComparator as AbstractComparator
from graphmill.model.abstract import AbstractDynamicOperator as AbstractDynamicOperator
from graphmill.model.abstract import AbstractLossFunction as AbstractLossFunction
from graphmill.model.abstract import AbstractNegativeSampler as AbstractNegativeSampler
from graphmill.model.abstract import AbstractOperator as AbstractOperator
from graphmill.model.abstract import AbstractRegularizer as AbstractRegularizer
from graphmill.model.abstract import ChunkedEdges as ChunkedEdges
from graphmill.model.registry import COMPARATORS as COMPARATORS
from graphmill.model.registry import DYNAMIC_OPERATORS as DYNAMIC_OPERATORS
from graphmill.model.registry import LOSS_FUNCTIONS as LOSS_FUNCTIONS
from graphmill.model.registry import NEGATIVE_SAMPLERS as NEGATIVE_SAMPLERS
from graphmill.model.registry import OPERATORS as OPERATORS
from graphmill.model.registry import REGULARIZERS as REGULARIZERS
from graphmill.plugins.checks import check as check
from graphmill.vocab import Side as Side
