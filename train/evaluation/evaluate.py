"""Evaluation of a checkpoint: ranks every edge of a split on both sides against all entities of the type.

Reads checkpoint_path/, entity_path/entity_count_*.txt (and dynamic_rel_count.txt), the split's bucket files
and, for a filtered ranking, the bucket files of all known edges. Writes nothing: the metrics go to run.json.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any

from distributed import Client

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import edge_buckets, pbg_checkpoint
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.record import describe_inputs
from graphmill.vocab import Bucket, Side
from train.config import EvaluateConfig
from train.edges import schedule
from train.edges.partitions import all_buckets
from train.evaluation import metrics_breakdown, ranking
from train.evaluation.queries import Slots, Triples
from train.evaluation.ranking_metrics import Ranks, concatenated
from train.gpu import supported
from train.step import runtime
from train.tables.held_partitions import load_embeddings_of
from train.tables.legacy_inputs import import_legacy_inputs
from train.tables.run_context import RunContext

# Scores depend on these keys: the configuration and the checkpoint must agree on them.
_SCORE_KEYS = ("dimension", "comparator", "bias", "global_emb", "dynamic_relations")
_RELATION_KEYS = ("name", "lhs", "rhs", "operator")


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Evaluate in one task of the cluster; the metrics and the evaluated version. Writes nothing."""
    return cluster.run_task(client, evaluate, import_legacy_inputs(config), description="evaluate")


def fingerprint(config: Config) -> dict[str, Any]:
    """The settings and inputs that the metrics depend on."""
    settings = config.section(EvaluateConfig)
    inputs = [config.checkpoint_path, config.entity_path, config.split_path(settings.split)]
    known = _filter_paths(config, settings) if settings.filtered else []
    return {
        "evaluate": settings.result_settings(),
        "model": _score_settings(config.pbg()),
        "inputs": describe_inputs(dict.fromkeys([*inputs, *known])),
    }


