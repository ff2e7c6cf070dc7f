"""Quantiles of the entities' degrees, in memory that does not grow with the number of entities.

Degrees are counted in bins: one bin per degree below 128, and above that one bin per leading seven binary
digits. A quantile is at most 1/64 too low.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from etl.steps.spill import Int64

_DIGITS = 7
_SHOWN_DIGITS = 3
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
    length = np.frexp(degrees.astype(np.float64))[1].astype(np.int64)  # binary digits
    dropped = np.maximum(length - _DIGITS, 0)
    floors, counts = np.unique(degrees >> dropped << dropped, return_counts=True)
    return DegreeCounts(floors, counts, int(degrees.max(initial=0)))


def merge_counts(parts: Iterable[DegreeCounts]) -> DegreeCounts:
    """Add up the counts of several shards."""
    found = list(parts)
    floors, places = np.unique(np.concatenate([part.floors for part in found]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in found])).astype(np.int64)
    return DegreeCounts(floors, counts, max(part.largest for part in found))


def histogram(parts: Iterable[DegreeCounts]) -> list[list[int]]:
    """Count entities by degree, in up to four bins per octave: [first degree, last, entities], ascending."""
    found = [part for part in parts if len(part.floors)]
    if not found:
        return []
    floors, counts = (
        np.concatenate([getattr(part, each) for part in found]) for each in ("floors", "counts")
    )
    dropped = np.maximum(np.frexp(floors.astype(np.float64))[1].astype(np.int64) - _SHOWN_DIGITS, 0)
    first, places = np.unique(floors >> dropped << dropped, return_inverse=True)
    last = first + (1 << np.maximum(np.frexp(first.astype(np.float64))[1] - _SHOWN_DIGITS, 0)) - 1
    entities = np.bincount(places, counts).astype(np.int64)
    return [list(each) for each in zip(first.tolist(), last.tolist(), entities.tolist(), strict=True)]


def summarize(parts: Iterable[DegreeCounts]) -> dict[str, int]:
    """Return quantiles of the degrees of several shards: min, p50, p90, p99, p99.9, max."""
    found = [part for part in parts if len(part.floors)]
    if not found:
        return {}
    merged = merge_counts(found)
    floors, below = merged.floors, np.cumsum(merged.counts)
    ranks = [int(np.ceil(quantile * below[-1])) for quantile in QUANTILES]
    names = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    quantiles = {
        name: int(floors[np.searchsorted(below, rank)]) for name, rank in zip(names, ranks, strict=True)
    }
    return {"min": int(floors[0]), **quantiles, "max": merged.largest}
