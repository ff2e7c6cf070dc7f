"""The best candidates of some queries: the candidates come once, in blocks, and meet all queries.

Shapes: U distinct entities that are asked about, P queries and N candidates of a tile, D dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from graphmill.ask.entities import EntityTable
from graphmill.ask.predict.known import KnownRange, LeftOut
from graphmill.ask.predict.lists import Lists
from graphmill.ask.predict.sizes import HEIGHT, WIDTH, Sizes
from graphmill.ask.predict.tiles import tiles
from graphmill.ask.relation import Relation
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.model.best import Answers, Best
from graphmill.model.calibration import NUM_BEST, Scale
from graphmill.vocab import Side

Numbers = npt.NDArray[np.int64]
Tiles = Sequence[tuple[int, Floats]]  # the first row of each tile of candidates, and the tile


@dataclass(frozen=True)
class Asked:
    """The question that all queries share; small, because every task receives it.

    Attributes:
        side: side of the answers.
        left_out: candidates that are no answers.
        scale: adds probabilities to the answers.
        num_gpus: 0 searches on the CPU.
        lists: only candidates of the nearest lists are compared; None: all.
    """

    relation: Relation
    side: Side
    k: int
    queries: EntityTable
    candidates: EntityTable
    left_out: LeftOut
    sizes: Sizes
    num_gpus: int = 0
    scale: Scale | None = None
    lists: Lists | None = None

    @property
    def num_best(self) -> int:
        """Candidates to find for a query: a probability compares an answer with NUM_BEST of them."""
        return self.k if self.scale is None else max(self.k, NUM_BEST)


class Search:
    """The best candidates of distinct entities, whose numbers [U] ascend."""

    def __init__(self, asked: Asked, number_U: Numbers) -> None:
        self.asked, self.number_U, self.num_known = asked, number_U, 0
        relation, side = asked.relation, asked.side
        vectors_UD = asked.queries.gather(number_U)
        where = f"{asked.queries.trained.checkpoint_path}: {asked.queries.entity_type!r}"
        make = partial(relation.queries, side)
        height = min(HEIGHT, asked.sizes.queries)
        queries = [
            (slice(start, min(start + height, len(number_U))), tile_PD)
            for start, tile_PD in tiles(vectors_UD, HEIGHT, make, where, step=height)
        ]
        self._found = _found_on(asked, queries)

    def visit(self, partition: int) -> None:
        """Score all queries against the candidates of a partition."""
        candidates = self.asked.candidates
        where = f"{candidates.trained.checkpoint_path}: {candidates.entity_type!r}, partition {partition}"
        make = partial(self.asked.relation.candidates, self.asked.side)
        base, known = int(candidates.first[partition]), self._known(partition, 0)
        for first, vectors_ND in candidates.blocks(partition, self.asked.sizes.candidate_rows):
            progress.stop_if_cancelled()
            left = [(first + start, tile) for start, tile in tiles(vectors_ND, WIDTH, make, where)]
            last = first + len(vectors_ND)
            while left:
                if known is not None and left[0][0] >= known.stop:
                    known = self._known(partition, known.stop)
                stop = last if known is None else min(last, known.stop)
                self._found.add(base, [each for each in left if each[0] < stop], last, known)
                left = [each for each in left if each[0] >= stop]

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""
        return self._found.answers()

    def _known(self, partition: int, start: int) -> KnownRange | None:
        asked = self.asked
        if not asked.left_out:
            return None
        edges = asked.left_out.read(asked.queries, self.number_U, asked.candidates, partition)
        num_rows = asked.candidates.parts[partition].num_rows
        found = KnownRange.read(edges, len(self.number_U), start, num_rows, asked.sizes.known_edges)
        self.num_known += len(found.codes)
        return found


class SearchResult(Protocol):
    """The best candidates so far."""

    def add(self, base: int, candidates: Tiles, last: int, known: KnownRange | None) -> None:
        """Take tiles of a partition's candidates, whose first has the number `base`; rows end at `last`."""

    def answers(self) -> Answers:
        """All answers, by the positions of the queries."""


def search_all(asked: Asked, number_U: Numbers) -> tuple[Answers, int]:
    """Compare entities, whose numbers [U] ascend, with all candidates: answers, number of known edges."""
    search = Search(asked, number_U)
    for partition in range(len(asked.candidates.parts)):
        search.visit(partition)
    return search.answers(), search.num_known


def _found_on(asked: Asked, queries: list[tuple[slice, Floats]]) -> SearchResult:
    """Choose where scores are computed; raises ConfigError if a GPU is asked for and there is none."""
    if not asked.num_gpus:
        return _FoundOnCpu(asked, queries)
    from graphmill.ask.predict.on_gpu import FoundOnGpu
    from graphmill.gpu import device  # imports torch

    return FoundOnGpu(queries, asked.candidates.dimension, asked.num_best, device.device_of(asked.num_gpus))


class _FoundOnCpu:
    """Scores every tile of queries against every tile of candidates."""

    def __init__(self, asked: Asked, queries: list[tuple[slice, Floats]]) -> None:
        self._asked, self._queries = asked, queries
        self._best = [Best(rows.stop - rows.start, asked.num_best) for rows, _ in queries]

    def add(self, base: int, candidates: Tiles, last: int, known: KnownRange | None) -> None:
        """See Found.add."""
        for (rows, query_PD), best in zip(self._queries, self._best, strict=True):
            keep = None if known is None else partial(_is_new, known, rows.start, base)
            for first, candidate_ND in candidates:
                score_PN = self._asked.relation.matrix_scores(self._asked.side, query_PD, candidate_ND)
                best.add(score_PN[: rows.stop - rows.start, : last - first], base + first, keep)
            best.shrink()

    def answers(self) -> Answers:
        """See Found.answers."""
        parts = [
            (rows.start, best.shrink()) for (rows, _), best in zip(self._queries, self._best, strict=True)
        ]
        empty = Best(0, 1).shrink()
        shifted = [each._replace(query=each.query + first) for first, each in parts]
        return Answers(*(np.concatenate(columns) for columns in zip(empty, *shifted, strict=True)))


def _is_new(
    known: KnownRange, first_query: int, first_candidate: int, query: Numbers, candidate: Numbers
) -> npt.NDArray[np.bool_]:
    """Mask of pairs that are no known edges. Numbers begin at those of the tile and of the partition."""
    return ~known.has(query + first_query, candidate - first_candidate)
