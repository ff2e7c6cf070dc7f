"""Figures and verdict of a run.json for people, whichever version has written it.

Parts of any content; main figures of each stage, for the table at the end of a command; the verdict on a
ranking, against simple rankings and the run before.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from graphmill.display import readable
from graphmill.display.readable import duration, number

Entry = Mapping[str, Any]
"""Content of a stage in run.json."""

CLEARLY = 1.5
"""A model that has learned something is better than a simple ranking by this factor at least."""
SAME = 0.02
"""Relative differences of the MRR that repeated runs have too."""
_FEW = 25  # ranked edges; of fewer the MRR is chance

OF_FEATURES = {
    "num_found": "with a vector",
    "num_folded_in": "folded in",
    "num_missing": "id not in the run",
    "num_without_id": "no id",
}
"""Counts of `graphmill features` in a column of ids, by key."""

Level = Literal["plain", "good", "warning", "error"]


def mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under `key`; without one, an empty object."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def records(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects under `key`; without one, an empty list."""
    value = content.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def interval(entry: Entry, metric: str) -> str:
    """The interval of a metric as text; empty without two numbers."""
    match mapping(entry, "intervals").get(metric):
        case [int() | float() as low, int() | float() as high]:
            return f"{number(low)} to {number(high)}"
    return ""


def total(counts: Any) -> int:
    """The sum of all numbers in nested objects and lists."""
    if isinstance(counts, dict):
        return sum(map(total, counts.values()))
    if isinstance(counts, list):
        return sum(map(total, counts))
    return counts if isinstance(counts, int) else 0


def flattened(content: Any, path: str = "") -> dict[str, Any]:
    """Settings by path: `relations[0].operator`."""
    if isinstance(content, dict) and content:
        parts = [flattened(value, f"{path}.{key}".lstrip(".")) for key, value in content.items()]
    elif isinstance(content, list) and content and isinstance(content[0], dict):
        parts = [flattened(value, f"{path}[{place}]") for place, value in enumerate(content)]
    else:
        return {path: content}
    return {key: value for part in parts for key, value in part.items()}


def summary(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the main figures of several stages, from their entries in run.json."""
    rows: dict[str, str] = {}
    for name, entry in entries.items():
        if "reason" in entry:
            rows[name] = "left out"
            continue
        if skipped := entry.get("skipped"):
            rows[name] = f"skipped, {skipped}"
        else:
            rows[f"{name}, time"] = duration(entry.get("seconds"))
        rows.update(_OF_STAGE[name](entry))
    return rows


def etl(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of etl."""
    yield "rows in", number(entry.get("num_rows"))
    if entry.get("num_rows_quarantined"):
        yield "quarantined rows", number(entry["num_rows_quarantined"])
    for name, count in list(entry.get("unknown_relations", {}).items())[:3]:
        yield f"unknown relation {readable.shortened(name)!r}", number(count)
    for split, count in entry.get("num_edges", {}).items():
        yield f"edges, {split}", number(count)
    for name, counts in entry.get("num_entities", {}).items():
        yield f"entities, {name}", number(sum(counts))
    yield "relations", number(entry.get("num_relations"))


def train(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of train."""
    if members := entry.get("members"):
        yield "models", number(len(members))
    yield "epochs", number(entry.get("num_epochs"))
    yield "loss", number(entry.get("loss"))
    if entry.get("edges_per_s") and "skipped" not in entry:
        yield "edges per second", number(entry["edges_per_s"])


def evaluate(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of evaluate."""
    for name, value in entry.get("metrics", {}).items():
        if bounds := interval(entry, name):
            yield name, f"{number(value)} (95 %: {bounds})"
        elif not name.endswith("_pessimistic") and name not in ("of_edges", "sampled"):
            yield name, number(value)
    if measured := entry.get("calibration", {}).get("top_10"):
        yield "calibration error, 10 best", number(measured.get("ece"))
    for name, metrics in entry.get("baselines", {}).items():
        yield f"mrr, {name.replace('_', ' ')}", number(metrics.get("mrr"))


def remap(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of remap."""
    for name, kind in entry.get("types", {}).items():
        yield f"embeddings, {name}", f"{number(kind.get('num_rows'))} of length {kind.get('dimension')}"


def drift(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the figures of drift."""
    for name, kind in entry.get("types", {}).items():
        if "p50" in kind:
            middle, low = number(kind["p50"]), number(kind["p10"])
            yield f"cosine since the run before, {name}", f"{middle}, 10th percentile {low}"


_OF_STAGE = {"etl": etl, "train": train, "evaluate": evaluate, "remap": remap, "drift": drift}


class Verdict(NamedTuple):
    """The sentence, and how good its news is."""

    text: str
    level: Level


def verdict(entry: Entry, before: Entry) -> Verdict:
    """Judge the entry of `evaluate` in run.json; `before` is the evaluation before, or empty."""
    metrics, simple = mapping(entry, "metrics"), mapping(entry, "baselines")
    if (mrr := _mrr(metrics)) is None:
        return Verdict("run.json has no MRR.", "warning")
    popular, chance, near = (_mrr(mapping(simple, name)) for name in ("most_popular", "random", "neighbors"))
    own = mapping(simple, "neighbors").get("mrr_vectors")  # of the edges that neighbors rank
    margin = max(SAME * (near or 0), mapping(simple, "neighbors").get("margin", 0))
    ahead = f"{number(own / near, 3)} times that of neighbors, " if near and own else ""
    level: Level = "error"
    if popular is None or chance is None:
        level, text = "plain", f"MRR {number(mrr)}; evaluate again to see what simple rankings would get"
    elif (is_few := metrics.get("num_edges") in range(_FEW)) or CLEARLY * chance > 1:
        said = f"chance itself has {number(chance)}, as hardly any query has a wrong answer to rank"
        said = f"fewer than {_FEW} edges are ranked" if is_few else said
        level, text = "plain", f"The MRR of {number(mrr)} tells nothing: {said}"
    elif mrr < CLEARLY * chance:
        text = f"Bad: the MRR of {number(mrr)} is that of chance ({number(chance)})"
    elif near and own and own < near - margin:
        said = f"the MRR of {number(own)} is below theirs ({number(near)}), without training"
        text = f"Bad: on the edges that neighbors rank, {said}"
    elif mrr <= popular:
        text = f"Bad: with an MRR of {number(mrr)}, the most popular candidates ({number(popular)}) do better"
    elif near and own and own < near + margin:
        said = f"the MRR of {number(own)} is about theirs ({number(near)} ± {number(margin, 2)})"
        level, text = "warning", f"Fair: on the edges that neighbors rank, {said}, without training"
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
    """Tell whether two evaluations ranked the same split in the same way, as far as run.json tells."""
    counts = (mapping(run, "metrics").get("num_edges") for run in (entry, before))
    keys = ("split", "filtered", "itself")
    return len(set(counts)) == 1 and all(entry.get(key) == before.get(key) for key in keys)
