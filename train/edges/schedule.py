"""The schedule of a run: epochs, edge paths, chunks of every bucket.

An iteration trains on one chunk of every bucket of one edge path. A checkpoint's version is the number of
finished iterations. Source: docs/formats/pbg_v1.md.

With `train.replay`, a run that starts from an earlier run's checkpoint (init_path) trains the edges that etl
has added since that run, a delta, and for each of them `replay` of the other edges, which are drawn anew in
every epoch (train/step/delta.py). Otherwise it trains all edges.

No import of torch: the client of a distributed run needs this module.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from graphmill.checkpoints.pbg import Iteration
from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import all_buckets
from graphmill.errors import ConfigError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.origins import added_rows, has_added
from graphmill.vocab import Bucket


class ChunkShare(NamedTuple):
    """The part of a bucket file that a visit trains on: chunk `chunk` of it, and of that part `part`."""

    chunk: int
    num_chunks: int
    part: int = 0
    num_parts: int = 1

    def rows(self, count: int) -> tuple[int, int]:
        """First row of the part in a file with `count` rows, and the row after the last."""
        start, stop = equal_part(count, self.chunk, self.num_chunks)
        first, last = equal_part(stop - start, self.part, self.num_parts)
        return start + first, start + last


@dataclass(frozen=True)
class Schedule:
    """All iterations of a run."""

    num_epochs: int
    edge_paths: tuple[str, ...]
    num_edge_chunks: int
    num_edges: Mapping[tuple[int, Bucket], int]  # edges of each bucket, by edge path and bucket
    shares: Sequence[float] = ()  # of the edges of each path that an epoch trains, about; empty: all

    @property
    def per_epoch(self) -> int:
        """Iterations of one epoch."""
        return len(self.edge_paths) * self.num_edge_chunks

    @property
    def num_iterations(self) -> int:
        """Iterations of the whole run: the version that it ends with."""
        return self.num_epochs * self.per_epoch

    def iteration(self, index: int) -> Iteration:
        """The iteration that follows checkpoint version `index`."""
        epoch, rest = divmod(index, self.per_epoch)
        path, chunk = divmod(rest, self.num_edge_chunks)
        return Iteration(
            num_epochs=self.num_epochs,
            epoch_idx=epoch,
            num_edge_paths=len(self.edge_paths),
            edge_path_idx=path,
            edge_path=self.edge_paths[path],
            num_edge_chunks=self.num_edge_chunks,
            edge_chunk_idx=chunk,
        )

    def share(self, iteration: Iteration) -> ChunkShare:
        """The part of each bucket that the iteration trains on."""
        return ChunkShare(iteration.edge_chunk_idx, self.num_edge_chunks)

    def rows(self, iteration: Iteration, bucket: Bucket, share: ChunkShare) -> tuple[int, int]:
        """First row of a share of a bucket's edges, and the row after the last."""
        return share.rows(self.num_edges[iteration.edge_path_idx, bucket])

    def num_edges_of(self, index: int) -> int:
        """Edges that the iteration after checkpoint version `index` trains on; about, of a delta."""
        count = self.num_read(index)
        return round(count * self.shares[self.iteration(index).edge_path_idx]) if self.shares else count

    def num_read(self, index: int) -> int:
        """Edges that the iteration after checkpoint version `index` reads."""
        iteration = self.iteration(index)
        counts = [count for (path, _), count in self.num_edges.items() if path == iteration.edge_path_idx]
        return sum(stop - start for start, stop in map(self.share(iteration).rows, counts))

    def preserved_epoch(self, config: PbgConfig, version: int) -> int | None:
        """The epoch that ends with `version`, if checkpoint_preservation_interval preserves the epoch."""
        epoch, rest = divmod(version, self.per_epoch)
        interval = config.checkpoint_preservation_interval
        return epoch if interval and not rest and epoch % interval == 0 else None

    def check_resumed(self, ended: Iteration | None, version: int) -> None:
        """Refuse a checkpoint whose versions count iterations of another kind than this run."""
        for key in ("num_edge_paths", "num_edge_chunks"):
            ours, theirs = getattr(self.iteration(0), key), getattr(ended, key, None)
            if theirs is not None and theirs != ours:
                name = "edge_paths" if key == "num_edge_paths" else key
                raise ConfigError(
                    f"{name}: the checkpoint's version {version} was counted with {key} {theirs}, this run "
                    f"has {ours}; set {name} as it was, or train into another checkpoint_path"
                )


def equal_part(count: int, number: int, parts: int) -> tuple[int, int]:
    """First row of a part of `count` rows that are cut into equal parts, and the row after the last."""
    return number * count // parts, (number + 1) * count // parts


def plan(config: PbgConfig) -> Schedule:
    """Plan a run. A missing bucket is an error before training: the plan looks for every bucket file."""
    num_edges = {
        (number, bucket): count
        for number, edge_path in enumerate(config.edge_paths)
        for bucket, count in edge_buckets.count_all(edge_path, all_buckets(config)).items()
    }
    shares: list[float] = []
    if isinstance(config, Config) and is_delta(config):
        for number, path in enumerate(config.edge_paths):
            total = sum(count for (of_path, _), count in num_edges.items() if of_path == number)
            shares.append(trained_share(config, path, total))
    chunks = config.num_edge_chunks or math.ceil(max(num_edges.values()) / config.max_edges_per_chunk)
    return Schedule(config.num_epochs, config.edge_paths, max(1, chunks), num_edges, shares)


_NUM_READING = 16  # threads, which wait for HDFS


def is_delta(config: PbgConfig) -> bool:
    """Tell whether the run trains only added edges, and a replay of others."""
    return why_whole(config) == ""


def why_whole(config: PbgConfig) -> str | None:
    """Say why a run with `train.replay` trains all edges; "" if it does not, None without `train.replay`."""
    if not isinstance(config, Config) or config.train.replay is None:
        return None
    if config.init_path is None:
        return "there is no init_path to start from"
    if any(entity.featurized for entity in config.entities.values()):
        return "a type is featurized"
    whole = [path for path in config.edge_paths if not has_added(path)]
    return f"etl took no edges of {whole[0]} from an earlier run" if whole else ""


def trained_share(config: Config, path: str, num_edges: int) -> float:
    """Share of the edges of a folder, of `num_edges`, that an epoch of a delta trains; about."""
    with ThreadPoolExecutor(_NUM_READING) as pool:
        added = pool.map(partial(added_rows, path), all_buckets(config))
        num_added = sum(int(np.diff(rows, axis=1).sum()) for rows in added)
    replay = config.train.replay or 0.0
    return min(1.0, num_added * (1 + replay) / max(num_edges, 1))
