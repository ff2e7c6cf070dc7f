"""Evaluation of a checkpoint: ranks every edge of a split on both sides against all entities of the type.

Reads checkpoint_path/, entity_path/entity_count_*.txt (and dynamic_rel_count.txt), the split's bucket files
and, for a filtered ranking, the bucket files of all known edges. Writes nothing: the metrics go to run.json.
"""

import time
from collections.abc import Iterator
from typing import Any

from graphmill import cluster, storage
from graphmill.config import Config
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.vocab import Side
from train.config import EvaluateConfig
from train.evaluation import baselines, metrics, ranking
from train.evaluation.baselines import Baselines
from train.evaluation.inputs import check_folder, check_same_model, filter_paths
from train.evaluation.metrics import Ranks, concatenated
from train.evaluation.queries import Slots, Triples
from train.plan.decide import can_rank, device_of
from train.tables.partition_files import load_embeddings_of
from train.tables.run_context import RunContext


def evaluate(config: Config, *, with_baselines: bool = False) -> dict[str, Any]:
    """Evaluate in this process; `with_baselines` adds what other rankings of the same edges would give.

    Raises:
        NotFoundError: there is no checkpoint.
        ConfigError: the split does not exist, or the checkpoint belongs to another model.
        FormatError: a file is damaged, or two files do not fit each other.
    """
    started = time.monotonic()
    settings = config.section(EvaluateConfig)
    device = device_of(config)
    check_same_model(config)
    context = RunContext.of_checkpoint(config, "evaluate", device=device, version=settings.checkpoint_version)
    block_bytes = settings.block_bytes or (4 << 20 if device.type == "cpu" else 256 << 20)
    counts = [count for rows in context.num_rows.values() for count in rows]
    height, width = ranking.block_sizes(block_bytes, counts)
    slots = Slots(config, context.num_rows, context.num_relations, width)
    path = config.split_path(settings.split)
    check_folder(config, "evaluate.split", path)
    edges = Triples.concatenated(list(slots.read_folders([path])))
    if not len(edges):
        raise FormatError(f"{path}: expected edges to rank, found none")
    by_side = _rank_all(context, slots, edges, height)
    trained = slots.read_folders(_trained_paths(config))
    plain = _rank_plainly(context, slots, edges) if with_baselines else []
    popular = {side: concatenated([part[side].popular for part in plain]) for side in Side if plain}
    breakdown = metrics.break_down(by_side, edges, slots, trained, context.relation_names(), popular)
    seconds = time.monotonic() - started
    return {
        "metrics": concatenated(list(by_side.values())).metrics() | {"num_edges": len(edges)},
        **({"baselines": baselines.metrics(plain)} if plain else {}),
        **breakdown,
        "split": settings.split,
        "filtered": settings.filtered,
        "checkpoint_version": context.version,
        "edges_per_s": round(len(edges) / seconds, 1),
    }


def _rank_all(context: RunContext, slots: Slots, edges: Triples, height: int) -> dict[Side, Ranks]:
    """Rank the edges, in parts."""
    config, model, load = context.config, context.load_trained_model(), load_embeddings_of(context)
    known_paths = filter_paths(config)
    parts: list[dict[Side, Ranks]] = []
    for start, part in _parts(config, edges):

        def report(done: int, total: int, first: int = start, size: int = len(part)) -> None:
            progress.tell("evaluate", first + size * done / total, len(edges), "edges")

        ranks = ranking.rank(
            model,
            slots,
            load,
            part,
            slots.read_folders(known_paths),
            height=height,
            num_threads=config.workers or cluster.num_cores(),
            device=context.device,
            fused=can_rank(config, context.device),
            report=report,
        )
        parts.append(ranks)
    return {side: concatenated([part[side] for part in parts]) for side in Side}


def _rank_plainly(context: RunContext, slots: Slots, edges: Triples) -> list[dict[Side, Baselines]]:
    """Rank the edges without the model, in the same parts."""
    config = context.config
    known_paths = filter_paths(config)
    return [
        baselines.rank(slots, part, slots.read_folders(known_paths), _trained_paths(config))
        for _, part in _parts(config, edges)
    ]


def _trained_paths(config: Config) -> list[str]:
    return [path for path in config.edge_paths if storage.is_dir(path)]


def _parts(config: Config, edges: Triples) -> Iterator[tuple[int, Triples]]:
    """The edges, as many at a time as `query_bytes` allows, and the number of the first."""
    dimension = max(config.entity_dimension(entity_type) for entity_type in config.entities)
    step = max(1, config.section(EvaluateConfig).query_bytes // (2 * 4 * dimension))
    for start in range(0, len(edges), step):
        yield start, edges.part(start, start + step)
