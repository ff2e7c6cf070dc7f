"""Training of a delta: decides whether a run trains only the edges that etl has added, and counts them.

With `train.replay`, a run that starts from an earlier run's checkpoint (init_path) trains the edges that etl
has added since that run, and for each of them `replay` of the other edges, which are drawn anew in every
epoch (train/step/delta.py). Otherwise it trains all edges.

No import of torch: the client of a distributed run needs this module.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from graphmill.config import Config, PbgConfig
from graphmill.config.partitions import all_buckets
from graphmill.formats.edge_buckets.origins import added_rows, has_added
from graphmill.vocab import Bucket

_NUM_READING = 16  # threads, which wait for HDFS


def is_delta(config: PbgConfig) -> bool:
    """Whether the run trains only added edges, and a replay of others."""
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
        counts = pool.map(partial(_num_added, path), all_buckets(config))
        num_added = sum(counts)
    replay = config.train.replay or 0.0
    return min(1.0, num_added * (1 + replay) / max(num_edges, 1))


def _num_added(path: str, bucket: Bucket) -> int:
    return int(np.diff(added_rows(path, bucket), axis=1).sum())
