"""Embeddings: rows and sizes, a map of a sample, neighbours of the ids with most edges.

The report reads a bounded number of rows: a sample of every type for the map, and MAX_FLOATS numbers of a
type for the neighbours. Rows lie in the order of a hash of their ids, so the first rows of every partition
are a random sample.

Shapes: N rows, D dimension.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.display.readable import duration, number, size
from graphmill.library.nearest import Floats, by_cosine, nearest
from graphmill.library.run import Run
from graphmill.report.blocks import Block, Curves, Series, Table, Tile, Tiles
from graphmill.report.reading import mapping

SAMPLE_ROWS = 2000
"""Of all types together."""
MAX_FLOATS = 1 << 26
NUM_ASKED = 5
"""Ids of each type whose neighbours are shown."""
NUM_NEIGHBORS = 5
MAX_TYPES = 8


def vectors(run: Run, entry: Mapping[str, Any], etl: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks about the embeddings; `entry` and `etl` are the entries of remap and etl in run.json."""
    sizes = {name: run.size_bytes(name) for name in run.entity_types}
    dimensions = {name: run.dimension(name) for name in run.entity_types}
    embeddings = Tile("embeddings", number(sum(run.num_entities.values())), f"{len(sizes)} types")
    version = Tile("checkpoint", f"version {entry.get('checkpoint_version', '-')}")
    time = Tile("time", duration(entry.get("seconds")))
    yield Tiles([embeddings, Tile("size", size(sum(sizes.values()))), version, time])
    filled = [name for name, count in run.num_entities.items() if count]
    for dimension in sorted({dimensions[name] for name in filled}):
        yield from _map(run, [name for name in filled if dimensions[name] == dimension], dimension)
    yield from _neighbors(run, mapping(etl, "highest_degrees"))
    rows = [
        [name, number(count), number(dimensions[name]), size(sizes[name])]
        for name, count in run.num_entities.items()
    ]
    yield Table("Types", ["type", "rows", "dimension", "size"], rows)


def _map(run: Run, names: list[str], dimension: int) -> Iterator[Block]:
    shown = names[:MAX_TYPES]
    samples = [_sample(run, name, SAMPLE_ROWS // len(shown)) for name in shown]
    if sum(len(ids) for ids, _ in samples) < 3 or dimension < 2:
        return
    place_N2, share = project(np.concatenate([sample_ND for _, sample_ND in samples]))
    ends = np.cumsum([len(ids) for ids, _ in samples])
    series = [
        Series(name, xy[:, 0].tolist(), xy[:, 1].tolist(), "points", [f"{name} {each}"[:100] for each in ids])
        for name, (ids, _), xy in zip(shown, samples, np.split(place_N2, ends[:-1]), strict=True)
    ]
    more = f"; {len(names) - len(shown)} more types are not shown" if len(names) > len(shown) else ""
    note = f"The two directions in which vectors differ most hold {share:.0%} of the differences{more}."
    labels = "first principal component", "second principal component"
    title = f"A map of {ends[-1]:,} embeddings"
    yield Curves(f"map-{dimension}", title, *labels, series, square=True, note=note)


def _sample(run: Run, name: str, num_rows: int) -> tuple[list[str], Floats]:
    parts = list(run.iter_vectors(name, max_rows=num_rows))
    ids = [each for names, _ in parts for each in names.to_pylist()]
    return ids[:num_rows], np.concatenate([each for _, each in parts])[:num_rows]


def project(vectors_ND: Floats) -> tuple[npt.NDArray[np.float64], float]:
    """Principal components: [N, 2], each with its largest value positive, and the share of the variance."""
    centred_ND = vectors_ND.astype(np.float64) - vectors_ND.mean(axis=0, dtype=np.float64)
    _, scale, axes = np.linalg.svd(centred_ND, full_matrices=False)
    place_N2 = centred_ND @ axes[:2].T
    sign = np.sign(place_N2[np.abs(place_N2).argmax(axis=0), [0, 1]])
    spread = float((scale**2).sum())
    rounded = np.round(place_N2 * np.where(sign == 0, 1, sign), 5)
    return rounded, float((scale[:2] ** 2).sum()) / spread if spread else 0.0


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
                f"{name}: among the first {number(max_rows)} of {number(run.num_entities[name])} rows"
            )
        queries_QD = np.stack([found[each] for each in asked])
        near = nearest(run.iter_vectors(name, max_rows=max_rows), by_cosine(queries_QD), asked, NUM_NEIGHBORS)
        for raw_id, each in zip(asked, near, strict=True):
            listed = ", ".join(f"{neighbor.id} ({neighbor.similarity:.2f})" for neighbor in each)
            rows.append([name, raw_id, listed])
    if rows:
        title = "Nearest neighbours of the ids with most edges"
        yield Table(title, ["type", "id", "nearest (cosine)"], rows, 3, note="; ".join(notes))
