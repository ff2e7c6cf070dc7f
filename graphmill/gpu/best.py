"""The best candidates of queries, from slices of the candidates, without keeping their scores.

The K tiles with the highest maxima hold the K best candidates: a candidate of any other tile has K better
ones, one in each of these. So a slice is scored twice: every tile for its maximum, the best tiles for their
scores. Tiles that hold pairs to be left out are scored in between, for their maximum without these.

Among equal scores, the earlier candidate is better; tiles keep that order.

Shapes: Q queries, N rows of a slice, D dimension, T tiles of a slice, K answers, M columns, P pairs of a
query and a tile, B candidates of a tile, L pairs of a query and a candidate that are left out.
"""

import torch
from torch import Tensor

from graphmill.gpu.device import kernels_of
from graphmill.gpu.reference import TILE

CELLS = 1 << 24
"""Scores and maxima that are in memory at a time; each takes some thirty bytes."""


class BestOnDevice:
    """The `k` best of all candidates so far.

    Attributes:
        score_QK: the scores, best first; -inf where there are too few candidates.
        row_QK: the numbers of the candidates.
    """

    def __init__(self, query_QD: Tensor, k: int, cells: int = CELLS) -> None:
        self._query_QD, self._k, self._cells = query_QD.contiguous(), k, cells
        self._kernels = kernels_of(query_QD.device)
        self.score_QK = query_QD.new_full((len(query_QD), k), -torch.inf)
        self.row_QK = torch.zeros(len(query_QD), k, dtype=torch.int64, device=query_QD.device)

    def add(self, table_ND: Tensor, first: int, query_L: Tensor, row_L: Tensor) -> None:
        """Take the candidates `first`, `first` + 1, ...: rows of a table.

        The rows `row_L` are left out for the queries `query_L`, which ascend.
        """
        num_tiles = -(-len(table_ND) // TILE)
        step = max(1, self._cells // max(num_tiles, min(self._k, num_tiles) * TILE, 1))
        starts = range(0, len(self._query_QD), step)
        bounds = torch.searchsorted(query_L, torch.tensor([*starts, len(self._query_QD)]).to(query_L))
        for start, begin, end in zip(starts, bounds.tolist(), bounds[1:].tolist(), strict=False):
            left_out = query_L[begin:end] - start, row_L[begin:end]
            self._add(slice(start, start + step), table_ND, first, left_out)

    def _add(self, rows: slice, table_ND: Tensor, first: int, left_out: tuple[Tensor, Tensor]) -> None:
        query_QD, score_QK, row_QK = self._query_QD[rows], self.score_QK[rows], self.row_QK[rows]
        tile_QM = self._tiles(query_QD, table_ND, score_QK[:, -1:], left_out)
        num_queries, num_chosen = tile_QM.shape
        if not num_chosen:
            return
        query_P = torch.arange(num_queries, device=tile_QM.device).repeat_interleave(num_chosen)
        score_PB = self._scores(query_QD, table_ND, query_P, tile_QM.flatten(), left_out)
        row_QMB = first + tile_QM.unsqueeze(2) * TILE + torch.arange(TILE, device=tile_QM.device)
        scores_QM = torch.cat([score_QK, score_PB.view(num_queries, -1)], 1)
        rows_QM = torch.cat([row_QK, row_QMB.flatten(1)], 1)
        place_QK = highest(scores_QM, self._k)
        score_QK.copy_(scores_QM.gather(1, place_QK))
        row_QK.copy_(rows_QM.gather(1, place_QK))

    def _tiles(
        self, query_QD: Tensor, table_ND: Tensor, least_Q1: Tensor, left_out: tuple[Tensor, Tensor]
    ) -> Tensor:
        """The tiles that may hold new answers, in ascending order: at most K for each query."""
        maxima_QT = self._kernels.tile_maxima(query_QD, table_ND)
        num_tiles = maxima_QT.shape[1]
        query_L, row_L = left_out
        for pair_P in torch.split(torch.unique(query_L * num_tiles + row_L // TILE), self._cells // TILE):
            query_P, tile_P = pair_P // num_tiles, pair_P % num_tiles
            maxima_QT[query_P, tile_P] = self._scores(query_QD, table_ND, query_P, tile_P, left_out).amax(1)
        tile_QK = highest(maxima_QT, min(self._k, num_tiles))
        num_Q = (maxima_QT.gather(1, tile_QK) > least_Q1).sum(1)
        return tile_QK[:, : int(num_Q.max())].sort(1).values

    def _scores(
        self,
        query_QD: Tensor,
        table_ND: Tensor,
        query_P: Tensor,
        tile_P: Tensor,
        left_out: tuple[Tensor, Tensor],
    ) -> Tensor:
        """The scores of pairs in ascending order, -inf for what is left out: [P, B]."""
        score_PB: Tensor = self._kernels.tile_scores(query_QD, table_ND, query_P, tile_P)
        query_L, row_L = left_out
        num_tiles = -(-len(table_ND) // TILE)
        pair_P, pair_L = query_P * num_tiles + tile_P, query_L * num_tiles + row_L // TILE
        place_L = torch.searchsorted(pair_P, pair_L).clamp(max=max(len(pair_P) - 1, 0))
        is_here_L = pair_P[place_L] == pair_L
        score_PB[place_L[is_here_L], row_L[is_here_L] % TILE] = -torch.inf
        return score_PB


def highest(score_QM: Tensor, k: int) -> Tensor:
    """The columns of the `k` highest numbers of each row, best first; of equal ones the first: [Q, K]."""
    bits_QM = (score_QM + 0.0).view(torch.int32)  # -0 becomes 0
    ascending_QM = bits_QM ^ (bits_QM >> 31 & 0x7FFFFFFF)
    last = score_QM.shape[1] - 1
    column_M = torch.arange(last, -1, -1, device=score_QM.device)
    key_QM = (ascending_QM.long() << 32) | column_M
    return last - (key_QM.topk(k).values & 0xFFFFFFFF)
