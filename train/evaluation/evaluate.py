"""Evaluation of a checkpoint: every edge of a split, ranked on both sides against all entities of the type.

Reads  checkpoint_path/, entity_path/entity_count_*.txt (and dynamic_rel_count.txt), the split's bucket
files, and for a filtered ranking those of all known edges. Writes nothing; the figures go to run.json.
"""

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from distributed import Client
from torch import Tensor

from graphmill import cluster, storage
from graphmill.checkpoints.finite import check_finite
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import edge_buckets, entity_counts, pbg_checkpoint
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.record import describe_inputs
from graphmill.vocab import Bucket, Partition, Side
from train.config import EvaluateConfig
from train.edges import schedule
from train.evaluation import breakdown, ranking
from train.evaluation.queries import Slots, Triples
from train.evaluation.ranks import Ranks, joined
from train.model.model import Model
from train.step import runtime
from train.tables.adopted import adopted

READ_EDGES = 1 << 20

log = logging.getLogger("graphmill")


# What makes a score: in these the configuration must be that of the checkpoint.
_SCORE_KEYS = ("dimension", "comparator", "bias", "global_emb", "dynamic_relations")
_RELATION_KEYS = ("name", "lhs", "rhs", "operator")


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Evaluate in one task of the cluster; the metrics, and what was evaluated. Nothing is committed."""
    return cluster.run_task(client, evaluate, adopted(config), description="evaluate")


def fingerprint(config: Config) -> dict[str, Any]:
    """All that the metrics depend on."""
    settings = config.section(EvaluateConfig)
    inputs = [config.checkpoint_path, config.entity_path, config.split_path(settings.split)]
    known = _filter_paths(config, settings) if settings.filtered else []
    return {
        "evaluate": settings.result_settings(),
        "model": _score_settings(config.pbg()),
        "inputs": describe_inputs(dict.fromkeys([*inputs, *known])),
    }


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Why there is nothing to evaluate, or "" if there is; the folders `coming` are still to be written.

    Raises:
        ConfigError: the configuration names a split, or a folder of known edges, that does not exist, or the
            checkpoint belongs to another model.
    """
    settings = config.section(EvaluateConfig)
    if config.checkpoint_path not in coming and pbg_checkpoint.read_version(config.checkpoint_path):
        _check_same_model(config)
    path = config.split_path(settings.split)
    named = [("evaluate.filter_paths", each) for each in settings.filter_paths or ()]
    named += [("evaluate.split", path)] if "split" in settings.model_fields_set else []
    for key, each in named:
        if storage.absolute(each) not in coming and not storage.is_dir(each):
            raise ConfigError(f"{key}: there is no folder {each}; {_splits_there(config)}")
    if types := schedule.featurized_types(config):
        return f"{', '.join(types)}: a featurized type has no list of all its entities to rank"
    if not storage.is_dir(path):
        return f"there is no folder {path} of edges held out; {_splits_there(config)}"
    return "" if schedule.has_edges(config, path) else f"{path} holds no edges"


def output_uris(config: Config) -> list[str]:
    """No folders: the metrics go to run.json."""
    return []


def written_uris(config: Config) -> list[str]:
    """None either; so that a checkpoint can be evaluated while it is trained."""
    return []


def check_outputs(config: Config) -> None:
    """Nothing to refuse."""


def evaluate(config: Config) -> dict[str, Any]:
    """Evaluate in this process.

    Raises:
        NotFoundError: there is no checkpoint.
        ConfigError: the split does not exist, or the checkpoint belongs to another model.
        FormatError: a file is not what its format says, or two of them do not fit.
    """
    started = time.monotonic()
    settings = config.section(EvaluateConfig)
    device = runtime.device_of(config)
    version = settings.checkpoint_version or pbg_checkpoint.read_version(config.checkpoint_path)
    if not version:
        raise NotFoundError(f"{config.checkpoint_path}: there is no checkpoint to evaluate; train first")
    _check_same_model(config)
    counts = entity_counts.read_counts(
        config.entity_path, {name: entity.num_partitions for name, entity in config.entities.items()}
    )
    num_dynamic = entity_counts.read_relation_count(config.entity_path) if config.dynamic_relations else None
    block_bytes = settings.block_bytes or (4 << 20 if device.type == "cpu" else 256 << 20)
    height, width = ranking.block_sizes(block_bytes, [count for rows in counts.values() for count in rows])
    slots = Slots(config, counts, num_dynamic or len(config.relations), width)
    model = Model(config, num_dynamic)
    model_uri = pbg_checkpoint.model_uri(config.checkpoint_path, version)
    model.load_state(pbg_checkpoint.read_model(config.checkpoint_path, version)[0], model_uri)

    edges = Triples.concatenated(list(BucketFiles(config, slots, [_split_path(config, settings.split)])))
    if not len(edges):
        raise FormatError(f"{config.split_path(settings.split)}: expected edges to rank, found none")
    known = BucketFiles(config, slots, _filter_paths(config, settings)) if settings.filtered else None
    by_side = _rank_all(
        model.to(device), slots, Tables(config, counts, version), edges, known, settings, height, device
    )
    trained = BucketFiles(config, slots, [path for path in config.edge_paths if storage.is_dir(path)])
    names = _relation_names(config, slots.num_relations)
    in_parts = breakdown.break_down(by_side, edges, slots, trained, names)
    seconds = time.monotonic() - started
    return {
        "metrics": joined(list(by_side.values())).metrics() | {"num_edges": len(edges)},
        **in_parts,
        "split": settings.split,
        "filtered": settings.filtered,
        "checkpoint_version": version,
        "edges_per_s": round(len(edges) / seconds, 1),
    }


