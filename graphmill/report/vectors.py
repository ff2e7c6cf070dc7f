"""Embeddings: rows and sizes, a map of a sample (`maps`), drift since the run before, neighbours.

Shapes: N rows, D dimension, Q queries.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from graphmill.ask.neighbors import by_cosine, nearest, unit
from graphmill.display.readable import duration, number, size
from graphmill.library.run import Run
from graphmill.report.charts import bars
from graphmill.report.maps import MAX_TYPES, SAMPLE_ROWS, Labels, maps, sampled
from graphmill.report.page import Block, Note, PageTable, PageTile, Tiles
from graphmill.report.results import band_name
from graphmill.run.reading import Entry, mapping, records

MAX_FLOATS = 1 << 26
"""Numbers of a type that are read to find ids and their neighbours."""
NUM_ASKED = 5
"""Ids of each type whose neighbours are shown."""
NUM_NEIGHBORS = 5
STEADY = 0.9
PERCENTILES = {"p50": "median cosine", "p10": "10th percentile", "p1": "1st"}

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
    embeddings = PageTile("embeddings", sum(run.num_entities.values()), f"types: {len(sizes)}")
    version = PageTile("checkpoint", f"version {entry.get('checkpoint_version', '-')}")
    time = PageTile("time", duration(entry.get("seconds")))
    yield Tiles([embeddings, PageTile("size", size(sum(sizes.values()))), version, time])
    train = mapping(run.stages, "train")
    is_open = train.get("status") in ("running", "failed", "died")
    if is_open or str(train.get("finished", "")) > str(entry.get("finished", "")):
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
    rows = [[name, band_name(band), *map(band.get, ("num_ids", *PERCENTILES))] for name, band in bands]
    note = "Good: only ids with few edges, which a new edge moves most, are below the others."
    heads = ["type", "edges", "ids", *PERCENTILES.values()]
    yield PageTable("Drift by number of edges", heads, rows, note=note)
    moved = [(name, row) for name, kind in kinds.items() for row in records(kind, "moved_most")]
    rows = [[name, str(row.get("id")), row.get("cosine"), row.get("degree")] for name, row in moved]
    note = "Look here first: new edges explain a move, a cosine far below the others without them does not."
    yield PageTable("The ids that moved most", ["type", "id", "cosine", "edges"], rows, note=note)


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
    ids, now_ND = sampled(run, entity_type, SAMPLE_ROWS)
    then = before.find(entity_type, ids, max(1, MAX_FLOATS // before.dimension(entity_type)))
    then = {raw_id: vector_D for raw_id, vector_D in then.items() if np.isfinite(vector_D).all()}
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
