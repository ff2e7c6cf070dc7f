"""The best candidates of some queries on a GPU, where scores are dot products; see `graphmill.gpu.best`.

Shapes: Q queries, N candidates, D dimension, K answers.
"""

from collections.abc import Sequence

import numpy as np
import torch

from graphmill.ask.predict.known import KnownRange
from graphmill.checkpoints import Floats
from graphmill.gpu.best import BestOnDevice
from graphmill.model.best import Answers


class FoundOnGpu:
    """The best candidates of all queries."""

    def __init__(
        self, queries: Sequence[tuple[slice, Floats]], dimension: int, k: int, device: torch.device
    ) -> None:
        """`queries` are tiles [P, D], each with the positions of its queries."""
        query_QD = torch.empty(sum(rows.stop - rows.start for rows, _ in queries), dimension, device=device)
        for rows, tile_PD in queries:
            query_QD[rows] = torch.from_numpy(tile_PD[: rows.stop - rows.start]).to(device)
        self._best = BestOnDevice(query_QD, k)

    def add(
        self, base: int, candidates: Sequence[tuple[int, Floats]], last: int, known: KnownRange | None
    ) -> None:
        """Take tiles of a partition's candidates, whose first has the number `base`; rows end at `last`."""
        device, start = self._best.row_QK.device, candidates[0][0]
        first, final_ND = candidates[-1]
        stop = min(last, first + len(final_ND))
        table_ND = torch.empty(stop - start, final_ND.shape[1], device=device)
        for first, tile_ND in candidates:
            there_ND = table_ND[first - start : first - start + len(tile_ND)]
            there_ND.copy_(torch.from_numpy(tile_ND[: len(there_ND)]))
        left_out = (np.empty(0, np.int64), np.empty(0, np.int64))
        if known is not None:
            query, row = known.within(start, stop)
            left_out = query, row - start
        self._best.add(table_ND, base + start, *(torch.from_numpy(each).to(device) for each in left_out))

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""
        score_QK, row_QK = self._best.score_QK.cpu().numpy(), self._best.row_QK.cpu().numpy()
        query, place = np.nonzero(score_QK > -np.inf)
        return Answers(query, score_QK[query, place], row_QK[query, place])
