"""Table of embeddings and optimizer state, which every step reads and moves."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(eq=False)
class Table:
    """The embeddings of one partition and the state of their optimizer."""

    embeddings_ND: Tensor
    sums: Tensor  # of squared gradients: [N] with row-wise Adagrad, [N, D] with element-wise

    def __len__(self) -> int:
        return len(self.embeddings_ND)
