"""Exact or approximate: which of the two answers a question, and lists of candidates for the second.

Multiplications, divided by the length of the vectors, decide:

    exact           queries x candidates
    lists           candidates x lists to sort them, k-means, and the exact answers of a sample
    approximate     queries x (lists + candidates of the lists that are looked into)

Products with single lists are smaller, and take longer for each number.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from distributed import Client

from graphmill.ask.entities import UNKNOWN
from graphmill.ask.predict.answers import IdChunk, joined
from graphmill.ask.predict.lists import Lists, Numbers
from graphmill.ask.predict.make_lists import ROUNDS, ROWS_PER_LIST, make_lists, num_lists_for
from graphmill.ask.predict.search import UNLIMITED, Asked, sizes_for
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.predict.tuning import SAMPLE, Recall, sample_of, tuned
from graphmill.formats.parquet import open_parquet
from graphmill.model.registry import COMPARATORS
from graphmill.run.work import Work

TASKS = 4
"""Tasks at least, where there are as many chunks: workers shall not wait for the last."""
SMALL_PRODUCTS = 2.0
"""Time of a multiplication in a product with a list, in those of a large product."""
GUESSED_SHARE = 1 / 16
"""Share of the lists that are looked into, before it is known."""

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

    @property
    def is_approximate_cheaper(self) -> bool:
        """Whether lists are worth making."""
        return self.making + self.approximate() < self.exact


def prepare(
    question: PredictOptions,
    asked: Asked,
    chunks: list[IdChunk],
    work: Work,
    candidates_from: Mapping[str, Any],
    client: Client,
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
    lists = make_lists(asked, cost.num_lists, index, made_from, client)
    log.info("predict: %d lists in %.1f s", lists.num_lists, time.monotonic() - started_s)

    def measured() -> dict[str, Any]:
        best, recall = tuned(asked, lists, _sample(asked, chunks), question.recall, client)
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
    elif not cost.is_approximate_cheaper:
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


def _sample(asked: Asked, chunks: list[IdChunk]) -> Numbers:
    place = np.sort(sample_of(sum(chunk.stop - chunk.start for chunk in chunks)))
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
