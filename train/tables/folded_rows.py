"""First rows of new ids in a delta: solved from their edges, while the earlier run's model stays as it is.

    {checkpoint_path}/folded/                   from the start of a run to its end, as `given_rows` says
        given.json
        {type}/part-{partition:05d}.parquet     of each partition with new rows
        checksums.xxh128

The earlier run is that of init_path, with the entities and edges of etl.previous_entity_path and
etl.previous_edge_path. The solution is that of `graphmill fold-in` (graphmill/ask/fold_in). Memory takes the
new edges of one partition.

No import of torch: the client of a run needs this module; tasks use train/tables/folding.py.
"""

from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import NotFoundError
from graphmill.formats import entity_counts
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from graphmill.vocab import TRAIN_SPLIT, Side
from train.edges.schedule import is_delta
from train.tables.given_rows import EarlierRows, Given, given_paths, is_made, write_content

FOLDER = "folded"


def folder_of(config: Config) -> str:
    """The folder of a run's rows."""
    return storage.join(config.checkpoint_path, FOLDER)


def first_new(config: Config) -> dict[str, list[int]]:
    """The first new row of each partition of the types of a delta whose new ids are folded in.

    Those with `train.init_embeddings` are not.
    """
    earlier = _earlier(config) if is_delta(config) else None
    if earlier is None:
        return {}
    known = pbg.num_partitions(earlier.checkpoint_path, pbg.read_version(earlier.checkpoint_path))
    used = {relation.entity_type(side) for relation in config.relations for side in Side}
    given = given_paths(config)
    num_partitions = {
        name: num
        for name, num in config.num_partitions.items()
        if name in used and known.get(name) == num and name not in given
    }
    counts = entity_counts.read_counts(earlier.entity_path, num_partitions)
    rows = EarlierRows(config.entity_path)
    return {
        name: [
            len(rows.kept(name, part, count, entity_counts.count_uri(earlier.entity_path, name, part)))
            for part, count in enumerate(of_type)
        ]
        for name, of_type in counts.items()
    }


def make(config: Config, client: Client, claim: Claim = NO_CLAIM) -> None:
    """Solve the new rows of a run, unless it has a version or has them already."""
    starts = first_new(config)
    earlier = _earlier(config) if starts else None
    if earlier is None or pbg.read_version(config.checkpoint_path):
        return
    num_partitions = {name: len(start) for name, start in starts.items()}
    counts = entity_counts.read_counts(config.entity_path, num_partitions)
    keys = [
        (name, part)
        for name, firsts in starts.items()
        for part, first in enumerate(firsts)
        if counts[name][part] > first
    ]
    inputs = fingerprints.describe_inputs([config.entity_path, *config.edge_paths, config.init_path or ""])
    made_from = {"starts": starts, "seed": config.seed, "inputs": inputs}
    if is_made(folder_of(config), made_from):
        return
    checksums: Checksums = {}
    counted: dict[str, Any] = {
        name: {"num_new": 0, "num_edges": 0, "num_without_edges": 0} for name in sorted(starts)
    }
    with storage.atomic_directory(folder_of(config)) as folder:
        if keys:
            model = client.submit(_read_model, earlier, config, pure=False)
            tasks = [(model, (name, part), starts[name][part], folder) for name, part in keys]
            done = cluster.run_tasks(
                client, _solve_partition, tasks, description="folding in new ids", unit="partitions"
            )
            for (name, _), (counts_of_part, written) in zip(keys, done, strict=True):
                checksums |= written
                for figure, count in counts_of_part.items():
                    counted[name][figure] += count
        types = {
            name: {"given": Given(0, config.entity_dimension(name), 1.0), "figures": counted[name]}
            for name in counted
        }
        write_content(folder, made_from, types, checksums)
        claim.check()


def _earlier(config: Config) -> Config | None:
    """Read the settings of a delta's earlier run; None if the configuration does not name its graph."""
    entity_path = getattr(config.etl, "previous_entity_path", None)  # of the section of another stage
    edge_path = getattr(config.etl, "previous_edge_path", None)
    if not (entity_path and edge_path and config.init_path):
        return None
    edges = storage.join(edge_path, TRAIN_SPLIT)
    for folder in (entity_path, edges):
        if not storage.is_dir(folder):
            raise NotFoundError(
                f"train.replay: {folder}: expected the earlier run, which tells new ids from old ones, found "
                "no folder; keep it until this run has ended, or set train.replay: null"
            )
    places = {"entity_path": entity_path, "edge_root": edge_path, "edge_paths": (edges,)}
    return config.model_copy(update={**places, "checkpoint_path": config.init_path})


def _read_model(*settings: Config) -> Any:
    from train.tables.folding import read_earlier  # imports torch

    return read_earlier(*settings)


def _solve_partition(*arguments: Any) -> Any:
    from train.tables.folding import solve_partition  # imports torch

    return solve_partition(*arguments)
