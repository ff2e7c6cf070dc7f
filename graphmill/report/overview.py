"""A whole run: its status, its errors, the time of each stage and step; settings, to repeat the run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.config.sections import SECTIONS
from graphmill.display.readable import duration, number, shortened
from graphmill.report.charts import bars
from graphmill.report.page import Block, Note, PageTable, PageTile, Tiles
from graphmill.run.reading import flattened, mapping, total
from graphmill.run.verdict import verdict

SHOWN_CHARS = 300


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
    for name, entry in stages.items():
        if entry.get("status") == "left out":
            yield Note(f"The stage {name} was left out: {entry.get('reason')}.")


def _tiles(record: Mapping[str, Any], stages: Mapping[str, Any]) -> Iterator[PageTile]:
    etl, train = mapping(stages, "etl"), mapping(stages, "train")
    if "num_entities" in etl:
        yield PageTile("entities", total(etl["num_entities"]), f"{len(etl['num_entities'])} types")
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
    note = "Good: all are done. What failed or is still running has no results that count."
    yield PageTable("Stages", ["stage", "status", "started", "time"], rows, 3, note=note)
    config = [[key, shown(value)] for key, value in flattened(mapping(record, "config")).items()]
    note = "Good: what you meant. Keys that you have not set have their default here."
    yield PageTable("Settings", ["key", "value"], config, 2, folded=True, note=note)


def shown(value: Any) -> str:
    """A setting as in YAML; a very long setting is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, SHOWN_CHARS)
