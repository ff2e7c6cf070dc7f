"""Calibration in an evaluation: probabilities fitted on one split, and measured on the ranked one.

The queries are those of held-out edges, or of some that are drawn. Their answers are what `graphmill predict`
gives: the best of all candidates that are no known edges, known in the other splits; nor the entity itself,
where the relation has no loops. The ranked split is not used for the fit: there its edges are candidates.

Shapes: Q queries of a side, K answers, P queries and N candidates of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import Numbers, known_paths, loopless
from graphmill.ask.evaluate import calibration, evaluate, tasks, work
from graphmill.ask.evaluate.calibration import CalibrationAnswers
from graphmill.ask.evaluate.execution import Execution
from graphmill.ask.evaluate.inputs import calibration_path, has_edges
from graphmill.ask.evaluate.queries import BlockSize, Group, Queries
from graphmill.ask.evaluate.tasks import CellSlice, KnownFile, Part, Range
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import TopK
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.formats.calibration import Calibration
from graphmill.model.calibration import NUM_BEST, Line
from graphmill.run import seeds
from graphmill.sorted_arrays import contains, distinct
from graphmill.vocab import Side

if TYPE_CHECKING:
    from torch import Tensor

    from graphmill.ask.evaluate.ranker import Ranker

MOST_EDGES = 5000
"""Edges of a split whose queries are asked."""
_HEIGHT = 256  # queries of a block
_MOST_TASKS = 32  # each returns the best answers of all queries


class FoundAnswers(NamedTuple):
    """The best answers of one side's queries in some partitions: scores (-inf: none) and numbers, [Q, K]."""

    score: npt.NDArray[np.float32]
    number: Numbers


def calibrate(config: Config, execution: Execution) -> tuple[Calibration, dict[str, Any]] | None:
    """Fit probabilities, and measure them on the ranked split; None where no edges are there to fit on."""
    settings = config.evaluate
    path, ranked = calibration_path(config), config.split_path(settings.split).rstrip("/")
    if path is None or not has_edges(config, path):
        return None
    run = TrainedRun.committed(config, "evaluate", settings.checkpoint_version)
    known = known_paths(config)
    ask = partial(_answers, config, execution, run)
    fitted = calibration.fit(ask(path, [each for each in known if each not in (path, ranked)]))
    figures = calibration.measure(fitted, ask(ranked, [each for each in known if each != ranked]))
    split = str(settings.calibrate)
    checksum = pbg.version_checksum(config.checkpoint_path, run.version)
    lines: dict[str, dict[Side, Line]] = {}
    for group, line in zip(fitted.groups.tolist(), fitted.lines.tolist(), strict=True):
        name = run.relation_names[group // len(Side)]
        lines.setdefault(name, {})[list(Side)[group % len(Side)]] = Line(*line)
    found = Calibration(run.version, checksum, split, fitted.temperature, fitted.pooled, lines)
    fit = {"fitted_on": split, "temperature": fitted.temperature, "pooled": list(fitted.pooled)}
    return found, fit | {"measured_on": settings.split} | figures


def _answers(
    config: Config, execution: Execution, run: TrainedRun, path: str, known: Sequence[str]
) -> CalibrationAnswers:
    """The answers to queries of a split's edges, where the edges of the folders `known` are no answers."""
    graph, block = evaluate.blocks(config, run)
    edges, extent = evaluate.edges_to_rank(execution, graph, path, MOST_EDGES)
    with execution.folder() as folder:
        alone = loopless(config, range(run.num_relations))
        part = Part(folder, graph, run, BlockSize(_HEIGHT, block.width), execution.sharers, alone)
        pieces = evaluate.pieces(execution, config, known, ())
        queries, found = evaluate.prepare(execution, part, edges, pieces)
        own = enumerate(evaluate.pieces(execution, config, [path], ()), len(pieces))
        arguments = [(part, each, number) for number, each in own]
        true = execution.run(tasks.find_known, arguments, "evaluate: held-out edges")
        keys = [(name, number) for name, rows in graph.counts.items() for number in range(len(rows))]
        ranges = [Range(side, 0, len(query)) for side, query in queries.items()]
        asked = [
            (part, own_keys, [evaluate.slices(found, key, ranges) for key in own_keys])
            for own_keys in evaluate.grouped(keys, min(2 * execution.num_workers, _MOST_TASKS))
        ]
        parts = execution.run(find_best, asked, "evaluate: answers to calibrate")
        best = {side: merged([each[side] for each in parts]) for side in Side}
        share = extent.num_edges / extent.of_edges
        of_sides = [_labelled(part, side, queries[side], best[side], true, share) for side in Side]
    return CalibrationAnswers(*(np.concatenate(each) for each in zip(*of_sides, strict=True)))


def _labelled(
    part: Part, side: Side, queries: Queries, best: FoundAnswers, files: Sequence[KnownFile], share: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], Numbers]:
    """Scores of some queries, a mask of edges of the files, and groups, as `CalibrationAnswers` has them.

    A drawn `share` of the edges favours queries with many edges. A second draw, of queries, corrects this.
    """
    files_of = [work.load(part.folder, f"known-{side}-{file.number}", np.int64) for file in files]
    cells = distinct(np.concatenate(files_of).reshape(-1))
    cell_QK = best.number * len(queries) + np.arange(len(queries))[:, None]
    is_edge_QK = contains(cells, cell_QK.reshape(-1)).reshape(cell_QK.shape) & np.isfinite(best.score)
    num_edges_Q = np.bincount(cells % len(queries), minlength=len(queries))
    chance_Q = share / (1 - (1 - share) ** num_edges_Q)
    drawn = np.random.default_rng(seeds.derived(part.config.seed, "calibrate", side))
    kept = drawn.random(len(queries)) < chance_Q
    group_Q = queries.rel * len(Side) + list(Side).index(side)
    return best.score[kept], is_edge_QK[kept], group_Q[kept]