def check(config: Config, coming: Collection[str] = ()) -> str:
    """The reason why there is nothing to evaluate, else ""; the folders `coming` are still to be written.

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
            raise ConfigError(f"{key}: there is no folder {each}; {_existing_splits(config)}")
    if types := schedule.featurized_types(config):
        return f"{', '.join(types)}: a featurized type has no list of all its entities to rank"
    if not storage.is_dir(path):
        return f"there is no folder {path} of edges held out; {_existing_splits(config)}"
    return "" if schedule.has_edges(config, path) else f"{path} holds no edges"


def output_uris(config: Config) -> list[str]:
    """No folders: the metrics go to run.json."""
    return []


def written_uris(config: Config) -> list[str]:
    """No folders, so a checkpoint can be evaluated while it is trained."""
    return []


def check_outputs(config: Config) -> None:
    """Refuse nothing."""


def evaluate(config: Config) -> dict[str, Any]:
    """Evaluate in this process.

    Raises:
        NotFoundError: there is no checkpoint.
        ConfigError: the split does not exist, or the checkpoint belongs to another model.
        FormatError: a file is damaged, or two files do not fit each other.
    """
    started = time.monotonic()
    settings = config.section(EvaluateConfig)
    device = runtime.device_of(config)
    _check_same_model(config)
    context = RunContext.of_checkpoint(config, "evaluate", device=device, version=settings.checkpoint_version)
    block_bytes = settings.block_bytes or (4 << 20 if device.type == "cpu" else 256 << 20)
    counts = [count for rows in context.num_rows.values() for count in rows]
    height, width = ranking.block_sizes(block_bytes, counts)
    slots = Slots(config, context.num_rows, context.num_relations, width)
    edges = Triples.concatenated(list(BucketFiles(config, slots, [_split_path(config, settings.split)])))
    if not len(edges):
        raise FormatError(f"{config.split_path(settings.split)}: expected edges to rank, found none")
    known = BucketFiles(config, slots, _filter_paths(config, settings)) if settings.filtered else None
    by_side = _rank_all(context, slots, edges, known, height)
    trained = BucketFiles(config, slots, [path for path in config.edge_paths if storage.is_dir(path)])
    breakdown = metrics_breakdown.break_down(by_side, edges, slots, trained, context.relation_names())
    seconds = time.monotonic() - started
    return {
        "metrics": concatenated(list(by_side.values())).metrics() | {"num_edges": len(edges)},
        **breakdown,
        "split": settings.split,
        "filtered": settings.filtered,
        "checkpoint_version": context.version,
        "edges_per_s": round(len(edges) / seconds, 1),
    }


class BucketFiles:
    """Iterates over the edges of folders of bucket files, in parts of bounded size; any number of times."""

    def __init__(self, config: Config, slots: Slots, paths: Sequence[str]) -> None:
        self._slots, self._paths = slots, paths
        self._buckets = all_buckets(config)

    def __iter__(self) -> Iterator[Triples]:
        for path, bucket in product(self._paths, self._buckets):
            yield from self._slots.read_bucket(path, bucket)


def _rank_all(
    context: RunContext, slots: Slots, edges: Triples, known: BucketFiles | None, height: int
) -> dict[Side, Ranks]:
    """Rank the edges, as many at a time as `query_bytes` allows."""
    config, model, load = context.config, context.load_trained_model(), load_embeddings_of(context)
    dimension = max(config.entity_dimension(entity_type) for entity_type in config.entities)
    step = max(1, config.section(EvaluateConfig).query_bytes // (2 * 4 * dimension))
    by_side: dict[Side, list[Ranks]] = {side: [] for side in Side}
    for start in range(0, len(edges), step):
        part = edges.part(start, start + step)

        def report(done: int, total: int, first: int = start, size: int = len(part)) -> None:
            progress.tell("evaluate", first + size * done / total, len(edges), "edges")

        ranks = ranking.rank(
            model,
            slots,
            load,
            part,
            known,
            height=height,
            num_threads=config.workers or cluster.num_cores(),
            device=context.device,
            fused=supported.can_rank(config, context.device),
            report=report,
        )
        for side, of_side in ranks.items():
            by_side[side].append(of_side)
    return {side: concatenated(parts) for side, parts in by_side.items()}


def _split_path(config: Config, split: str) -> str:
    path = config.split_path(split)
    if not storage.is_dir(path):
        raise ConfigError(f"evaluate.split: there is no folder {path}; {_existing_splits(config)}")
    return path


def _existing_splits(config: Config) -> str:
    splits = ", ".join(storage.name(each) for each in _bucket_folders(config.edge_root)) or "none"
    return f"splits there: {splits}"


def _filter_paths(config: Config, settings: EvaluateConfig) -> list[str]:
    if settings.filter_paths is not None:
        return list(settings.filter_paths)
    paths = [*config.edge_paths, *_bucket_folders(config.edge_root), config.split_path(settings.split)]
    return list(dict.fromkeys(path.rstrip("/") for path in paths))


def _bucket_folders(edge_root: str) -> list[str]:
    folders = [entry.uri for entry in storage.list_dir(edge_root) if entry.is_dir]
    return [each for each in folders if storage.exists(edge_buckets.bucket_uri(each, Bucket(0, 0)))]


def _score_settings(pbg: dict[str, Any]) -> dict[str, Any]:
    """The keys of a PBG configuration that scores depend on, as far as it has them."""
    settings = {key: pbg[key] for key in _SCORE_KEYS if key in pbg}
    settings["relations"] = [
        {key: relation[key] for key in _RELATION_KEYS if key in relation}
        for relation in pbg.get("relations", [])
    ]
    return settings


def _check_same_model(config: Config) -> None:
    try:
        saved = _score_settings(pbg_checkpoint.read_config(config.checkpoint_path))
    except NotFoundError:
        return  # loading checks the shapes of the parameters
    own = _score_settings(config.pbg())
    for key, value in saved.items():
        if own[key] != value:
            raise ConfigError(
                f"{key}: the configuration says {own[key]}; the checkpoint at {config.checkpoint_path} was "
                f"trained with {value}"
            )