class BucketFiles:
    """The edges of folders of bucket files, in parts of bounded size; can be gone through repeatedly."""

    def __init__(self, config: Config, slots: Slots, paths: Sequence[str]) -> None:
        self._slots, self._paths = slots, paths
        sides = [range(config.num_side_partitions(side)) for side in Side]
        self._buckets = [Bucket(lhs, rhs) for lhs in sides[0] for rhs in sides[1]]

    def __iter__(self) -> Iterator[Triples]:
        for path in self._paths:
            for bucket in self._buckets:
                uri = edge_buckets.bucket_uri(path, bucket)
                for start in range(0, edge_buckets.count_edges(path, bucket), READ_EDGES):
                    edges = edge_buckets.read_bucket(path, bucket, start, start + READ_EDGES)
                    yield self._slots.locate(edges, bucket, uri, start)


class Tables:
    """The embeddings of a checkpoint, one partition in memory at a time."""

    def __init__(self, config: Config, counts: dict[str, list[int]], version: int) -> None:
        self._config, self._counts, self._version = config, counts, version
        self._held: tuple[tuple[str, Partition], Tensor] | None = None

    def __call__(self, entity_type: str, partition: Partition) -> Tensor:
        """The embeddings of a partition: [count, D]."""
        key = entity_type, partition
        if self._held is None or self._held[0] != key:
            self._held = None  # before the next one is read
            self._held = key, self._read(entity_type, partition)
        return self._held[1]

    def _read(self, entity_type: str, partition: Partition) -> Tensor:
        place = self._config.checkpoint_path, entity_type, partition, self._version
        uri = pbg_checkpoint.embeddings_uri(*place)
        embeddings, _ = pbg_checkpoint.read_embeddings(*place)
        shape = self._counts[entity_type][partition], self._config.entity_dimension(entity_type)
        if embeddings.shape != shape:
            raise FormatError(
                f"{uri}: embeddings have shape {embeddings.shape}; entity_count and dimension ask for "
                f"{shape}: the checkpoint belongs to other entities or another configuration"
            )
        check_finite(embeddings, f"{uri}: {entity_type!r}, partition {partition}")
        return torch.from_numpy(embeddings)


def _rank_all(
    model: Model,
    slots: Slots,
    tables: Tables,
    edges: Triples,
    known: BucketFiles | None,
    settings: EvaluateConfig,
    height: int,
    device: torch.device,
) -> dict[Side, Ranks]:
    """Rank the edges, as many at a time as `query_bytes` allows."""
    config = model.config
    dimension = max(config.entity_dimension(entity_type) for entity_type in config.entities)
    step = max(1, settings.query_bytes // (2 * 4 * dimension))
    parts = []
    for start in range(0, len(edges), step):
        part = edges.part(start, start + step)

        def tell(done: int, total: int, first: int = start, size: int = len(part)) -> None:
            progress.tell("evaluate", first + size * done / total, len(edges), "edges")

        parts.append(
            ranking.rank(
                model,
                slots,
                tables,
                part,
                known,
                height=height,
                num_threads=config.workers or cluster.num_cores(),
                device=device,
                tell=tell,
            )
        )
    sides = [part.sides() for part in parts]
    return {side: joined([each[side] for each in sides]) for side in Side}


def _relation_names(config: Config, num_relations: int) -> list[str]:
    if not config.dynamic_relations:
        return [relation.name for relation in config.relations]
    names = entity_counts.read_relation_names(config.entity_path) or []
    return [*names, *map(str, range(len(names), num_relations))]


def _split_path(config: Config, split: str) -> str:
    path = config.split_path(split)
    if not storage.is_dir(path):
        raise ConfigError(f"evaluate.split: there is no folder {path}; {_splits_there(config)}")
    return path


def _splits_there(config: Config) -> str:
    found = ", ".join(storage.name(each) for each in _bucket_folders(config.edge_root)) or "none"
    return f"splits there: {found}"


def _filter_paths(config: Config, settings: EvaluateConfig) -> list[str]:
    if settings.filter_paths is not None:
        return list(settings.filter_paths)
    paths = [*config.edge_paths, *_bucket_folders(config.edge_root), config.split_path(settings.split)]
    return list(dict.fromkeys(path.rstrip("/") for path in paths))


def _bucket_folders(edge_root: str) -> list[str]:
    folders = [entry.uri for entry in storage.list_dir(edge_root) if entry.is_dir]
    return [each for each in folders if storage.exists(edge_buckets.bucket_uri(each, Bucket(0, 0)))]


def _score_settings(pbg: dict[str, Any]) -> dict[str, Any]:
    """Of a PBG configuration, what the scores depend on; keys that it lacks are left out."""
    found = {key: pbg[key] for key in _SCORE_KEYS if key in pbg}
    found["relations"] = [
        {key: relation[key] for key in _RELATION_KEYS if key in relation}
        for relation in pbg.get("relations", [])
    ]
    return found


def _check_same_model(config: Config) -> None:
    try:
        saved = _score_settings(pbg_checkpoint.read_config(config.checkpoint_path))
    except NotFoundError:
        return  # the shapes of the parameters still have to fit
    own = _score_settings(config.pbg())
    for key, value in saved.items():
        if own[key] != value:
            raise ConfigError(
                f"{key}: the configuration says {own[key]}; the checkpoint at {config.checkpoint_path} was "
                f"trained with {value}"
            )