def merged(parts: Sequence[FoundAnswers]) -> FoundAnswers:
    """The best of several parts; of equal answers, those of earlier parts."""
    score, number = parts[0]
    for other in parts[1:]:
        score, number = np.hstack([score, other.score]), np.hstack([number, other.number])
        order = np.argsort(-score, axis=1, kind="stable")[:, :NUM_BEST]
        score, number = np.take_along_axis(score, order, 1), np.take_along_axis(number, order, 1)
    return FoundAnswers(score, number)


def find_best(
    part: Part, keys: Sequence[PartitionKey], known: Sequence[Sequence[CellSlice]]
) -> dict[Side, FoundAnswers]:
    """Find the best answers of all queries in some partitions; a task. `known` has slices of each."""
    from graphmill.cluster.runtime import cpu_threads

    edges, ranker = part.edges(), tasks.ranker_of(part)
    queries = {side: part.queries(side, edges) for side in Side}
    vectors = {side: part.vectors(side, 0, len(query)) for side, query in queries.items()}
    found: dict[Side, list[FoundAnswers]] = {side: [] for side in Side}
    for key, slices in zip(keys, known, strict=True):
        table_ND = tasks.table_of(part, key)
        for side, own in queries.items():
            of_side = [each for each in slices if each.side == side]
            cells = tasks.known_cells_of(part, own, slice(0, len(own)), of_side)
            with cpu_threads(1):
                found[side].append(_best_of(ranker, own, vectors[side], key, table_ND, cells))
            found[side] = [merged(found[side])]
    return {side: parts[0] for side, parts in found.items()}


def _best_of(
    ranker: Ranker,
    queries: Queries,
    vectors_QD: npt.NDArray[np.float32],
    key: PartitionKey,
    table_ND: Tensor,
    known: Numbers,
) -> FoundAnswers:
    """The best answers of the queries in a partition; `known` has cells that are no answers, sorted."""
    entity_type, partition = key
    shape = len(queries), NUM_BEST
    found = FoundAnswers(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64))
    first_number = int(queries.graph.first[entity_type][partition])

    def ask(group: Group, block: int, start: int, stop: int) -> int:
        """Ask a block of queries; each thread has blocks of its own."""
        best = TopK(stop - start, NUM_BEST)
        dimension = ranker.model.config.entity_dimension(entity_type)
        query_PD = _on(ranker, vectors_QD[start:stop, :dimension])
        for begin in range(0, len(table_ND), queries.width):
            rows_ND = table_ND[begin : begin + queries.width]
            candidate_ND = ranker.candidates(queries, group, rows_ND.to(ranker.device))
            scores = ranker.model.matrix_scores(query_PD, candidate_ND, queries.side)[:, : len(rows_ND)]
            score_PN = scores.float().cpu().numpy()
            number = first_number + begin
            row_K, number_K = queries.within(known, block, number, number + len(rows_ND))
            score_PN[row_K, number_K - number] = -np.inf
            best.add(np.arange(stop - start), score_PN, np.arange(number, number + len(rows_ND)))
        found.score[start:stop], found.number[start:stop] = best.result().table(stop - start, NUM_BEST)
        return (stop - start) * len(table_ND)

    blocks = (
        partial(ask, group, group.first_block + number, start, min(start + queries.height, group.stop))
        for group in queries.groups
        if group.entity_type == entity_type
        for number, start in enumerate(range(group.start, group.stop, queries.height))
    )
    ranker.run(blocks, lambda done: None)
    return found


def _on(ranker: Ranker, vectors_PD: npt.NDArray[np.float32]) -> Tensor:
    from torch import from_numpy

    return from_numpy(np.ascontiguousarray(vectors_PD)).to(ranker.device)
