"""Exact or approximate: which of the two answers a question, and lists of candidates for the second.

Multiplications, divided by the length of the vectors, decide:

    exact           queries x candidates
    lists           candidates x lists to sort them, k-means, and the exact answers of a sample
    approximate     queries x (lists + candidates of the lists that are looked into)

Products with single lists are smaller, and take longer for each number.

A query looks into the smallest number of lists whose recall on a sample of queries suffices. Recall is the
share of the exact answers that are found. Lists hold all candidates uncompressed, so an exact answer is found
where its list is among the nearest: one comparison tells the recall of every number of lists. One half of the
sample chooses the number. The other half is then answered, and its recall is reported.

Shapes: U queries, M answers, L lists.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from graphmill.ask.entities import UNKNOWN
from graphmill.ask.predict.answers import IdChunk, joined
from graphmill.ask.predict.lists import Lists, Numbers
from graphmill.ask.predict.make_lists import ROUNDS, ROWS_PER_LIST, make_lists, num_lists_for
from graphmill.ask.predict.search import UNLIMITED, Asked, search_lists, sizes_for
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.scan import Answers
from graphmill.cluster import run_tasks
from graphmill.formats.parquet import open_parquet
from graphmill.model.registry import COMPARATORS
from graphmill.run.work import Work
from graphmill.sorted_arrays import distinct

TASKS = 4
"""Tasks at least, where there are as many chunks: workers shall not wait for the last."""
SMALL_PRODUCTS = 2.0
"""Time of a multiplication in a product with a list, in those of a large product."""
GUESSED_SHARE = 1 / 16
"""Share of the lists that are looked into, before it is known."""

SAMPLE = 1000
SEED = 20
_PART = 125  # queries of a task: one tile

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class Cost:
    """Multiplications, divided by the length of the vectors, of both ways."""

    num_queries: int
    num_candidates: int
    num_lists: int

    @property
    def exact(self) -> float:
        """Cost of comparing all candidates."""
        return float(self.num_queries) * self.num_candidates

    @property
    def making(self) -> float:
        """Cost of making lists, and of tuning."""
        sample = ROWS_PER_LIST * self.num_lists
        return float(self.num_lists) * (self.num_candidates + ROUNDS * sample) + SAMPLE * self.num_candidates

    def approximate(self, share: float = GUESSED_SHARE) -> float:
        """Cost of answering with finished lists, where this share of the lists is looked into."""
        return self.num_queries * (self.num_lists + SMALL_PRODUCTS * share * self.num_candidates)


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


def prepare(
    question: PredictOptions,
    asked: Asked,
    chunks: list[IdChunk],
    work: Work,
    candidates_from: Mapping[str, Any],
) -> tuple[Asked, list[IdChunk], dict[str, Any]]:
    """Return the question, the tasks' queries, and figures; with lists of candidates, if it is approximate.

    A task then takes as many queries as its memory allows, because each task reads the lists. What a killed
    command has decided stays. `candidates_from` describes the vectors of the candidates.
    """
    table = asked.candidates
    cost = Cost(
        sum(chunk.stop - chunk.start for chunk in chunks),
        table.num_entities,
        num_lists_for(table.num_entities, table.dimension, question.memory_bytes),
    )
    if work.once("is_exact", lambda: _is_exact(question, asked, cost)):
        return asked, chunks, {"method": "exact"}
    index = question.index or work.uri("index")
    made_from = {**candidates_from, "num_lists": cost.num_lists, "block_rows": asked.sizes.candidate_rows}
    started_s = time.monotonic()
    lists = make_lists(asked, cost.num_lists, index, made_from, work.client)
    log.info("predict: %d lists in %.1f s", lists.num_lists, time.monotonic() - started_s)

    def measured() -> dict[str, Any]:
        best, recall = tuned(asked, lists, _sample(chunks), question.recall, work.client)
        return _figures(question, cost, best, recall)

    figures = work.once("recall", measured)
    if figures["method"] == "exact":
        return asked, chunks, figures
    most = sizes_for(
        question.memory_bytes, table.dimension, table.num_entities, asked.num_best, UNLIMITED
    ).queries
    probed = replace(lists, num_probed=figures["num_probed"])
    return replace(asked, lists=probed), joined(chunks, min(most, -(-cost.num_queries // TASKS))), figures


def _is_exact(question: PredictOptions, asked: Asked, cost: Cost) -> bool:
    """Tell whether all candidates are compared, before lists are made; a log line says why."""
    comparator = asked.relation.comparator
    reason = ""
    if question.how == "exact" or not cost.num_candidates:
        return True
    if comparator not in COMPARATORS.built_in:
        reason = f"the comparator {comparator} is a plug-in; lists are for {', '.join(COMPARATORS.built_in)}"
        if question.how == "approximate":
            log.warning("predict: exact in spite of --approximate: %s", reason)
            return True
    elif question.how == "approximate":
        return False
    elif asked.num_gpus:
        reason = "on a GPU"
    elif cost.making + cost.approximate() >= cost.exact:
        reason = "approximate answers would take longer"
    elif find_spec("faiss") is None:
        log.warning(
            "predict: exact; approximate answers would be faster, but faiss is not installed: "
            "pip install 'graphmill[neighbors]'"
        )
        return True
    if reason:
        log.info("predict: exact: %s", reason)
    return bool(reason)


def _figures(question: PredictOptions, cost: Cost, lists: Lists, recall: Recall) -> dict[str, Any]:
    """Figures of the tuned lists, which say `exact` where that is faster."""
    share = lists.num_probed / lists.num_lists
    if question.how == "auto" and cost.approximate(share) >= cost.exact:
        log.info(
            "predict: exact: a recall of %g needs %d of %d lists, which would take longer",
            question.recall,
            lists.num_probed,
            lists.num_lists,
        )
        return {"method": "exact"}
    log.info(
        "predict: approximate: recall %.4f (standard error %.4f), measured on %d ids; "
        "each is compared with %d of %d lists",
        recall.mean,
        recall.error,
        recall.num_queries,
        lists.num_probed,
        lists.num_lists,
    )
    if recall.mean < question.recall:
        log.warning("predict: the recall is %.4f, below the wanted %g", recall.mean, question.recall)
    return {
        "method": "approximate",
        "recall": recall.mean,
        "recall_error": recall.error,
        "recall_ids": recall.num_queries,
        "num_lists": lists.num_lists,
        "num_probed": lists.num_probed,
    }


def _sample(chunks: list[IdChunk]) -> Numbers:
    num_queries = sum(chunk.stop - chunk.start for chunk in chunks)
    drawn = np.random.default_rng(SEED).choice(num_queries, min(SAMPLE, num_queries), replace=False)
    place = np.sort(drawn)
    parts, first = [np.empty(0, np.int64)], 0
    for chunk in chunks:
        start, stop = np.searchsorted(place, [first, first + chunk.stop - chunk.start])
        own = place[start:stop] - first
        first += chunk.stop - chunk.start
        if chunk.ids_uri is None:
            parts.append(own + chunk.start)
        elif len(own):
            with open_parquet(chunk.ids_uri) as parquet:
                column = parquet.read_row_group(chunk.group, columns=["number"])["number"]
            parts.append(column.to_numpy()[own])
    numbers: Numbers = np.concatenate(parts)
    known: Numbers = numbers[numbers != UNKNOWN]
    return known


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
    answered = [(own, answers) for (_, own), answers in zip(parts, exact, strict=True)]
    num_choosing = len(_cut(choosing))
    arguments = [(asked, lists, *part) for part in answered[:num_choosing]]
    ranks = run_tasks(client, ranks_of_lists, arguments, description="choosing the number of lists")
    lists = replace(lists, num_probed=_fewest(ranks, lists.num_lists, wanted))
    arguments = [(asked, lists, *part) for part in answered[num_choosing:]]
    shares = run_tasks(client, shares_of_lists, arguments, description="measuring the recall")
    return lists, Recall.of(np.concatenate(shares))


def _cut(numbers: Numbers) -> list[Numbers]:
    return np.array_split(numbers, max(1, min(4, len(numbers) // _PART)))


def _fewest(ranks: list[tuple[Numbers, Numbers]], num_lists: int, wanted: float) -> int:
    if wanted >= 1:  # no sample can promise it
        return num_lists
    probed = 1
    while probed < num_lists:  # 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, ...
        recall = Recall.of(np.concatenate([_share(rank < probed, query) for query, rank in ranks]))
        if recall.mean - 2 * recall.error >= wanted:
            return probed
        probed += max(1, probed // 5)
    return num_lists


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
