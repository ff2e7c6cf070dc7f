"""Embeddings: rows and sizes, a map of a sample, drift since the run before, neighbours.

Shapes: N rows, D dimension, Q queries.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.ask.neighbors import by_cosine, nearest, unit
from graphmill.checkpoints import Floats
from graphmill.display.readable import duration, number, size
from graphmill.errors import ConfigError
from graphmill.library.run import Run
from graphmill.report.charts import Series, bars, curves
from graphmill.report.labels import Labels
from graphmill.report.layout import kept_layout
from graphmill.report.page import Block, Note, PageTable, PageTile, Tiles
from graphmill.run.reading import mapping, records
from graphmill.run.results import FOLDER

SAMPLE_ROWS = 3000
"""Number of vectors, of all types together."""
MAX_FLOATS = 1 << 26
"""Numbers of a type that are read to find ids and their neighbours."""
MAX_TYPES = 8
NUM_ASKED = 5
"""Ids of each type whose neighbours are shown."""
NUM_NEIGHBORS = 5
MAX_COLOURS = 10
REST = "other"
NO_LABEL = "without label"
ID_CHARS = 100
STEADY = 0.9
PERCENTILES = {"p50": "median cosine", "p10": "10th percentile", "p1": "1st"}

Entry = Mapping[str, Any]
Cosines = npt.NDArray[np.float64]


def vectors(
    run: Run,
    entry: Entry,
    etl: Entry,
    labels: Labels | None = None,
    before: Run | None = None,
    drifted: Entry | None = None,
) -> Iterator[Block]:
    """Blocks about the embeddings; `entry`, `etl`, `drifted` are entries of stages in run.json."""
    sizes = {name: run.size_bytes(name) for name in run.entity_types}
    embeddings = PageTile("embeddings", sum(run.num_entities.values()), f"{len(sizes)} types")
    version = PageTile("checkpoint", f"version {entry.get('checkpoint_version', '-')}")
    time = PageTile("time", duration(entry.get("seconds")))
    yield Tiles([embeddings, PageTile("size", size(sum(sizes.values()))), version, time])
    if _are_of_earlier_model(entry, mapping(run.stages, "train")):
        text = "These are vectors of an earlier model: training has begun since, and remap has not run."
        yield Note(text, "warning")
    yield from maps(run, labels)
    yield from _neighbors(run, mapping(etl, "highest_degrees"))
    if drifted and "types" in drifted:
        yield from _measured(drifted)
    elif before is not None:
        yield from drift(run, before)
    rows = [[name, count, run.dimension(name), size(sizes[name])] for name, count in run.num_entities.items()]
    note = "Good: as many rows as you know entities. A type that is missing here has no train edge."
    yield PageTable("Types", ["type", "rows", "dimension", "size"], rows, note=note)


def _are_of_earlier_model(entry: Entry, train: Entry) -> bool:
    """Whether run.json says that the checkpoint has changed since the embeddings were written."""
    is_open = train.get("status") in ("running", "failed")
    return is_open or str(train.get("finished", "")) > str(entry.get("finished", "~"))


def _sampled(run: Run, entity_type: str, num_rows: int) -> tuple[list[str], Floats]:
    """Raw ids [N] and vectors [N, D] of about so many rows, from all partitions alike.

    Rows lie in the order of a hash of their ids, so the first rows of every partition are a random sample.
    """
    none = np.empty((0, run.dimension(entity_type)), np.float32)
    parts = list(run.iter_vectors(entity_type, max_rows=num_rows))
    ids = [raw_id for names, _ in parts for raw_id in names.to_pylist()]
    return ids[:num_rows], np.concatenate([none, *(part_ND for _, part_ND in parts)])[:num_rows]


def maps(run: Run, labels: Labels | None) -> Iterator[Block]:
    """One map for each length of vectors; with `labels`, one map of the type that has them."""
    filled = [name for name, count in run.num_entities.items() if count]
    if labels is not None:
        yield from _labelled(run, filled, labels)
        return
    for dimension in sorted({run.dimension(name) for name in filled}):
        yield from _by_type(run, [name for name in filled if run.dimension(name) == dimension])


def _by_type(run: Run, names: list[str]) -> Iterator[Block]:
    shown = names[:MAX_TYPES]
    samples = {name: _sampled(run, name, SAMPLE_ROWS // len(shown)) for name in shown}
    groups = [name for name, (ids, _) in samples.items() for _ in ids]
    tips = [f"{name} {raw_id}" for name, (ids, _) in samples.items() for raw_id in ids]
    title = f"A map of {len(tips):,} embeddings"
    said = "Good: groups that mean something to you; point at them to see their ids. Bad: one even cloud."
    more = f" {len(names) - len(shown)} more types are not shown." if len(names) > len(shown) else ""
    sample_ND = np.concatenate([sample_ND for _, sample_ND in samples.values()])
    yield from _map(run, sample_ND, groups, tips, title, said, more)


def _labelled(run: Run, filled: list[str], labels: Labels) -> Iterator[Block]:
    name = labels.entity_type or next(iter(filled), "")
    if name not in filled:
        raise ConfigError(f"--type: expected one of {', '.join(filled) or 'no type'}, found {name!r}")
    ids, sample_ND = _sampled(run, name, SAMPLE_ROWS)
    label_of = labels.of(ids)
    if not label_of:
        yield Note(f"No id of {name} in the map has a label in {labels.uri}.", "warning")
    groups = [label_of.get(raw_id, NO_LABEL) for raw_id in ids]
    tips = [f"{raw_id}: {label}" for raw_id, label in zip(ids, groups, strict=True)]
    column = labels.columns[1]
    said = f"Good: each {column} has a place of its own. Bad: all colours are mixed."
    yield from _map(
        run, sample_ND, groups, tips, f"A map of {len(ids):,} {name} embeddings by {column}", said
    )


def _map(
    run: Run, vectors_ND: Floats, groups: list[str], tips: list[str], title: str, said: str, more: str = ""
) -> Iterator[Block]:
    """A map with the most frequent groups in colours of their own, the rest in grey."""
    count, dimension = vectors_ND.shape
    if count < 3 or dimension < 2:
        return
    placed = kept_layout(storage.join(run.uri, FOLDER, f"map-{dimension}.json"), vectors_ND)
    counts = Counter(groups)
    counts.pop(NO_LABEL, None)
    most = [name for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_COLOURS]]
    rows: dict[str, list[int]] = {name: [] for name in (*most, REST)}
    for row, name in enumerate(groups):
        rows[name if name in rows else REST].append(row)
    series = [
        Series(name, x, y, "points", [tips[row][:ID_CHARS] for row in own], is_rest=name == REST)
        for name, own in rows.items()
        if own
        for x, y in [placed.places[own].T.tolist()]
    ]
    note = f"{said} {placed.meaning}{more}"
    yield from curves(f"map-{dimension}", title, *placed.axes, series, is_square=True, note=note)


def _neighbors(run: Run, highest: Entry) -> Iterator[Block]:
    rows, notes = [], ["Good: neighbours that belong together. Bad: the same neighbours for all ids."]
    for name in run.entity_types[:MAX_TYPES]:
        max_rows = max(1, MAX_FLOATS // run.dimension(name))
        asked = [str(raw_id) for _, raw_id in highest.get(name, [])[:NUM_ASKED]]
        vector_of = run.find(name, asked, max_rows) if asked else {}
        asked = [raw_id for raw_id in asked if raw_id in vector_of]
        if not asked:
            continue
        if max_rows < run.num_entities[name]:
            notes.append(
                f"{name}: among the first {number(max_rows)} of {number(run.num_entities[name])} rows."
            )
        queries_QD = np.stack([vector_of[raw_id] for raw_id in asked])
        near = nearest(run.iter_vectors(name, max_rows=max_rows), by_cosine(queries_QD), asked, NUM_NEIGHBORS)
        for raw_id, others in zip(asked, near, strict=True):
            rows.append([name, raw_id, ", ".join(f"{other.id} ({other.similarity:.2f})" for other in others)])
    heads = ["type", "id", "nearest (cosine)"]
    yield PageTable("Nearest neighbours of the ids with most edges", heads, rows, 3, note=" ".join(notes))


def _measured(entry: Entry) -> Iterator[Block]:
    """Blocks of the stage drift: by type, by degree, and the ids that moved most; figures of all ids."""
    if entry.get("error"):
        yield Note("Vectors have moved farther than allowed.", "warning", str(entry["error"]))
    kinds = {name: mapping(mapping(entry, "types"), name) for name in mapping(entry, "types")}
    keys = ("num_compared", "num_new", "num_gone", *PERCENTILES)
    rows = [[name, *map(kind.get, keys)] for name, kind in kinds.items()]
    note = (
        "Good: cosines near 1, so vectors of both runs can be compared, and stored ones need no replacement. "
        f"The run before: {entry.get('before', '-')}"
    )
    heads = ["type", "ids of both runs", "new", "gone", *PERCENTILES.values()]
    yield PageTable("Vectors against the run before", heads, rows, note=note)
    bands = [(name, band) for name, kind in kinds.items() for band in records(kind, "by_degree")]
    rows = [[name, _degrees(band), *map(band.get, ("num_ids", *PERCENTILES))] for name, band in bands]
    note = "Good: only ids with few edges, which a new edge moves most, are below the others."
    yield PageTable(
        "Drift by number of edges", ["type", "edges", "ids", *PERCENTILES.values()], rows, note=note
    )
    moved = [(name, row) for name, kind in kinds.items() for row in records(kind, "moved_most")]
    rows = [[name, str(row.get("id")), row.get("cosine"), row.get("degree")] for name, row in moved]
    note = "Look here first: new edges explain a move, a cosine far below the others without them does not."
    yield PageTable("The ids that moved most", ["type", "id", "cosine", "edges"], rows, note=note)


def _degrees(band: Entry) -> str:
    first, last = band.get("first"), band.get("last")
    return number(first) if first == last else f"{number(first)} to {number(last)}"


def drift(run: Run, before: Run) -> Iterator[Block]:
    """A histogram and a table of the cosines of a sample of ids that both runs have."""
    shared = [name for name in run.entity_types if name in before.entity_types][:MAX_TYPES]
    shared = [name for name in shared if run.dimension(name) == before.dimension(name)]
    cosines_of = {name: cosine_N for name in shared if len(cosine_N := cosines(run, before, name))}
    if not cosines_of:
        return
    middle = {name: float(np.median(cosine_N)) for name, cosine_N in cosines_of.items()}
    rows = [[name, len(own_N), middle[name], np.percentile(own_N, 10)] for name, own_N in cosines_of.items()]
    said = "Good: the middle id has hardly moved, so vectors of both runs can be compared."
    if moved := [name for name, cosine in middle.items() if cosine < STEADY]:
        said = (
            f"Bad, if you use vectors of both runs together: {', '.join(moved)} moved much. Start from the "
            "checkpoint before (init_path), or replace all stored vectors at once."
        )
    yield from _histogram(cosines_of)
    heads = ["type", "ids compared", "median cosine", "10th percentile"]
    yield PageTable("Vectors against the run before", heads, rows, note=said)


def cosines(run: Run, before: Run, entity_type: str) -> Cosines:
    """The cosine of each sampled id's two vectors, of the ids that both runs have: [N]."""
    ids, now_ND = _sampled(run, entity_type, SAMPLE_ROWS)
    then = before.find(entity_type, ids, max(1, MAX_FLOATS // before.dimension(entity_type)))
    rows = [row for row, raw_id in enumerate(ids) if raw_id in then]
    if not rows:
        return np.empty(0)
    then_ND = np.stack([then[ids[row]] for row in rows])
    cosine_N: Cosines = (unit(now_ND[rows]) * unit(then_ND)).sum(axis=1, dtype=np.float64)
    return np.clip(cosine_N, -1, 1)


def _histogram(cosines_of: dict[str, Cosines]) -> Iterator[Block]:
    """Shares of the ids of each type by their cosine, from 1 down to the smallest that occurs."""
    least = min(float(cosine_N.min()) for cosine_N in cosines_of.values())
    digits = next((count for count in (3, 2) if least >= 1 - 10 * 10.0**-count), 1)
    step = 10.0**-digits
    num_bins = max(1, int(np.ceil((1 - least) / step - 1e-9)))
    ends = np.round(1 - step * np.arange(num_bins + 1), digits)
    groups = {}
    for name, cosine_N in cosines_of.items():
        counts, _ = np.histogram(np.clip(cosine_N, ends[-1], 1), ends[::-1])
        groups[name] = (counts[::-1] / len(cosine_N)).tolist()
    labels = [f"{low:.{digits}f} to {high:.{digits}f}" for high, low in pairwise(ends)]
    note = "Good: long bars at the top and short ones below. Ids far below have new edges, or few."
    title = "Cosine with the vector of the run before"
    yield from bars("drift", title, "share of ids", labels, groups, note=note)
