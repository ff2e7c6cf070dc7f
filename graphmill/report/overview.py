"""Whole runs. Of one: its status, its errors, the time of each stage and step; settings, to repeat it. Of two
or more side by side: metrics, settings that differ, curves in common charts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphmill import storage
from graphmill.config.sections import SECTIONS
from graphmill.config.yaml_text import shown
from graphmill.display.readable import duration, number, shortened
from graphmill.library.run import Run
from graphmill.report.charts import bars
from graphmill.report.page import Block, Note, Page, PageSection, PageTable, PageTile, Tiles
from graphmill.report.results import band_name
from graphmill.report.stages import CURVE, SPEED, epoch_chart, epoch_series, speed, value_of
from graphmill.run.reading import flattened, mapping, records, same_edges, total, verdict
from graphmill.storage.redaction import redacted

SHOWN_CHARS = 300
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


def overview(record: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the whole run."""
    stages = mapping(record, "stages")
    yield from _errors(record, stages)
    evaluated = mapping(stages, "evaluate")
    if evaluated.get("status") == "done":
        yield Note(*verdict(evaluated, mapping(record, "before")))
    yield Tiles(list(_tiles(record, stages)))
    times = dict(_times(stages))
    note = "Short bars are good. The longest one is where more workers or other settings help most."
    seconds = {"seconds": list(times.values())}
    yield from bars("time", "Where the time went", "seconds", list(times), seconds, note=note)


def _errors(record: Mapping[str, Any], stages: Mapping[str, Any]) -> Iterator[Block]:
    if record.get("error"):
        failed = [name for name, entry in stages.items() if entry.get("status") == "failed"]
        where = f" in {', '.join(failed)}" if failed else ""
        traces = [str(stages[name]["traceback"]) for name in failed if "traceback" in stages[name]]
        yield Note(f"The run failed{where}.", "error", "\n\n".join([str(record["error"]), *traces]))
    elif record.get("status") == "running":
        yield Note("The run had not ended when this was written.", "warning")
    elif record.get("status") == "died":
        yield Note("The run was killed, or had no room to write how it ended.", "error")
    for name, entry in stages.items():
        if entry.get("status") == "left out":
            yield Note(f"The stage {name} was left out: {entry.get('reason')}.")


def _tiles(record: Mapping[str, Any], stages: Mapping[str, Any]) -> Iterator[PageTile]:
    etl, train = mapping(stages, "etl"), mapping(stages, "train")
    if "num_entities" in etl:
        yield PageTile("entities", total(etl["num_entities"]), f"types: {len(etl['num_entities'])}")
    if "num_edges" in etl:
        yield PageTile("edges", total(etl["num_edges"]), ", ".join(etl["num_edges"]))
    metrics = mapping(record, "metrics")
    if "mrr" in metrics:
        yield PageTile("MRR", metrics["mrr"], f"of {number(metrics.get('num_edges'))} held-out edges")
    if train.get("edges_per_s"):
        yield PageTile("training", train["edges_per_s"], "edges per second")
    seconds = sum(entry.get("seconds", 0) for entry in stages.values())
    yield PageTile("time of all stages", duration(seconds), ", ".join(stages))


def _times(stages: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in dict.fromkeys([*SECTIONS, *stages]):
        entry = mapping(stages, name)
        if isinstance(entry.get("seconds"), int | float):
            yield name, entry["seconds"]
            steps = mapping(entry, "step_seconds")
            yield from ((f"{name}: {step}", seconds) for step, seconds in steps.items())


def settings(record: Mapping[str, Any]) -> Iterator[Block]:
    """Tables of versions, stages and settings."""
    run = {
        "command": " ".join(map(str, record.get("command", []))),
        **{key: str(record.get(key)) for key in ("started", "finished", "python")},
        **{name: str(version) for name, version in mapping(record, "versions").items()},
    }
    note = (
        "Good: the same versions as in the run that you compare with; other versions may give other figures."
    )
    yield PageTable("Run", ["what", "value"], list(run.items()), 2, note=note)
    rows = [
        [name, str(stage.get("status", "-")), str(stage.get("started", "-")), duration(stage.get("seconds"))]
        for name, stage in mapping(record, "stages").items()
    ]
    note = "Good: all are done. What failed, died or is still running has no results that count."
    yield PageTable("Stages", ["stage", "status", "started", "time"], rows, 3, note=note)
    flat = flattened(mapping(record, "config"))
    config = [[key, _setting(flat, key)] for key in flat]
    note = "Good: what you meant. Keys that you have not set have their default here."
    yield PageTable("Settings", ["key", "value"], config, 2, folded=True, note=note)


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
    evaluated = {name: mapping(run.stages, "evaluate") for name, run in runs.items()}
    first, *others = [entry for entry in evaluated.values() if "metrics" in entry] or [{}]
    if not all(same_edges(first, entry) for entry in others):
        yield Note("The runs ranked other edges, or in another way; compare with care.", "warning")
    if "mrr" in keys:
        ranked = {name: run.metrics["mrr"] for name, run in runs.items() if "mrr" in run.metrics}
        yield from bars("mrr", "MRR", "MRR", list(ranked), {"mrr": list(ranked.values())}, note=HIGH)
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
        keys = dict.fromkeys(key for of_run in kind.values() for key in of_run)
        rows = [[key, *(_setting(of_run, key) for of_run in kind.values())] for key in keys]
        if rows := [row for row in rows if len(set(row[1:])) > 1]:
            yield PageTable(title, ["key", *runs], rows, len(runs) + 1, note=DIFFER)
        else:
            yield Note(f"{title}: no difference.")


def _setting(settings: Mapping[str, Any], key: str) -> str:
    return shortened(shown(settings[key]), SHOWN_CHARS) if key in settings else ABSENT


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
