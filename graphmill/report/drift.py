"""Drift: how far the vectors of the same ids have moved since the run before.

The figures of the stage drift, of all ids; without that stage those of a sample.

Shapes: N ids, D dimension.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.ask.nearest import unit
from graphmill.display.readable import number
from graphmill.library.run import Run
from graphmill.report.blocks import Bars, Block, Note, Table
from graphmill.report.reading import mapping, records
from graphmill.report.sample import MAX_FLOATS, MAX_TYPES, SAMPLE_ROWS, sampled

STEADY = 0.9
PERCENTILES = ("p50", "p10", "p1")

Cosines = npt.NDArray[np.float64]


def measured(entry: Mapping[str, Any]) -> Iterator[Block]:
    """Blocks of the stage's entry in run.json: by type, by degree, and the ids that moved most."""
    if entry.get("error"):
        yield Note("Vectors have moved farther than allowed.", "warning", str(entry["error"]))
    kinds = {name: mapping(mapping(entry, "types"), name) for name in mapping(entry, "types")}
    rows = [
        [name, *(number(each.get(key)) for key in ("num_compared", "num_new", "num_gone", *PERCENTILES))]
        for name, each in kinds.items()
    ]
    columns = ["type", "ids of both runs", "new", "gone", "median cosine", "10th percentile", "1st"]
    note = (
        "Good: cosines near 1, so vectors of both runs can be compared, and stored ones need no replacement. "
        f"The run before: {entry.get('before', '-')}"
    )
    yield Table("Vectors against the run before", columns, rows, note=note)
    bands = [
        [name, _degrees(band), number(band.get("num_ids")), *(number(band.get(key)) for key in PERCENTILES)]
        for name, each in kinds.items()
        for band in records(each, "by_degree")
    ]
    note = "Good: only ids with few edges, which a new edge moves most, are below the others."
    columns = ["type", "edges", "ids", "median cosine", "10th percentile", "1st"]
    yield Table("Drift by number of edges", columns, bands, note=note)
    moved = [
        [name, str(each.get("id")), number(each.get("cosine")), number(each.get("degree"))]
        for name, kind in kinds.items()
        for each in records(kind, "moved_most")
    ]
    note = "Look here first: new edges explain a move, a cosine far below the others without them does not."
    yield Table("The ids that moved most", ["type", "id", "cosine", "edges"], moved, note=note)


def _degrees(band: Mapping[str, Any]) -> str:
    first, last = band.get("first"), band.get("last")
    return number(first) if first == last else f"{number(first)} to {number(last)}"


def drift(run: Run, before: Run) -> Iterator[Block]:
    """A histogram and a table of the cosines of a sample of ids that both runs have."""
    shared = [name for name in run.entity_types if name in before.entity_types][:MAX_TYPES]
    shared = [name for name in shared if run.dimension(name) == before.dimension(name)]
    found = {name: cosines(run, before, name) for name in shared}
    found = {name: each for name, each in found.items() if len(each)}
    if not found:
        return
    middle = {name: float(np.median(each)) for name, each in found.items()}
    moved = [name for name, each in middle.items() if each < STEADY]
    if moved:
        said = (
            f"Bad, if you use vectors of both runs together: {', '.join(moved)} moved much. Start from the "
            "checkpoint before (init_path), or replace all stored vectors at once."
        )
    else:
        said = "Good: the middle id has hardly moved, so vectors of both runs can be compared."
    rows = [
        [name, number(len(each)), number(middle[name]), number(float(np.percentile(each, 10)))]
        for name, each in found.items()
    ]
    columns = ["type", "ids compared", "median cosine", "10th percentile"]
    yield _histogram(found)
    yield Table("Vectors against the run before", columns, rows, note=said)


def cosines(run: Run, before: Run, entity_type: str) -> Cosines:
    """The cosine of each sampled id's two vectors, of the ids that both runs have: [N]."""
    ids, now_ND = sampled(run, entity_type, SAMPLE_ROWS)
    then = before.find(entity_type, ids, max(1, MAX_FLOATS // before.dimension(entity_type)))
    rows = [row for row, each in enumerate(ids) if each in then]
    if not rows:
        return np.empty(0)
    then_ND = np.stack([then[ids[row]] for row in rows])
    cosine_N: Cosines = (unit(now_ND[rows]) * unit(then_ND)).sum(axis=1, dtype=np.float64)
    return np.clip(cosine_N, -1, 1)


def _histogram(found: dict[str, Cosines]) -> Block:
    """Shares of the ids of each type by their cosine, from 1 down to the smallest that occurs."""
    least = min(float(each.min()) for each in found.values())
    digits = next((each for each in (3, 2) if least >= 1 - 10 * 10.0**-each), 1)
    step = 10.0**-digits
    num_bins = max(1, int(np.ceil((1 - least) / step - 1e-9)))
    ends = np.round(1 - step * np.arange(num_bins + 1), digits)
    groups = {}
    for name, each in found.items():
        counts, _ = np.histogram(np.clip(each, ends[-1], 1), ends[::-1])
        groups[name] = (counts[::-1] / len(each)).tolist()
    labels = [f"{low:.{digits}f} to {high:.{digits}f}" for high, low in pairwise(ends)]
    note = "Good: long bars at the top and short ones below. Ids far below have new edges, or few."
    return Bars(
        "drift", "Cosine with the vector of the run before", "share of ids", labels, groups, note=note
    )
