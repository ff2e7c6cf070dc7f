"""Featurized entities: the embedding of an entity is the mean of its features' embeddings.

Equal lists of a bucket, in any order of the features, are one bag. A bag takes the place of an entity: a bag
has a number and can be a negative, and an edge never meets its own bag as a negative.

Shapes: E edges, G bags, F features of all bags, K bags with repetitions, D dimension.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from graphmill.formats.edge_buckets.features import Features, Indices


@dataclass(frozen=True, eq=False)
class Bags:
    """Lists of features; list k has the rows `row_F[start_G[k] : start_G[k] + count_G[k]]`."""

    start_G: Tensor
    count_G: Tensor
    row_F: Tensor

    def __len__(self) -> int:
        return len(self.count_G)

    def means(self, embeddings_ND: Tensor, bag_K: Tensor) -> Tensor:
        """Compute embeddings of bags: [K, D]."""
        row_F, count_K = self._rows(bag_K)
        return F.embedding_bag(row_F, embeddings_ND, count_K.cumsum(0) - count_K, mode="mean")

    def feature_gradients(self, bag_K: Tensor, gradient_KD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the bags' features, and the gradient of each row: [F'] and [F', D]."""
        row_F, count_K = self._rows(bag_K)
        return row_F, torch.repeat_interleave(gradient_KD / count_K.unsqueeze(1), count_K, dim=0)

    def to(self, device: torch.device) -> "Bags":
        """Copy the bags to another device."""
        return Bags(self.start_G.to(device), self.count_G.to(device), self.row_F.to(device))

    def _rows(self, bag_K: Tensor) -> tuple[Tensor, Tensor]:
        count_K = self.count_G[bag_K]
        first_K = count_K.cumsum(0) - count_K
        place_F = torch.arange(int(count_K.sum()), device=count_K.device)
        shift_K = self.start_G[bag_K] - first_K
        return self.row_F[place_F + torch.repeat_interleave(shift_K, count_K)], count_K


def distinct(features: Features, edges: Indices) -> tuple[Bags, Tensor]:
    """Find the distinct bags of some edges, and the number of each edge's bag [E].

    Equal 64-bit hashes mean equal lists: among 1e8 lists, two different ones collide with probability 3e-4.
    """
    counts = features.counts
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(features.indices), dtype=np.uint64)])
    hashes = (sums[features.offsets[1:]] - sums[features.offsets[:-1]])[edges]
    _, first, bag = np.unique(hashes, return_index=True, return_inverse=True)
    starts, lengths = features.offsets[:-1][edges][first], counts[edges][first]
    rows = torch.from_numpy(features.indices.astype(np.int64))
    return Bags(torch.from_numpy(starts), torch.from_numpy(lengths), rows), torch.from_numpy(bag)


def _mixed(indices: Indices) -> npt.NDArray[np.uint64]:
    """Hash each feature (finaliser of splitmix64); the hash of a list is the sum of its features' hashes."""
    x = indices.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
