"""Base classes of plug-ins, with the methods and arguments of PyTorch-BigGraph's.

Shapes: D dimension, P edges, N negatives of an edge, C chunks, L and R negatives of a chunk, K drawn rows.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from graphmill.vocab import Side


class AbstractOperator(nn.Module, ABC):
    """Transformation of vectors by one static relation; its `nn.Parameter`s are trained and saved."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @abstractmethod
    def forward(self, embeddings: Tensor) -> Tensor:
        """Transform vectors: [..., D] -> [..., D]."""

    def get_operator_params_for_reg(self) -> Tensor | None:
        """Return the numbers whose cubes the regularizer N3 adds up, not negative; None: there are none."""
        own = [parameter.flatten() for parameter in self.parameters()]
        return torch.cat(own).abs() if own else None

    def prepare_embs_for_reg(self, embs: Tensor) -> Tensor:
        """Return the numbers of vectors [..., D] whose cubes N3 adds up: [..., any]."""
        return embs.abs()


class AbstractDynamicOperator(nn.Module, ABC):
    """Transformation of vectors by many relations: row i of every parameter belongs to relation i."""

    def __init__(self, dim: int, num_operations: int) -> None:
        super().__init__()
        self.dim = dim
        self.num_operations = num_operations

    @abstractmethod
    def forward(self, embeddings: Tensor, operator_idxs: Tensor) -> Tensor:
        """Transform each vector by its relation: [..., D] and int64 [...] -> [..., D]."""

    def get_operator_params_for_reg(self, operator_idxs: Tensor) -> Tensor | None:
        """Return, for each relation of `operator_idxs` [P], the numbers whose cubes N3 adds up: [P, any]."""
        own = [parameter[operator_idxs].flatten(1) for parameter in self.parameters()]
        return torch.cat(own, 1).abs() if own else None

    def prepare_embs_for_reg(self, embs: Tensor) -> Tensor:
        """Return the numbers of vectors [..., D] whose cubes N3 adds up: [..., any]."""
        return embs.abs()


class AbstractComparator(nn.Module, ABC):
    """Scores of pairs of vectors: a higher score is a likelier edge."""

    @abstractmethod
    def prepare(self, embs: Tensor) -> Tensor:
        """Make vectors ready, once for each: [..., D] -> [..., D]."""

    @abstractmethod
    def forward(
        self, lhs_pos: Tensor, rhs_pos: Tensor, lhs_neg: Tensor, rhs_neg: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score prepared vectors: [C, P, D], [C, P, D], [C, L, D] and [C, R, D] -> three tensors.

        They are the scores of lhs_pos with rhs_pos, pair by pair [C, P]; of each rhs_pos with all lhs_neg of
        its chunk [C, P, L]; of each lhs_pos with all rhs_neg of its chunk [C, P, R]. L and R may be 0.
        """


class AbstractLossFunction(nn.Module, ABC):
    """Loss of edges' scores against the scores of their negatives."""

    def __init__(self, **kwargs: Any) -> None:
        """`margin` is the key of the configuration, for those that have an argument of this name."""
        super().__init__()

    @abstractmethod
    def forward(self, pos_scores: Tensor, neg_scores: Tensor, weight: Tensor | None = None) -> Tensor:
        """Add up the losses of edges: [P], [P, N] and weights [P] -> [].

        A negative that is the edge's own entity has the score -1e9, and its gradient is not used.
        """


class AbstractRegularizer(ABC):
    """Penalty on the vectors and the relations of edges."""

    def __init__(self, weight: float) -> None:
        """`weight` is regularization_coef."""
        self.weight = weight

    @abstractmethod
    def forward(self, src_pos: Tensor, dst_pos: Tensor, operator: Any) -> Tensor:
        """Compute the penalty of edges of a static relation, its weight included: [P, D] twice -> []."""

    @abstractmethod
    def forward_dynamic(self, src_pos: Tensor, dst_pos: Tensor, operator: Any, rel_idxs: Tensor) -> Tensor:
        """Compute the penalty of edges of dynamic relations `rel_idxs` [P]."""


class ChunkedEdges(NamedTuple):
    """The edges that negatives are drawn for, in chunks that share their negatives: [C, P] each."""

    lhs: Tensor  # rows of the partitions
    rhs: Tensor
    rel: Tensor | None  # numbers of dynamic relations
    weight: Tensor
    relation: int  # position in `relations`


class AbstractNegativeSampler(ABC):
    """Entities that replace an edge's own, in the place of uniformly drawn ones."""

    def __init__(self, num_negatives: int) -> None:
        """`num_negatives` is num_uniform_negs."""
        self.num_negatives = num_negatives

    @abstractmethod
    def sample(self, edges: ChunkedEdges, side: Side, num_rows: int, generator: Generator) -> Tensor:
        """Draw negatives for one side: rows of its partition, below `num_rows`, int64 [C, K].

        All random numbers come from `generator`, which is on the CPU. The tensors of `edges` may be on a GPU.
        """
