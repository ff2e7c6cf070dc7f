"""Two or more runs side by side: metrics, settings that differ, curves in common charts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphmill import storage
from graphmill.display.readable import duration
from graphmill.library.run import Run
from graphmill.report.charts import bars
from graphmill.report.overview import shown
from graphmill.report.page import Block, Note, Page, PageSection, PageTable
from graphmill.report.results import band_name
from graphmill.report.stages import CURVE, SPEED, epoch_chart, epoch_series, speed, value_of
from graphmill.run.reading import flattened, mapping, records, total
from graphmill.storage.redaction import redacted

SMALL_IS_GOOD = ("mean_rank",)
ABSENT = "-"
PLACES = ("output", "entity_path", "edge_root", "edge_paths", "checkpoint_path", "embedding_path")
HIGH = "Long bars are good, where the runs ranked the same edges."
BEST = "The best figure of a row is marked: the highest, but the lowest mean_rank."
DIFFER = "Few differences are good: then you know what made the other figures."
LOSSES = (
    "Good: it falls and levels off. Losses compare only between runs with the same loss_fn and negatives."
)
FIGURES = "Good: the same rows, edges and entities in all runs. Otherwise their metrics hardly compare."

Named = Mapping[str, Run]


def page_of_runs(runs: Sequence[Run]) -> Page:
    """The report of several runs."""
    named = dict(zip(names(runs), runs, strict=True))
    sections = [
        PageSection("metrics", "Metrics", list(_metrics(named))),
        PageSection("settings", "Settings that differ", list(_settings(named))),
        PageSection("curves", "Training", list(_curves(named))),
        PageSection("figures", "Figures", list(_figures(named))),
    ]
    status = "done" if all(run.status == "done" for run in runs) else "not all done"
    return Page(
        f"{len(runs)} runs side by side", redacted(" · ".join(run.uri for run in runs)), status, sections
    )


def names(runs: Sequence[Run]) -> list[str]:
    """Short names that differ: the ends of the runs' URIs."""
    parts = [storage.absolute(redacted(run.uri)).rstrip("/").split("/") for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(part[-length:]) for part in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [f"{'/'.join(part)} #{place}" for place, part in enumerate(parts, start=1)]


def _metrics(runs: Named) -> Iterator[Block]:
    keys = dict.fromkeys(
        key for run in runs.values() for key in run.metrics if not key.endswith("_pessimistic")
    )
    if not keys:
        yield Note("None of the runs has been evaluated.")
        return
    values = {key: [run.metrics.get(key) for run in runs.values()] for key in keys}
    rows = [[key, *figures] for key, figures in values.items()]
    best = {row: _best(key, values[key]) for row, key in enumerate(keys)}
    marked = {row: column + 1 for row, column in best.items() if column is not None}
    yield PageTable("Metrics", ["metric", *runs], rows, best=marked, note=BEST)
    counts = {run.metrics.get("num_edges") for run in runs.values()}
    if len(counts) > 1:
        yield Note("The runs ranked different numbers of edges; compare with care.", "warning")
    if "mrr" in keys:
        ranked = {name: run.metrics["mrr"] for name, run in runs.items() if "mrr" in run.metrics}
        yield from bars("mrr", "MRR", "MRR", list(ranked), {"mrr": list(ranked.values())}, note=HIGH)
    evaluated = {name: mapping(run.stages, "evaluate") for name, run in runs.items()}
    bands = {
        name: {band_name(band): _both_sides(band) for band in records(entry, "metrics_by_degree")}
        for name, entry in evaluated.items()
    }
    labels = dict.fromkeys(label for by_band in bands.values() for label in by_band)
    groups = {name: [by_band.get(label, 0.0) for label in labels] for name, by_band in bands.items()}
    title = "MRR by the degree of the entity asked for, both sides"
    yield from bars("degrees", title, "MRR", [f"{label} edges" for label in labels], groups, note=HIGH)


def _both_sides(band: Mapping[str, Any]) -> float:
    sides = [mapping(band, side) for side in ("lhs", "rhs")]
    edges = sum(part.get("num_edges", 0) for part in sides)
    return sum(part.get("num_edges", 0) * part.get("mrr", 0) for part in sides) / edges if edges else 0.0


def _best(key: str, values: Sequence[float | None]) -> int | None:
    """Position of the best value; None where no value is better than the others."""
    known = [value for value in values if value is not None]
    if key in ("num_edges", "of_edges", "sampled") or len(known) < 2 or len(set(known)) == 1:
        return None
    return values.index(min(known) if key in SMALL_IS_GOOD else max(known))


def _settings(runs: Named) -> Iterator[Block]:
    configs = {
        name: {key: value for key, value in flattened(run.config).items() if key not in PLACES}
        for name, run in runs.items()
    }
    versions = {name: mapping(run.record, "versions") for name, run in runs.items()}
    for title, kind in (("Settings", configs), ("Versions", versions)):
        rows = list(_differing(kind))
        if rows:
            yield PageTable(title, ["key", *runs], rows, len(runs) + 1, note=DIFFER)
        else:
            yield Note(f"{title}: no difference.")


def _differing(kind: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for key in dict.fromkeys(key for settings in kind.values() for key in settings):
        values = [shown(settings[key]) if key in settings else ABSENT for settings in kind.values()]
        if len(set(values)) > 1:
            yield [key, *values]


def _curves(runs: Named) -> Iterator[Block]:
    kinds: tuple[tuple[str, str, str, Callable[[Mapping[str, Any]], float | None], str], ...] = (
        ("loss", "loss", "epochs", value_of("loss"), LOSSES),
        ("mrr", "MRR of the held-out sample", "epochs", value_of("mrr"), CURVE),
        ("validation", "MRR in validation", "validation", value_of("mrr"), CURVE),
        ("edges_per_s", "edges per second", "epochs", speed, SPEED),
    )
    charts: list[Block] = []
    for key, label, recorded_in, value, note in kinds:
        epochs_of = {name: records(mapping(run.stages, "train"), recorded_in) for name, run in runs.items()}
        series = [curve for name, epochs in epochs_of.items() for curve in epoch_series(name, epochs, value)]
        charts += epoch_chart(key, label[0].upper() + label[1:], label, series, note)
    yield from charts or [Note("None of the runs has figures of its epochs.")]


def _figures(runs: Named) -> Iterator[Block]:
    figures: dict[str, Callable[[Run], Any]] = {
        "status": lambda run: str(run.status or ABSENT),
        "started": lambda run: str(run.record.get("started", ABSENT)),
        "rows in": lambda run: mapping(run.stages, "etl").get("num_rows"),
        "edges": lambda run: total(mapping(run.stages, "etl").get("num_edges")),
        "entities": lambda run: total(mapping(run.stages, "etl").get("num_entities")),
        "edges per second": lambda run: mapping(run.stages, "train").get("edges_per_s"),
        "final loss": lambda run: mapping(run.stages, "train").get("loss"),
    }
    stages = dict.fromkeys(name for run in runs.values() for name in run.stages)
    rows = [[label, *(read(run) for run in runs.values())] for label, read in figures.items()]
    rows += [
        [f"{name}, time", *(duration(mapping(run.stages, name).get("seconds")) for run in runs.values())]
        for name in stages
    ]
    yield PageTable("Figures", ["what", *runs], rows, note=FIGURES)
