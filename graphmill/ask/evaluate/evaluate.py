"""Evaluation of a checkpoint: ranks edges of a split on both sides against all entities of the type.

Reads checkpoint_path/, entity_path/entity_count_*.txt (and dynamic_rel_count.txt), the split's bucket files
and, for a filtered ranking, the bucket files of all known edges. The metrics go to run.json; intermediate
files (see `tasks`) are in a folder that ends with the evaluation.

The work is cut by (partition of the entities x range of queries). Counts are whole numbers, so
their sums are the same for every cut.

Shapes: E edges.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any, TypeVar

import numpy as np
from distributed import get_worker

from graphmill import storage
from graphmill.ask.edges import Graph, Numbers, Piece, Triples, known_paths, loopless
from graphmill.ask.evaluate import baselines, metrics, tasks
from graphmill.ask.evaluate.baselines import Baselines
from graphmill.ask.evaluate.execution import COUNTING, Execution
from graphmill.ask.evaluate.inputs import (
    Extent,
    check_folder,
    check_same_model,
    drawn_rows,
    extent_of,
    filter_paths,
    told,
)
from graphmill.ask.evaluate.metrics import Ranks, concatenated
from graphmill.ask.evaluate.queries import BlockSize, Queries, block_sizes, default_block_bytes
from graphmill.ask.evaluate.tasks import CellSlice, KnownFile, Part, Range, Share
from graphmill.ask.run import TrainedRun
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_buckets
from graphmill.errors import FormatError
from graphmill.formats.edge_buckets import count_all
from graphmill.model import comparators
from graphmill.run import seeds
from graphmill.run.auto_values import num_edges
from graphmill.run.trained_with import saved_settings
from graphmill.vocab import Side

TOPIC = "graphmill-evaluate"
_FEW_BUCKETS = 64  # up to here each is opened first, to cut the large ones
_PIECE_EDGES = 1 << 24
_TASK_QUERIES = 1 << 15
_COUNT_BYTES = 32  # of an edge and a partition

Item = TypeVar("Item")

log = logging.getLogger("graphmill")


def evaluate(
    config: Config, execution: Execution | None = None, *, with_baselines: bool = False
) -> dict[str, Any]:
    """Evaluate, by default in this process; `with_baselines` adds what simple rankings would give.

    Raises:
        NotFoundError: there is no checkpoint.
        ConfigError: the split does not exist, or the checkpoint belongs to another model.
        FormatError: a file is damaged, or two files do not fit each other.
    """
    started = time.monotonic()
    settings, execution = config.evaluate, execution or Execution()
    check_same_model(config)
    run = TrainedRun.to_evaluate(config, settings.checkpoint_version)
    path = config.split_path(settings.split)
    check_folder(config, "evaluate.split", path)
    graph, block = blocks(config, run)
    edges, extent = edges_to_rank(execution, graph, path)
    if settings.candidates is not None:
        tell("evaluate: evaluate.candidates has no effect: edges are ranked among all entities")
    if extent.is_sampled:
        tell(told(extent, settings.split))
    known = [folder.rstrip("/") for folder in filter_paths(config)]
    scanned = pieces(execution, config, known, trained_paths(config))
    alone = loopless(config, range(run.num_relations)) if settings.leave_out_itself else ()
    sample = _rows_by_neighbors(graph, len(edges)) if with_baselines else None
    parts = []
    with execution.folder() as folder:
        for first, some in _parts(config, edges, run):
            where = storage.join(folder, str(first))
            part = Part(where, graph, run, block, execution.sharers, alone)
            parts.append(_rank(execution, part, some, scanned, (first, len(edges)), sample))
    ranks_of, degrees_of, plain_of = zip(*parts, strict=True)
    by_side = {side: concatenated([ranks[side] for ranks in ranks_of]) for side in Side}
    degrees = {side: np.concatenate([degree[side] for degree in degrees_of]) for side in Side}
    plain = [of_part for of_part in plain_of if of_part]
    share = len(edges) / extent.of_edges
    of_sample = metrics.intervals(by_side, share) if extent.is_sampled else {}
    simple = baselines.reciprocal_ranks(plain)
    breakdown = metrics.break_down(by_side, edges, degrees, run.relation_names, simple)
    seconds = time.monotonic() - started
    return {
        "metrics": concatenated(list(by_side.values())).metrics()
        | {"num_edges": len(edges), "of_edges": extent.of_edges, "sampled": extent.is_sampled},
        **({"intervals": of_sample} if of_sample else {}),
        **({} if sample is None else {"baselines": baselines.metrics(plain, by_side, sample)}),
        **breakdown,
        "split": storage.name(path),
        "filtered": settings.filtered,
        "itself": "left out" if settings.leave_out_itself else "ranked",
        "checkpoint_version": run.version,
        "edges_per_s": round(len(edges) / seconds, 1),
    }


def _rows_by_neighbors(graph: Graph, num_ranked: int) -> Numbers:
    """Draw the edges that neighbors rank too, ascending; none where there are too many trained edges."""
    num_trained = sum(map(num_edges, trained_paths(graph.config)))
    num_entities = int(sum(first[-1] for first in graph.first.values()))
    num = baselines.num_ranked(num_trained, num_entities, num_ranked)
    rng = np.random.default_rng(seeds.derived(graph.config.seed, "neighbors"))
    return np.sort(rng.choice(num_ranked, num, replace=False))


def tell(text: str) -> None:
    """Log a line here, or inside a Dask task where the client subscribes to TOPIC."""
    try:
        get_worker().log_event(TOPIC, {"text": text})
    except ValueError:  # no Dask task
        log.info(text)


def trained_paths(config: Config) -> list[str]:
    """Folders of the edges that were trained on, as far as they are there.

    The checkpoint names them: users of PBG give the edges to rank as `edge_paths`. If it names no folder of
    this run, they are `edge_paths`.
    """
    saved = {path.rstrip("/") for path in saved_settings(config.checkpoint_path).get("edge_paths", ())}
    named = [path for path in known_paths(config) if path in saved]
    return [path.rstrip("/") for path in named or config.edge_paths if storage.is_dir(path)]


def blocks(config: Config, run: TrainedRun) -> tuple[Graph, BlockSize]:
    """The numbers of all entities, and the size of a block of scores."""
    settings = config.evaluate
    is_dot = comparators.is_dot(config.comparator, config.bias)
    fused = config.num_gpus > 0 and is_dot
    block_bytes = settings.block_bytes or default_block_bytes(config, fused=fused)
    size = block_sizes(block_bytes, [count for rows in run.num_rows.values() for count in rows])
    return Graph(config, run.num_rows, run.num_relations), size


def edges_to_rank(
    execution: Execution, graph: Graph, path: str, most: int | None = None
) -> tuple[Triples, Extent]:
    """The edges of a split, or a sample of them; at most `most`, and then a quarter of a larger sample."""
    config = graph.config
    groups = grouped(all_buckets(config), _FEW_BUCKETS)
    counted = execution.run(count_all, [(path, group) for group in groups], "evaluate: counting edges")
    counts = [count for group in counted for count in group.values()]
    total = sum(counts)
    if not total:
        raise FormatError(f"{path}: expected edges to rank, found none")
    num_entities = {name: sum(rows) for name, rows in graph.counts.items()}
    extent = extent_of(config, total, num_entities, sum(map(num_edges, trained_paths(config))))
    if most is not None:
        affordable = max(1, extent.num_edges // 4) if extent.is_sampled else extent.num_edges
        extent = replace(extent, num_edges=min(affordable, most))
    rows: list[Numbers | None] = [None] * len(all_buckets(config))
    if extent.is_sampled:
        seed = seeds.derived(config.seed, "evaluate")
        rows = list(drawn_rows(seed, counts, extent.num_edges))
    chosen = dict(zip(all_buckets(config), rows, strict=True))
    arguments = [(graph, path, [(bucket, chosen[bucket]) for bucket in group]) for group in groups]
    return Triples.concatenated(execution.run(tasks.read_edges, arguments, "evaluate: reading edges")), extent


def pieces(
    execution: Execution, config: Config, known: Sequence[str], trained: Sequence[str]
) -> list[list[Piece]]:
    """All edges of folders of known and of trained edges, for tasks of about the same size."""
    paths, buckets = list(dict.fromkeys([*known, *trained])), all_buckets(config)
    if len(buckets) > _FEW_BUCKETS:
        groups = grouped(list(product(paths, buckets)), 4 * _FEW_BUCKETS)
        return [
            [Piece(*file, 0, None, file[0] in known, file[0] in trained) for file in group]
            for group in groups
        ]
    counts = execution.run(count_all, [(path, buckets) for path in paths], "evaluate: known edges")
    of_tasks: list[list[Piece]] = [[]]
    size = 0
    for (path, bucket), count in zip(
        product(paths, buckets), (n for of_path in counts for n in of_path.values()), strict=True
    ):
        for start in range(0, max(count, 1), _PIECE_EDGES):
            stop = min(start + _PIECE_EDGES, count)
            if size + stop - start > _PIECE_EDGES:
                of_tasks.append([])
                size = 0
            of_tasks[-1].append(Piece(path, bucket, start, stop, path in known, path in trained))
            size += stop - start
    return of_tasks


def grouped(items: Sequence[Item], num_groups: int) -> list[Sequence[Item]]:
    """Neighbouring items in groups of one size, at most so many groups."""
    size = -(-len(items) // num_groups)
    return [items[start : start + size] for start in range(0, len(items), size)]


def _parts(config: Config, edges: Triples, run: TrainedRun) -> Iterator[tuple[int, Triples]]:
    """The edges, as many at a time as `query_bytes` allows, and the number of the first."""
    dimension = max(config.entity_dimension(entity_type) for entity_type in config.entities)
    num_partitions = max(map(len, run.num_rows.values()))
    edge_bytes = max(2 * 4 * dimension, _COUNT_BYTES * num_partitions)
    step = max(1, config.evaluate.query_bytes // edge_bytes)
    for start in range(0, len(edges), step):
        yield start, edges[start : start + step]


def prepare(
    execution: Execution, part: Part, edges: Triples, pieces: Sequence[Sequence[Piece]]
) -> tuple[dict[Side, Queries], list[KnownFile]]:
    """Write what the tasks read: edges, known cells, queries; return the queries, and where the cells are."""
    tasks.save(part.folder, "edges", np.stack([edges.lhs, edges.rel, edges.rhs]))
    arguments = [(part, piece, number) for number, piece in enumerate(pieces)]
    known = execution.run(tasks.find_known, arguments, "evaluate: known edges")
    keys = list(part.graph.rows_of(edges))
    execution.run(tasks.take_rows, [(part, key) for key in keys], "evaluate: vectors of the edges")
    execution.run(tasks.make_queries, [(part, side) for side in Side], "evaluate: queries")
    return {side: part.queries(side, edges) for side in Side}, known


def _rank(
    execution: Execution,
    part: Part,
    edges: Triples,
    pieces: Sequence[Sequence[Piece]],
    place: tuple[int, int],
    sample: Numbers | None,
) -> tuple[dict[Side, Ranks], dict[Side, Numbers], dict[Side, Baselines]]:
    """Rank edges that fit in memory, the first of which has the number `place` of all; ranks and degrees.

    With `sample` also without the model, and those edges by neighbors.
    """
    queries, known = prepare(execution, part, edges, pieces)
    totals = {side: np.zeros((2, len(edges)), np.int64) for side in Side}
    for side, first, counts in _count(execution, part, queries, known, place):
        totals[side][:, first : first + counts.shape[1]] += counts
    ranks = {side: Ranks(*total[:, np.argsort(queries[side].order)]) for side, total in totals.items()}
    plain = {}
    if sample is not None:
        own = sample[(sample >= place[0]) & (sample < place[0] + len(edges))] - place[0]
        numbers, trained = [file.number for file in known], trained_paths(part.graph.config)
        asked = [(part, side, numbers, trained, own) for side in Side]
        simple = execution.run(tasks.rank_plainly, asked, "evaluate: simple rankings")
        plain = dict(zip(Side, simple, strict=True))
    return ranks, _degrees(part, edges, known), plain


def _count(
    execution: Execution,
    part: Part,
    queries: dict[Side, Queries],
    known: Sequence[KnownFile],
    place: tuple[int, int],
) -> Iterator[tasks.Counted]:
    """Count in every partition, for ranges of queries."""
    counts = part.graph.counts
    keys = [(name, number) for name, rows in counts.items() for number, count in enumerate(rows) if count]
    cuts = [
        (key, ranges) for key in keys for ranges in _cut(queries, key[0], len(keys), execution.num_workers)
    ]
    sizes = [
        counts[name][number] * sum(stop - start for _, start, stop in ranges)
        for (name, number), ranges in cuts
    ]
    num_edges, (first, total) = len(queries[Side.LHS].order), place
    begins = first + num_edges * np.cumsum([0, *sizes]) / max(sum(sizes), 1)
    shares = [Share(float(begin), float(end - begin), total) for begin, end in pairwise(begins)]
    arguments = [
        (part, key, ranges, slices(known, key, {side for side, *_ in ranges}), share)
        for (key, ranges), share in zip(cuts, shares, strict=True)
    ]
    return chain.from_iterable(execution.run(tasks.count, arguments, COUNTING))


def _cut(
    queries: Mapping[Side, Queries], entity_type: str, num_partitions: int, num_workers: int
) -> Iterator[list[Range]]:
    """Cut the queries between blocks: some tasks for each worker, so short that progress shows."""
    blocks = [block for side in Side for block in queries[side].blocks_of(entity_type)]
    num_queries = sum(stop - start for _, start, stop in blocks)
    wanted = 1 if num_workers == 1 else -(-2 * num_workers // num_partitions)
    num_cuts = min(max(wanted, -(-num_queries // _TASK_QUERIES)), len(blocks))
    for number in range(num_cuts):
        own = blocks[number * len(blocks) // num_cuts : (number + 1) * len(blocks) // num_cuts]
        by_side = {side: [block for block in own if block[0] == side] for side in Side}
        yield [(side, of_side[0][1], of_side[-1][2]) for side, of_side in by_side.items() if of_side]


def slices(known: Sequence[KnownFile], key: PartitionKey, sides: Collection[Side]) -> list[CellSlice]:
    """The slices of files that hold the known cells of a partition."""
    cells: list[CellSlice] = []
    for side, (number, begins, _) in product(sides, known):
        start, stop = begins[side][key[0]][key[1] : key[1] + 2].tolist()
        if start < stop:
            cells.append((side, number, start, stop))
    return cells


def _degrees(part: Part, edges: Triples, known: Sequence[KnownFile]) -> dict[Side, Numbers]:
    """Degree of the entity on each side: the number of trained edges that have it on either end, [E]."""
    rows = part.graph.rows_of(edges)
    degrees = np.zeros(sum(map(len, rows.values())), np.int64)
    for file in known:
        degrees[file.degrees[0]] += file.degrees[1]
    return {side: degrees[part.graph.places_of(rows, side, edges)] for side in Side}
