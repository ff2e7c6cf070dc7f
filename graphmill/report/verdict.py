"""One sentence that says whether a ranking is good: against chance, popularity and the run before."""

from collections.abc import Mapping
from typing import Any

from graphmill.display.readable import number
from graphmill.report.blocks import Level, Note
from graphmill.report.reading import mapping

CLEARLY = 1.5
"""A model that has learned something is better than a simple ranking by this factor at least."""
SAME = 0.02
"""Relative differences of the MRR that repeated runs have too."""

Entry = Mapping[str, Any]


def verdict(entry: Entry, before: Entry) -> Note:
    """Judge the entry of `evaluate` in run.json; `before` is the evaluation before, or empty."""
    mrr = mapping(entry, "metrics").get("mrr")
    if not isinstance(mrr, int | float):
        return Note("run.json has no MRR.", "warning")
    level: Level
    popular, chance = (baseline(entry, name) for name in ("most_popular", "random"))
    if popular is None or chance is None:
        level, text = "plain", f"MRR {number(mrr)}; evaluate again to see what simple rankings would get"
    elif mrr < CLEARLY * chance:
        level, text = "error", f"Bad: the MRR of {number(mrr)} is that of chance ({number(chance)})"
    elif mrr <= popular:
        level = "error"
        text = f"Bad: with an MRR of {number(mrr)}, the most popular candidates ({number(popular)}) do better"
    elif mrr < CLEARLY * popular:
        level = "warning"
        text = (
            f"Fair: the MRR of {number(mrr)} is little more than that of the most popular ({number(popular)})"
        )
    else:
        level, ratio = "good", f"{mrr / popular:.3g} times that of the most popular"
        text = (
            f"Good: the MRR of {number(mrr)} is {ratio}, and {number(mrr / chance, 3)} times that of chance"
        )
    return Note(f"{text}. {compared(entry, before)}".strip(), level)


def baseline(entry: Entry, name: str, metric: str = "mrr") -> float | None:
    """The metric of a simple ranking of the same edges, if run.json has it."""
    found = mapping(mapping(entry, "baselines"), name).get(metric)
    return found if isinstance(found, int | float) else None


def compared(entry: Entry, before: Entry) -> str:
    """A sentence about the run before; none without one."""
    mrr, then = (mapping(each, "metrics").get("mrr") for each in (entry, before))
    if not isinstance(mrr, int | float) or not isinstance(then, int | float):
        return ""
    if not same_edges(entry, before):
        return f"The run before had {number(then)}, but ranked other edges."
    if abs(mrr - then) <= SAME * max(mrr, then):
        return f"The run before had about the same, {number(then)}."
    return f"The run before was {'worse' if mrr > then else 'better'}, with {number(then)}."


def same_edges(entry: Entry, before: Entry) -> bool:
    """Whether two evaluations ranked the same split in the same way, as far as run.json tells."""
    counts = (mapping(each, "metrics").get("num_edges") for each in (entry, before))
    keys = ("split", "filtered", "itself")
    return len(set(counts)) == 1 and all(entry.get(key) == before.get(key) for key in keys)
