"""Vectors of the same ids in two runs: their cosines, counted in bins, so that parts of any size add up.

The drift of an id is 1 - cosine of its two vectors: 0 where it points where it did, 1 at a right angle, 2
where it was turned around. Bins of drift grow by DRIFT_RATIO, so a quantile is at most so much too high.

Shapes: N ids, D dimension, G bands of degrees, B bins of drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.earlier import pairs
from graphmill.formats import remapped

Floats = npt.NDArray[np.float32]
Cosines = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

LEAST_DRIFT = 1e-7  # a float's precision
DRIFT_RATIO = 1.01
NUM_BINS = int(np.ceil(np.log(2 / LEAST_DRIFT) / np.log(DRIFT_RATIO))) + 2
NUM_BANDS = 64  # 0 edges, 1, 2 to 3, 4 to 7, ...
SHOWN = (1.0, 0.999, 0.99, 0.95, 0.9, 0.8, 0.5, 0.0, -1.0)  # borders of cosines in run.json


@dataclass(frozen=True, eq=False)
class Moved:
    """Drift of the ids of a type, or of a part of them.

    Attributes:
        num_ids: ids of this run.
        counts_GB: ids that both runs have, by band of their degree and bin of their drift.
        most: the ids that moved most, with their cosine and degree, the farthest first.
        sum_cosine: sum of the cosines.
        shown: ids by their cosine, between the borders SHOWN.
    """

    num_ids: int
    counts_GB: Counts
    most: list[tuple[float, str, int]] = field(default_factory=list)
    sum_cosine: float = 0.0
    shown: Counts = field(default_factory=lambda: np.zeros(len(SHOWN) - 1, np.int64))

    @classmethod
    def of(cls, num_ids: int, ids: pa.Array, cosine_N: Cosines, degree_N: Counts, num_most: int) -> "Moved":
        """Count ids (string [N]) that both runs have."""
        cell_N = _band_of(degree_N) * NUM_BINS + _bin_of(1 - cosine_N)
        counts = np.bincount(cell_N, minlength=NUM_BANDS * NUM_BINS)
        farthest = np.argsort(cosine_N, kind="stable")[:num_most].tolist()
        shown, _ = np.histogram(cosine_N, SHOWN[::-1])
        return cls(
            num_ids,
            counts.reshape(NUM_BANDS, NUM_BINS),
            [(float(cosine_N[row]), ids[row].as_py(), int(degree_N[row])) for row in farthest],
            float(cosine_N.sum()),
            shown[::-1].astype(np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence["Moved"], num_most: int) -> "Moved":
        """Add up the parts of a type."""
        return cls(
            sum(part.num_ids for part in parts),
            np.sum([part.counts_GB for part in parts], axis=0),
            sorted(each for part in parts for each in part.most)[:num_most],
            sum(part.sum_cosine for part in parts),
            np.sum([part.shown for part in parts], axis=0),
        )

    @property
    def num_compared(self) -> int:
        """Number of ids that both runs have."""
        return int(self.counts_GB.sum())

    def figures(self, num_before: int) -> dict[str, Any]:
        """Figures of a type for run.json, where the run before had `num_before` ids."""
        num = self.num_compared
        found: dict[str, Any] = {
            "num_compared": num,
            "num_new": self.num_ids - num,
            "num_gone": num_before - num,
        }
        if not num:
            return found
        bands = [
            {"first": _first_of(band), "last": max(0, 2 * _first_of(band) - 1), **_quantiles(counts_B)}
            for band, counts_B in enumerate(self.counts_GB)
            if counts_B.any()
        ]
        return found | {
            "mean_cosine": round(self.sum_cosine / num, 7),
            **_quantiles(self.counts_GB.sum(0)),
            "by_cosine": [
                {"from": low, "to": high, "num_ids": int(count)}
                for (high, low), count in zip(pairwise(SHOWN), self.shown, strict=True)
            ],
            "by_degree": bands,
            "moved_most": [
                {"id": raw_id, "cosine": round(cosine, 7), "degree": degree}
                for cosine, raw_id, degree in self.most
            ],
        }


def moved_of_part(
    places: tuple[str, str],
    entity_type: str,
    part: int,
    parts_before: Sequence[int],
    degree_N: Counts,
    num_most: int,
) -> Moved:
    """Compare a part of this run with the parts of the run before that may have its ids.

    Args:
        places: folders of the embeddings of this run and of the run before.
        degree_N: edges of each row of the part.
        num_most: ids to name.
    """
    now, before = places
    num_rows, _ = remapped.shape_of(now, entity_type, part)
    cosine_N = np.full(num_rows, np.nan)
    batches = partial(remapped.iter_part, now, entity_type, part)
    for row_N, now_ND, then_ND in pairs(batches, before, entity_type, parts_before):
        cosine_N[row_N] = cosines(now_ND, then_ND)
    found = np.flatnonzero(~np.isnan(cosine_N))
    ids = remapped.read_ids(now, entity_type, part).take(pa.array(found))
    return Moved.of(num_rows, ids, cosine_N[found], degree_N[found], num_most)


def cosines(now_ND: Floats, then_ND: Floats) -> Cosines:
    """The cosine of each row's two vectors, [N]: of two zero vectors 1, of a zero vector and another 0."""
    now, then = now_ND.astype(np.float64), then_ND.astype(np.float64)
    lengths_N = np.sqrt(np.einsum("nd,nd->n", now, now) * np.einsum("nd,nd->n", then, then))
    are_zero_N = ~now.any(1) & ~then.any(1)
    found_N: Cosines = np.einsum("nd,nd->n", now, then) / np.where(lengths_N > 0, lengths_N, 1)
    return np.where(are_zero_N, 1.0, np.clip(found_N, -1, 1))


def _bin_of(drift_N: Cosines) -> Counts:
    """Number of the bin of each drift: 0 up to LEAST_DRIFT."""
    steps = np.log(np.maximum(drift_N, LEAST_DRIFT) / LEAST_DRIFT) / np.log(DRIFT_RATIO)
    bin_N: Counts = np.minimum(np.ceil(steps), NUM_BINS - 1).astype(np.int64)
    return bin_N


def _band_of(degree_N: Counts) -> Counts:
    """Number of the band of each degree: 0, then one for each power of two."""
    _, exponent_N = np.frexp(degree_N.astype(np.float64))
    band_N: Counts = exponent_N.astype(np.int64)
    return band_N


def _first_of(band: int) -> int:
    return 1 << band >> 1


def _quantiles(counts_B: Counts) -> dict[str, Any]:
    """Number of ids, and percentiles of their cosines: p10 is what the tenth that moved most is below."""
    below_B = np.cumsum(counts_B)
    found: dict[str, Any] = {"num_ids": int(below_B[-1])}
    for name, share in (("p50", 0.5), ("p10", 0.9), ("p1", 0.99)):
        place = int(np.searchsorted(below_B, share * below_B[-1]))
        drift = 0.0 if place == 0 else min(2.0, LEAST_DRIFT * DRIFT_RATIO**place)
        found[name] = round(1 - drift, 7)
    return found
