"""The functions of `kernels` in plain torch: their definition. A score is a dot product.

Shapes: Q queries, N rows of a table, D dimension, P pairs, B candidates of a tile (TILE), T tiles of a table.
"""

import torch
from torch import Tensor
from torch.nn import functional

TILE = 128


def count_above(query_QD: Tensor, table_ND: Tensor, score_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Count the rows that score higher than `score_Q`, and those that equal it: int64 [Q], [Q]."""
    score_QN = _scores(query_QD.unsqueeze(1), table_ND)
    threshold_Q1 = score_Q.unsqueeze(1)
    return (score_QN > threshold_Q1).sum(1), (score_QN == threshold_Q1).sum(1)


def pair_scores(query_QD: Tensor, table_ND: Tensor, query_P: Tensor, row_P: Tensor) -> Tensor:
    """Score pairs of a query and a row, as `count_above` scores them: [P]."""
    return _scores(query_QD[query_P], table_ND[row_P])


def tile_maxima(query_QD: Tensor, table_ND: Tensor) -> Tensor:
    """The highest score of each query in each tile of consecutive rows: [Q, T]."""
    score_QN = _scores(query_QD.unsqueeze(1), table_ND)
    score_QN = functional.pad(score_QN, (0, -len(table_ND) % TILE), value=-torch.inf)
    return score_QN.view(len(query_QD), -1, TILE).amax(2)


def tile_scores(query_QD: Tensor, table_ND: Tensor, query_P: Tensor, tile_P: Tensor) -> Tensor:
    """Score all rows of a tile for pairs of a query and a tile, -inf where there is no row: [P, B]."""
    row_PB = tile_P.unsqueeze(1) * TILE + torch.arange(TILE, device=tile_P.device)
    candidate_PBD = table_ND[row_PB.clamp(max=len(table_ND) - 1)]
    score_PB = _scores(query_QD[query_P].unsqueeze(1), candidate_PBD)
    return score_PB.masked_fill(row_PB >= len(table_ND), -torch.inf)


def _scores(queries: Tensor, candidates: Tensor) -> Tensor:
    """Score [..., D] and [..., D]; a score depends on its two vectors alone, as no matrix product's does."""
    return (queries * candidates).sum(-1)
