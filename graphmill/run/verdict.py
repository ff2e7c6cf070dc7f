"""One sentence that says whether a ranking is good: against simple rankings and the run before."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from graphmill.display.readable import number
from graphmill.run.reading import mapping

CLEARLY = 1.5
"""A model that has learned something is better than a simple ranking by this factor at least."""
SAME = 0.02
"""Relative differences of the MRR that repeated runs have too."""

Entry = Mapping[str, Any]
Level = Literal["plain", "good", "warning", "error"]


class Verdict(NamedTuple):
    """The sentence, and how good its news is."""

    text: str
    level: Level


def verdict(entry: Entry, before: Entry) -> Verdict:
    """Judge the entry of `evaluate` in run.json; `before` is the evaluation before, or empty."""
    if (mrr := _mrr(mapping(entry, "metrics"))) is None:
        return Verdict("run.json has no MRR.", "warning")
    simple = mapping(entry, "baselines")
    popular, chance, near = (_mrr(mapping(simple, name)) for name in ("most_popular", "random", "neighbors"))
    own = mapping(simple, "neighbors").get("mrr_vectors")  # of the edges that neighbors rank
    ahead = f"{number(own / near, 3)} times that of neighbors, " if near and own else ""
    level: Level = "error"
    if popular is None or chance is None:
        level, text = "plain", f"MRR {number(mrr)}; evaluate again to see what simple rankings would get"
    elif mrr < CLEARLY * chance:
        text = f"Bad: the MRR of {number(mrr)} is that of chance ({number(chance)})"
    elif near and own and own < (1 - SAME) * near:
        said = f"neighbors ({number(near)}), which need no training, do better"
        text = f"Bad: with an MRR of {number(own)}, {said}"
    elif mrr <= popular:
        text = f"Bad: with an MRR of {number(mrr)}, the most popular candidates ({number(popular)}) do better"
    elif near and own and own < (1 + SAME) * near:
        level, said = "warning", f"about that of neighbors ({number(near)}), which need no training"
        text = f"Fair: the MRR of {number(own)} is {said}"
    elif not ahead and mrr < CLEARLY * popular:
        level, said = "warning", f"is little more than that of the most popular ({number(popular)})"
        text = f"Fair: the MRR of {number(mrr)} {said}"
    else:
        level, said = "good", f"{ahead}{number(mrr / popular, 3)} times that of the most popular"
        text = f"Good: the MRR of {number(mrr)} is {said}, and {number(mrr / chance, 3)} times that of chance"
    return Verdict(f"{text}. {_compared(entry, before)}".strip(), level)


def _mrr(metrics: Entry) -> float | None:
    value = metrics.get("mrr")
    return value if isinstance(value, int | float) else None


def _compared(entry: Entry, before: Entry) -> str:
    mrr, then = (_mrr(mapping(run, "metrics")) for run in (entry, before))
    if mrr is None or then is None:
        return ""
    if not same_edges(entry, before):
        return f"The run before had {number(then)}, but ranked other edges."
    if abs(mrr - then) <= SAME * max(mrr, then):
        return f"The run before had about the same, {number(then)}."
    return f"The run before was {'worse' if mrr > then else 'better'}, with {number(then)}."


def same_edges(entry: Entry, before: Entry) -> bool:
    """Whether two evaluations ranked the same split in the same way, as far as run.json tells."""
    counts = (mapping(run, "metrics").get("num_edges") for run in (entry, before))
    keys = ("split", "filtered", "itself")
    return len(set(counts)) == 1 and all(entry.get(key) == before.get(key) for key in keys)
