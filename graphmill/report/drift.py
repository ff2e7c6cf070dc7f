"""Drift: how far the vectors of the same ids have moved since the run before.

Shapes: N ids, D dimension.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from graphmill.display.readable import number
from graphmill.library.nearest import unit
from graphmill.library.run import Run
from graphmill.report.blocks import Bars, Block, Table
from graphmill.report.sample import MAX_FLOATS, MAX_TYPES, SAMPLE_ROWS, sampled

BIN = 0.1
STEADY = 0.9

Cosines = npt.NDArray[np.float64]


def drift(run: Run, before: Run) -> Iterator[Block]:
    """A table and a histogram of the cosines of a sample of ids that both runs have."""
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
    yield Table("Vectors against the run before", columns, rows, note=said)
    yield _histogram(found)


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
    """Shares of the ids of each type by their cosine, from the smallest that occurs up to 1."""
    least = min(float(each.min()) for each in found.values())
    num_bins = max(1, int(np.ceil((1 - least) / BIN - 1e-9)))
    edges = np.round(1 - BIN * np.arange(num_bins, -1, -1), 1)
    groups = {}
    for name, each in found.items():
        counts, _ = np.histogram(np.clip(each, edges[0], 1), edges)
        groups[name] = (counts / len(each)).tolist()
    labels = [f"{first:.1f} to {last:.1f}" for first, last in pairwise(edges)]
    groups = {name: shares[::-1] for name, shares in groups.items()}
    note = "Good: a long bar at the top and short ones below. Ids far below have new edges, or few."
    title = "Cosine with the vector of the run before"
    return Bars("drift", title, "share of ids", labels[::-1], groups, note=note)
