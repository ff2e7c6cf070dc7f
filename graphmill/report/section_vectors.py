"""Embeddings: rows and sizes, a map of a sample, drift, neighbours of the ids with most edges.

Shapes: N rows, D dimension, Q queries.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphmill.ask.nearest import by_cosine, nearest
from graphmill.display.readable import duration, number, size
from graphmill.library.run import Run
from graphmill.report.blocks import Block, Note, Table, Tile, Tiles
from graphmill.report.drift import drift, measured
from graphmill.report.labels import Labels
from graphmill.report.map import maps
from graphmill.report.reading import mapping
from graphmill.report.sample import MAX_FLOATS, MAX_TYPES

NUM_ASKED = 5
"""Ids of each type whose neighbours are shown."""
NUM_NEIGHBORS = 5


def vectors(
    run: Run,
    entry: Mapping[str, Any],
    etl: Mapping[str, Any],
    labels: Labels | None = None,
    before: Run | None = None,
    drifted: Mapping[str, Any] | None = None,
) -> Iterator[Block]:
    """Blocks about the embeddings; `entry`, `etl`, `drifted` are entries of stages in run.json."""
    sizes = {name: run.size_bytes(name) for name in run.entity_types}
    embeddings = Tile("embeddings", number(sum(run.num_entities.values())), f"{len(sizes)} types")
    version = Tile("checkpoint", f"version {entry.get('checkpoint_version', '-')}")
    time = Tile("time", duration(entry.get("seconds")))
    yield Tiles([embeddings, Tile("size", size(sum(sizes.values()))), version, time])
    if _are_of_earlier_model(entry, mapping(run.stages, "train")):
        text = "These are vectors of an earlier model: training has begun since, and remap has not run."
        yield Note(text, "warning")
    yield from maps(run, labels)
    yield from _neighbors(run, mapping(etl, "highest_degrees"))
    if drifted and "types" in drifted:
        yield from measured(drifted)
    elif before is not None:
        yield from drift(run, before)
    rows = [
        [name, number(count), number(run.dimension(name)), size(sizes[name])]
        for name, count in run.num_entities.items()
    ]
    note = "Good: as many rows as you know entities. A type that is missing here has no train edge."
    yield Table("Types", ["type", "rows", "dimension", "size"], rows, note=note)


def _are_of_earlier_model(entry: Mapping[str, Any], train: Mapping[str, Any]) -> bool:
    """Whether run.json says that the checkpoint has changed since the embeddings were written."""
    is_open = train.get("status") in ("running", "failed")
    return is_open or str(train.get("finished", "")) > str(entry.get("finished", "~"))


def _neighbors(run: Run, highest: Mapping[str, Any]) -> Iterator[Block]:
    rows, notes = [], []
    for name in run.entity_types[:MAX_TYPES]:
        max_rows = max(1, MAX_FLOATS // run.dimension(name))
        asked = [str(raw_id) for _, raw_id in highest.get(name, [])[:NUM_ASKED]]
        found = run.find(name, asked, max_rows) if asked else {}
        asked = [each for each in asked if each in found]
        if not asked:
            continue
        if max_rows < run.num_entities[name]:
            notes.append(
                f"{name}: among the first {number(max_rows)} of {number(run.num_entities[name])} rows."
            )
        queries_QD = np.stack([found[each] for each in asked])
        near = nearest(run.iter_vectors(name, max_rows=max_rows), by_cosine(queries_QD), asked, NUM_NEIGHBORS)
        for raw_id, each in zip(asked, near, strict=True):
            listed = ", ".join(f"{neighbor.id} ({neighbor.similarity:.2f})" for neighbor in each)
            rows.append([name, raw_id, listed])
    if rows:
        title = "Nearest neighbours of the ids with most edges"
        said = "Good: neighbours that belong together. Bad: the same neighbours for all ids."
        yield Table(title, ["type", "id", "nearest (cosine)"], rows, 3, note=" ".join([said, *notes]))
