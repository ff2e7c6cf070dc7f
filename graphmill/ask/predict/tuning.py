"""The number of lists to look into: the smallest whose recall on a sample of queries suffices.

Recall is the share of the exact answers that are found. Lists hold all candidates uncompressed, so an exact
answer is found where its list is among the nearest: one comparison tells the recall of every number of lists.
One half of the sample chooses the number. The other half is then answered, and its recall is reported.

Shapes: U queries, M answers, L lists.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from distributed import Client

from graphmill.ask.predict.list_search import search_lists
from graphmill.ask.predict.lists import Lists, Numbers
from graphmill.ask.predict.search import Asked
from graphmill.ask.scan import Answers
from graphmill.cluster import run_tasks
from graphmill.sorted_arrays import distinct

SAMPLE = 1000
SEED = 20
_PART = 125  # queries of a task: one tile


@dataclass(frozen=True)
class Recall:
    """Recall of a sample: mean over its queries, and the standard error of the mean."""

    mean: float
    error: float
    num_queries: int

    @classmethod
    def of(cls, share_U: npt.NDArray[np.float64]) -> "Recall":
        """Mean the shares of the queries; nothing to find counts as found."""
        if not len(share_U):
            return cls(1.0, 0.0, 0)
        error = float(share_U.std(ddof=1) / len(share_U) ** 0.5) if len(share_U) > 1 else 0.0
        return cls(float(share_U.mean()), error, len(share_U))


def sample_of(num_queries: int) -> Numbers:
    """Draw queries by their number; the same ones each time."""
    size = min(SAMPLE, num_queries)
    queries: Numbers = np.random.default_rng(SEED).choice(num_queries, size, replace=False)
    return queries


def tuned(
    asked: Asked, lists: Lists, numbers: Numbers, wanted: float, client: Client
) -> tuple[Lists, Recall]:
    """Choose how many lists are looked into; return the lists with it, and the recall on other queries.

    The recall exceeds the goal by two standard errors, so that another sample would say the same.
    """
    choosing, measuring = distinct(numbers[::2]), distinct(numbers[1::2])
    if not len(measuring):
        measuring = choosing
    parts = [(asked, own) for half in (choosing, measuring) for own in _cut(half)]
    exact = run_tasks(client, exact_answers, parts, description="exact answers of a sample")
    num_choosing = len(_cut(choosing))
    ranks = run_tasks(
        client,
        ranks_of_lists,
        [
            (asked, lists, own, answers)
            for (_, own), answers in zip(parts, exact[:num_choosing], strict=False)
        ],
        description="choosing the number of lists",
    )
    lists = replace(lists, num_probed=_fewest(ranks, lists.num_lists, wanted))
    shares = run_tasks(
        client,
        shares_of_lists,
        [
            (asked, lists, own, answers)
            for (_, own), answers in zip(parts[num_choosing:], exact[num_choosing:], strict=True)
        ],
        description="measuring the recall",
    )
    return lists, Recall.of(np.concatenate(shares))


def _cut(numbers: Numbers) -> list[Numbers]:
    return np.array_split(numbers, max(1, min(4, len(numbers) // _PART)))


def _fewest(ranks: list[tuple[Numbers, Numbers]], num_lists: int, wanted: float) -> int:
    if wanted >= 1:  # no sample can promise it
        return num_lists
    for probed in _steps(num_lists):
        share_U = np.concatenate([_share(rank < probed, query) for query, rank in ranks])
        recall = Recall.of(share_U)
        if recall.mean - 2 * recall.error >= wanted:
            return probed
    return num_lists


def _steps(num_lists: int) -> list[int]:
    """Numbers of lists to try: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, ..."""
    steps = [1]
    while steps[-1] < num_lists:
        steps.append(min(num_lists, steps[-1] + max(1, steps[-1] // 5)))
    return steps


def _share(is_hit_M: npt.NDArray[np.bool_], query_M: Numbers) -> npt.NDArray[np.float64]:
    """The share of each query's answers that is found; queries without answers are left out."""
    total = np.bincount(query_M)
    hits = np.bincount(query_M, weights=is_hit_M)
    return hits[total > 0] / total[total > 0]


def exact_answers(asked: Asked, number_U: Numbers) -> Answers:
    """Answer queries by comparing all candidates; a Dask task."""
    return replace(asked, num_gpus=0).search_all(number_U)[0].cut(asked.k)


def ranks_of_lists(asked: Asked, lists: Lists, number_U: Numbers, exact: Answers) -> tuple[Numbers, Numbers]:
    """The queries [M] of exact answers, and how many lists are nearer than the answer's own; a Dask task."""
    first_L1, centers_LD = lists.first(), lists.centers()
    order = np.argsort(exact.candidate, kind="stable")
    own_M = np.empty(len(order), np.int64)
    own_M[order] = np.searchsorted(first_L1, lists.places(exact.candidate[order]), side="right") - 1
    score_UL = asked.relation.matrix_scores(
        asked.side, asked.made_queries(number_U)[: len(number_U)], centers_LD
    )
    rank_M = np.empty(len(order), np.int64)
    for query, score_L in enumerate(score_UL):
        mine = exact.query == query
        rank_M[mine] = len(score_L) - np.searchsorted(np.sort(score_L), score_L[own_M[mine]], side="right")
    return exact.query, rank_M


def shares_of_lists(asked: Asked, lists: Lists, number_U: Numbers, exact: Answers) -> npt.NDArray[np.float64]:
    """The share of each query's exact answers that the lists give; a Dask task."""
    answers = search_lists(asked, lists, number_U)[0].cut(asked.k)
    num = max(asked.candidates.num_entities, 1)
    code = exact.query * num + exact.candidate
    return _share(np.isin(code, answers.query * num + answers.candidate), exact.query)
