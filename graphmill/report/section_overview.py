"""Overview: the run's status, its errors, and the time of each stage and step."""

from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.config.stages import STAGES
from graphmill.display.readable import duration, number
from graphmill.report.blocks import Bars, Block, Note, Tile, Tiles
from graphmill.report.reading import mapping, total
from graphmill.report.verdict import verdict


def overview(record: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the whole run."""
    stages = mapping(record, "stages")
    yield from _errors(record, stages)
    evaluated = mapping(stages, "evaluate")
    if evaluated.get("status") == "done":
        yield verdict(evaluated, mapping(record, "before"))
    yield Tiles(list(_tiles(record, stages)))
    times = dict(_times(stages))
    if times:
        groups = {"seconds": list(times.values())}
        note = "Short bars are good. The longest one is where more workers or other settings help most."
        yield Bars("time", "Where the time went", "seconds", list(times), groups, note=note)


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


def _tiles(record: Mapping[str, Any], stages: Mapping[str, Any]) -> Iterator[Tile]:
    etl, train = mapping(stages, "etl"), mapping(stages, "train")
    if "num_entities" in etl:
        yield Tile("entities", number(total(etl["num_entities"])), f"{len(etl['num_entities'])} types")
    if "num_edges" in etl:
        yield Tile("edges", number(total(etl["num_edges"])), ", ".join(etl["num_edges"]))
    metrics = mapping(record, "metrics")
    if "mrr" in metrics:
        yield Tile("MRR", number(metrics["mrr"]), f"of {number(metrics.get('num_edges'))} held-out edges")
    if train.get("edges_per_s"):
        yield Tile("training", f"{number(train['edges_per_s'])}", "edges per second")
    seconds = sum(entry.get("seconds", 0) for entry in stages.values())
    yield Tile("time of all stages", duration(seconds), ", ".join(stages))


def _times(stages: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in (each for each in dict.fromkeys([*STAGES, *stages]) if each in stages):
        entry = stages[name]
        if isinstance(entry.get("seconds"), int | float):
            yield name, entry["seconds"]
            steps = mapping(entry, "step_seconds")
            yield from ((f"{name}: {step}", seconds) for step, seconds in steps.items())
