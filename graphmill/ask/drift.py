"""The distance that vectors have moved since the run before: one Dask task per partition, and no files.

Cosines of the same ids in two runs are counted in bins, so that parts of any size add up.
The drift of an id is 1 - cosine of its two vectors: 0 where it points where it did, 1 at a right angle, 2
where it was turned around. Bins of drift grow by DRIFT_RATIO, so a quantile is at most so much too high.

Shapes: N ids, D dimension, G bands of degrees, B bins of drift.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from distributed import Client

from graphmill import storage
from graphmill.ask.earlier import check_earlier, check_length, pairs, parts_of, parts_with
from graphmill.ask.edges import Graph, Numbers, Piece, degrees_of, pieces_of
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.config.sections.remap import DriftConfig
from graphmill.errors import ConfigError, DriftError
from graphmill.formats import remapped
from graphmill.run import fingerprints, record
from graphmill.run.job import Estimate, GraphSize, no_folders, refuse_nothing
from graphmill.run.lock import NO_CLAIM, Claim

Floats = npt.NDArray[np.float32]
Cosines = npt.NDArray[np.float64]

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
    counts_GB: Numbers
    most: list[tuple[float, str, int]] = field(default_factory=list)
    sum_cosine: float = 0.0
    shown: Numbers = field(default_factory=lambda: np.zeros(len(SHOWN) - 1, np.int64))

    @classmethod
    def of(cls, num_ids: int, ids: pa.Array, cosine_N: Cosines, degree_N: Numbers, num_most: int) -> "Moved":
        """Count ids (string [N]) that both runs have."""
        _, band_N = np.frexp(degree_N.astype(np.float64))
        steps = np.log(np.maximum(1 - cosine_N, LEAST_DRIFT) / LEAST_DRIFT) / np.log(DRIFT_RATIO)
        bin_N = np.minimum(np.ceil(steps), NUM_BINS - 1).astype(np.int64)  # 0 up to LEAST_DRIFT
        cell_N = band_N.astype(np.int64) * NUM_BINS + bin_N
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
            sorted(moved for part in parts for moved in part.most)[:num_most],
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
        counts: dict[str, Any] = {
            "num_compared": num,
            "num_new": self.num_ids - num,
            "num_gone": num_before - num,
        }
        if not num:
            return counts
        bands = [
            {"first": 1 << band >> 1, "last": (1 << band) - 1, **_quantiles(counts_B)}
            for band, counts_B in enumerate(self.counts_GB)
            if counts_B.any()
        ]
        return counts | {
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
    degree_N: Numbers | Graph,
    num_most: int,
) -> Moved:
    """Compare a part of this run with the parts of the run before that may have its ids; a Dask task.

    Args:
        places: folders of the embeddings of this run and of the run before.
        degree_N: edges of each row of the part; or the graph, whose edges are counted here.
        num_most: ids to name.
    """
    if isinstance(degree_N, Graph):
        key, config = (entity_type, part), degree_N.config
        degree_N = count_edges(degree_N, key, pieces_of(config, config.edge_paths, key))
    now, before = places
    num_rows, _ = remapped.shape_of(now, entity_type, part)
    cosine_N = np.full(num_rows, np.nan)
    batches = partial(remapped.iter_part, now, entity_type, part)
    for row_N, now_ND, then_ND in pairs(batches, before, entity_type, parts_before):
        cosine_N[row_N] = cosines(now_ND, then_ND)
    rows = np.flatnonzero(~np.isnan(cosine_N))
    ids = remapped.read_ids(now, entity_type, part).take(pa.array(rows))
    return Moved.of(num_rows, ids, cosine_N[rows], degree_N[rows], num_most)


def cosines(now_ND: Floats, then_ND: Floats) -> Cosines:
    """The cosine of each row's two vectors, [N]: of two zero vectors 1, of a zero vector and another 0.

    A vector that is not finite counts as zero: it has moved from a finite one, and is no new id.
    """
    now, then = (
        np.where(np.isfinite(rows_ND).all(1, keepdims=True), rows_ND, 0).astype(np.float64)
        for rows_ND in (now_ND, then_ND)
    )
    lengths_N = np.sqrt(np.einsum("nd,nd->n", now, now) * np.einsum("nd,nd->n", then, then))
    are_zero_N = ~now.any(1) & ~then.any(1)
    cosine_N: Cosines = np.einsum("nd,nd->n", now, then) / np.where(lengths_N > 0, lengths_N, 1)
    return np.where(are_zero_N, 1.0, np.clip(cosine_N, -1, 1))


def _quantiles(counts_B: Numbers) -> dict[str, Any]:
    """Number of ids, and percentiles of their cosines: p10 is what the tenth that moved most is below."""
    below_B = np.cumsum(counts_B)
    quantiles: dict[str, Any] = {"num_ids": int(below_B[-1])}
    for name, share in (("p50", 0.5), ("p10", 0.9), ("p1", 0.99)):
        place = int(np.searchsorted(below_B, share * below_B[-1]))
        drift = 0.0 if place == 0 else min(2.0, LEAST_DRIFT * DRIFT_RATIO**place)
        quantiles[name] = round(1 - drift, 7)
    return quantiles


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Return the reason why there is nothing to compare, or ""; the folders `coming` are written later.

    Raises:
        ConfigError: remap writes embeddings that cannot be compared.
    """
    settings = config.remap
    if not settings.is_standard or settings.id_maps:
        raise ConfigError(
            "drift: expected embeddings with a row for each row of the checkpoint, as in "
            "docs/formats/embeddings.md; found keys of remap that write others (output_format, vectors, "
            "column_names, rows_per_file, ids_path, id_maps); remove them, or the section drift"
        )
    before = _before(config)
    if before is None:
        return "there is no run before (drift.before, or the run of init_path)"
    if not storage.is_dir(before):
        return f"the run before has no embeddings: {before}"
    check_earlier("drift.before", before, config, config.entities)
    return ""


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Compare the vectors of all ids that both runs have; return figures by type.

    Raises:
        DriftError: the ids of a type have moved farther than drift.max_p10.
        BadInputError: the vectors of a type have another length than in the run before.
        FormatError: embeddings or edges are damaged.
    """
    settings = config.section(DriftConfig)
    now, before = places = config.embedding_path, _before(config) or ""
    all_parts = {name: (parts_of(now, name), parts_of(before, name)) for name in config.entities}
    both = {name: parts for name, parts in all_parts.items() if all(parts)}
    for name in both:
        check_length(before, name, config.entity_dimension(name), "drift")
    arguments = []
    for name, (parts, parts_before) in both.items():
        graph = Graph(config, {name: _num_rows(now, name, parts)})
        degrees = _degrees(graph, client, name) if len(parts) == 1 else graph
        for part in parts:
            others = parts_with(part, len(parts), parts_before)
            arguments.append((places, name, part, others, degrees, settings.num_moved))
    moved = run_tasks(client, moved_of_part, arguments, description="comparing", unit="partitions")
    figures: dict[str, Any] = {}
    for name, (_, parts_before) in both.items():
        own = [part for part, arguments_of in zip(moved, arguments, strict=True) if arguments_of[1] == name]
        num_before = sum(_num_rows(before, name, parts_before))
        figures[name] = Moved.joined(own, settings.num_moved).figures(num_before)
    result = {"before": before, "types": figures}
    limit = 2 if settings.max_p10 is None else settings.max_p10  # no drift is above 2
    drifts = {name: 1 - counts["p10"] for name, counts in figures.items() if "p10" in counts}
    if beyond := {name: drift for name, drift in drifts.items() if drift > limit}:
        listed = ", ".join(f"{name} {drift:.4g}" for name, drift in beyond.items())
        raise DriftError(
            f"drift: a tenth of the ids has moved by more than drift.max_p10 = {limit:g} (1 - cosine) since "
            f"{before}: {listed}; the embeddings are written, but the run does not count as finished. "
            "See report.html, and run the same command with a higher drift.max_p10 to accept them",
            result,
        )
    return result


def count_edges(graph: Graph, key: PartitionKey, pieces: Sequence[Piece]) -> Numbers:
    """Count the edges of each row of a partition; a Dask task."""
    return degrees_of(graph, {key: np.arange(graph.counts[key[0]][key[1]])}, pieces)


def _degrees(graph: Graph, client: Client, entity_type: str) -> Numbers:
    """Count the edges of each row of a type of one partition: all bucket files have some."""
    key = entity_type, 0
    lines: dict[int, list[Piece]] = {}
    for piece in pieces_of(graph.config, graph.config.edge_paths, key):
        lines.setdefault(piece.bucket.lhs, []).append(piece)
    arguments = [(graph, key, line) for line in lines.values()]
    total = np.zeros(graph.counts[entity_type][0], np.int64)
    add = partial(np.add, total, out=total)
    run_tasks(client, count_edges, arguments, description="counting edges", unit="parts", keep=add)
    return total


def _before(config: Config) -> str | None:
    settings = config.section(DriftConfig)
    if settings.before is not None or config.init_path is None:
        return settings.before
    return storage.join(record.run_of(config.init_path), "embeddings")


def _num_rows(embedding_path: str, entity_type: str, parts: list[int]) -> list[int]:
    return [remapped.shape_of(embedding_path, entity_type, part)[0] for part in parts]


def input_uris(config: Config) -> list[str]:
    """The embeddings of both runs, and the edges of this one."""
    return [config.embedding_path, *filter(None, [_before(config)]), *config.edge_paths]


def fingerprint(config: Config) -> dict[str, Any]:
    """Describe the settings and inputs that the figures depend on."""
    return {
        "drift": config.section(DriftConfig).result_settings(),
        "inputs": fingerprints.describe_inputs(input_uris(config)),
    }


def estimate(config: Config, size: GraphSize | None) -> Estimate:
    """Nothing to estimate: it reads what remap wrote."""
    return Estimate({}, size)


output_uris = written_uris = no_folders
check_outputs = refuse_nothing
