"""Quantiles of the entities' degrees, in memory that does not grow with the number of entities.

Degrees are counted in bins: one bin per degree below 128, and above that one bin per leading seven binary
digits. A quantile is at most 1/64 too low.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.storage.as_json import Int64

_DIGITS = 7
_SHOWN_DIGITS = 3
NUM_HIGHEST = 10
MAX_SHOWN_BYTES = 200  # longer ids are not shown in run.json
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, eq=False)
class DegreeCounts:
    """Number of entities per bin of degrees."""

    floors: Int64
    """[bins] smallest degree of each bin that is not empty, ascending."""
    counts: Int64
    """[bins] entities in it."""
    largest: int


def count_degrees(degrees: Int64) -> DegreeCounts:
    """Count entities by degree."""
    floors, counts = np.unique(_floors(degrees, _DIGITS)[0], return_counts=True)
    return DegreeCounts(floors, counts, int(degrees.max(initial=0)))


def merge_counts(parts: Iterable[DegreeCounts]) -> DegreeCounts:
    """Add up the counts of several shards."""
    all_parts = list(parts)
    floors, places = np.unique(np.concatenate([part.floors for part in all_parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in all_parts])).astype(np.int64)
    return DegreeCounts(floors, counts, max(part.largest for part in all_parts))


def histogram(merged: DegreeCounts) -> list[list[int]]:
    """Count entities by degree, in up to four bins per octave: [first degree, last, entities], ascending."""
    floors, widths = _floors(merged.floors, _SHOWN_DIGITS)
    first, at, places = np.unique(floors, return_index=True, return_inverse=True)
    entities = np.bincount(places, merged.counts).astype(np.int64)
    bins: list[list[int]] = np.stack([first, first + widths[at] - 1, entities], axis=1).tolist()
    return bins


def summarize(merged: DegreeCounts) -> dict[str, int]:
    """Return quantiles of the degrees: min, p50, p90, p99, p99.9, max; nothing of no entity."""
    if not len(merged.floors):
        return {}
    below = np.cumsum(merged.counts)
    at = np.searchsorted(below, [int(np.ceil(quantile * below[-1])) for quantile in QUANTILES])
    names = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    quantiles = dict(zip(names, merged.floors[at].tolist(), strict=True))
    return {"min": int(merged.floors[0]), **quantiles, "max": merged.largest}


def _floors(degrees: Int64, digits: int) -> tuple[Int64, Int64]:
    """Return the smallest degree of the bin of each degree, and the width of that bin."""
    length = np.frexp(degrees.astype(np.float64))[1].astype(np.int64)  # binary digits
    dropped = np.maximum(length - digits, 0)
    return degrees >> dropped << dropped, 1 << dropped


def highest_degrees(ids: pa.Array, degrees: Int64) -> list[tuple[int, str]]:
    """Return the `NUM_HIGHEST` ids with most edges, as `top_degrees`; none with long raw ids."""
    is_shown = pc.less_equal(pc.binary_length(ids), MAX_SHOWN_BYTES).to_numpy(zero_copy_only=False)
    shown = np.where(is_shown, degrees, 0)
    least = int(np.partition(shown, -NUM_HIGHEST)[-NUM_HIGHEST]) if len(shown) > NUM_HIGHEST else 0
    rows = np.flatnonzero(shown >= max(least, 1))  # many, where many have as few edges as the last one
    table = pa.table({"id": ids.take(pa.array(rows)), "degree": shown[rows]})
    order = [("degree", "descending"), ("id", "ascending")]
    table = table.take(pc.select_k_unstable(table, NUM_HIGHEST, order))
    return list(zip(table["degree"].to_pylist(), table["id"].to_pylist(), strict=True))


def top_degrees(pairs: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the `NUM_HIGHEST` ids with most edges; of equal ones the first by raw id."""
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:NUM_HIGHEST]
