"""Calibration in an evaluation: probabilities fitted on one split, and measured on the ranked one.

The queries are those of held-out edges, or of some that are drawn. Their answers are what `graphmill predict`
gives: the best of all candidates that are no known edges, known in the other splits; nor the entity itself,
where the relation has no loops. The ranked split is not used for the fit: there its edges are candidates.

Shapes: Q queries of a side, K answers, P queries and N candidates of a block.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import Numbers, known_paths, loopless
from graphmill.ask.entities import EntityTable, MeasuredPartition
from graphmill.ask.evaluate import calibration, evaluate, tasks, work
from graphmill.ask.evaluate.calibration import CalibrationAnswers
from graphmill.ask.evaluate.execution import Execution
from graphmill.ask.evaluate.inputs import calibration_path, has_edges
from graphmill.ask.evaluate.queries import VECTOR_BYTES, BlockSize, chunks
from graphmill.ask.evaluate.tasks import KnownFile, Part
from graphmill.ask.relation import read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import HEIGHT, WIDTH, Pairs, Scan, made
from graphmill.checkpoints import Floats, pbg
from graphmill.config import Config
from graphmill.formats.calibration import Calibration
from graphmill.model.calibration import NUM_BEST, Line
from graphmill.model.comparators import is_dot
from graphmill.run import seeds
from graphmill.sorted_arrays import contains, distinct
from graphmill.vocab import Side

MOST_EDGES = 5000
"""Edges of a split whose queries are asked."""
_TASK_QUERIES = 8 * HEIGHT
_KNOWN = 1 << 22  # pairs that are held at a time


def calibrate(config: Config, execution: Execution) -> tuple[Calibration, dict[str, Any]] | None:
    """Fit probabilities, and measure them on the ranked split; None where no edges are there to fit on."""
    settings = config.evaluate
    path, ranked = calibration_path(config), config.split_path(settings.split).rstrip("/")
    if path is None or not has_edges(config, path):
        return None
    run = TrainedRun.committed(config, "evaluate", settings.checkpoint_version)
    known = known_paths(config)
    ask = partial(_answers, config, execution, run)
    fitted = calibration.fit(ask(path, [folder for folder in known if folder not in (path, ranked)]))
    figures = calibration.measure(fitted, ask(ranked, [folder for folder in known if folder != ranked]))
    split = str(settings.calibrate)
    checksum = pbg.version_checksum(config.checkpoint_path, run.version)
    lines: dict[str, dict[Side, Line]] = {}
    for group, line in zip(fitted.groups.tolist(), fitted.lines.tolist(), strict=True):
        name = run.relation_names[group // len(Side)]
        lines.setdefault(name, {})[list(Side)[group % len(Side)]] = Line(*line)
    calibrated = Calibration(run.version, checksum, split, fitted.temperature, fitted.pooled, lines)
    fit = {"fitted_on": split, "temperature": fitted.temperature, "pooled": list(fitted.pooled)}
    return calibrated, fit | {"measured_on": settings.split} | figures


def _answers(
    config: Config, execution: Execution, run: TrainedRun, path: str, known: Sequence[str]
) -> CalibrationAnswers:
    """The answers to queries of a split's edges, where the edges of the folders `known` are no answers."""
    graph, block = evaluate.blocks(config, run)
    edges, extent = evaluate.edges_to_rank(execution, graph, path, MOST_EDGES)
    with execution.folder() as folder:
        alone = loopless(config, range(run.num_relations))
        part = Part(folder, graph, run, BlockSize(HEIGHT, block.width), execution.sharers, alone)
        pieces = evaluate.pieces(execution, config, known, ())
        queries, known_files = evaluate.prepare(execution, part, edges, pieces)
        own = enumerate(evaluate.pieces(execution, config, [path], ()), len(pieces))
        arguments = [(part, of_task, number) for number, of_task in own]
        true = execution.run(tasks.find_known, arguments, "evaluate: held-out edges")
        share = extent.num_edges / extent.of_edges
        asked = [
            (part, side, rows, known_files, true, share)
            for side, of_side in queries.items()
            for group in of_side.groups  # a task reads all candidates of a group
            for rows in chunks(slice(group.start, group.stop), _TASK_QUERIES)
        ]
        answers = execution.run(find_best, asked, "evaluate: answers to calibrate")
    return CalibrationAnswers(*(np.concatenate(columns) for columns in zip(*answers, strict=True)))


def find_best(
    part: Part,
    side: Side,
    rows: slice,
    known: Sequence[KnownFile],
    true: Sequence[KnownFile],
    share: float,
) -> tuple[Floats, npt.NDArray[np.bool_], Numbers]:
    """Find the best answers of some queries of a group, as `CalibrationAnswers` has them; a task.

    A drawn `share` of the edges favours queries with many edges. A second draw, of queries, corrects this.
    """
    run, config = part.run, part.config
    queries = part.queries(side, part.edges())
    relation = relation_of(run, read_parameters(run), int(queries.rel[rows.start]))
    name = relation.types[side]
    dimension, first = config.entity_dimension(name), part.graph.first[name]
    table = EntityTable(
        run,
        tuple(
            MeasuredPartition(name, number, num_rows, dimension, "", "")
            for number, num_rows in enumerate(run.num_rows[name])
        ),
    )

    def left_out(partition: int) -> Pairs:
        slices = evaluate.slices(known, (name, partition), [side])
        cells = tasks.cells_left_out(part, queries, rows, slices)
        number_K, query_K = np.divmod(cells, len(queries))
        yield query_K - rows.start, number_K - first[partition]

    vectors_QD = part.vectors(side, rows.start, rows.stop)[:, :dimension]
    query_QD = made(lambda tile_PD: tile_PD, vectors_QD, HEIGHT, run.checkpoint_path)
    block_rows = max(1, VECTOR_BYTES // (4 * dimension * WIDTH)) * WIDTH
    scan = Scan(relation, side, query_QD, len(vectors_QD), table, left_out, block_rows, _KNOWN)
    num_gpus = config.num_gpus if is_dot(config.comparator, config.bias) else 0
    score_QK, number_QK = scan.best(NUM_BEST, num_gpus)[0].table(len(vectors_QD), NUM_BEST)
    files_of = [work.load(part.folder, f"known-{side}-{file.number}", np.int64) for file in true]
    cells = distinct(np.concatenate(files_of).reshape(-1))
    cell_QK = number_QK * len(queries) + np.arange(rows.start, rows.stop)[:, None]
    is_edge_QK = contains(cells, cell_QK.reshape(-1)).reshape(cell_QK.shape) & np.isfinite(score_QK)
    num_edges_Q = np.bincount(cells % len(queries), minlength=len(queries))[rows]
    drawn = np.random.default_rng(seeds.derived(config.seed, "calibrate", side))
    kept = drawn.random(len(queries))[rows] < share / (1 - (1 - share) ** num_edges_Q)
    group_Q = queries.rel[rows] * len(Side) + list(Side).index(side)
    return score_QK[kept], is_edge_QK[kept], group_Q[kept]
