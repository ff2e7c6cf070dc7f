"""Calibration in an evaluation: probabilities fitted on one split, and measured on the ranked one.

The queries are those of held-out edges, or of some that are drawn. Their answers are what `graphmill predict`
gives: the NUM_BEST candidates that score highest and are no known edges, known in the other splits; nor the
entity itself, where the relation has no loops. An answer is true if it is a held-out edge. The ranked split
is not used for the fit: there its edges are candidates.

The temperature makes the softmax over the answers likeliest. The line of a relation and a side is a logistic
regression with a unit information prior (Kass and Wasserman, 1995): the pooled line counts as much as one
query, so that relations with few edges stay near it. The formula is in `graphmill.model.calibration`.

Shapes: Q queries of a side, K answers, P queries and N candidates of a block, M answers of all queries,
G groups: pairs of a relation and a side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphmill.ask.edges import Numbers, known_paths, loopless
from graphmill.ask.entities import EntityTable, MeasuredPartition
from graphmill.ask.evaluate import evaluate, tasks
from graphmill.ask.evaluate.execution import Execution
from graphmill.ask.evaluate.inputs import calibration_path, has_edges
from graphmill.ask.evaluate.queries import VECTOR_BYTES, BlockSize, chunks
from graphmill.ask.evaluate.tasks import KnownFile, Part
from graphmill.ask.relation import read_parameters, relation_of
from graphmill.ask.run import TrainedRun
from graphmill.ask.scan import HEIGHT, WIDTH, Pairs, Scan, made
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.formats.calibration import Calibration
from graphmill.model.calibration import NUM_BEST, Floats, Line, probabilities, shares
from graphmill.model.comparators import is_dot
from graphmill.run import seeds
from graphmill.sorted_arrays import contains, distinct
from graphmill.vocab import Side

MOST_EDGES = 5000
"""Edges of a split whose queries are asked."""
_TASK_QUERIES = 8 * HEIGHT
_KNOWN = 1 << 22  # pairs that are held at a time

SHOWN = (1, 10, 100)
"""Numbers of answers to a query that are measured."""
NUM_BINS = 15

_LARGEST = 100.0  # the temperature is at most so many times as large, or as small, as the scores' spread
_BISECTIONS = 24
_STEPS = 50
_PRECISION = 1e-6

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CalibrationAnswers:
    """Answers of queries, best first: scores [Q, K], -inf for none; which are true [Q, K]; groups [Q]."""

    score: npt.NDArray[np.float32]
    is_true: Bools
    group: Numbers


class Fit(NamedTuple):
    """A temperature, the pooled line, and the lines [G, 2] of some groups [G], sorted."""

    temperature: float
    pooled: Line
    groups: Numbers
    lines: Floats

    def probabilities(self, answers: CalibrationAnswers) -> Floats:
        """Probabilities of answers: [Q, K]."""
        every = np.vstack([self.lines, self.pooled])
        place_Q = np.searchsorted(self.groups, answers.group)
        is_there_Q = np.append(self.groups, -1)[place_Q] == answers.group
        line_Q2 = every[np.where(is_there_Q, place_Q, len(self.groups))]
        return probabilities(shares(answers.score, self.temperature), line_Q2[:, :1], line_Q2[:, 1:])


def calibrate(config: Config, execution: Execution) -> tuple[Calibration, dict[str, Any]] | None:
    """Fit probabilities, and measure them on the ranked split; None where no edges are there to fit on."""
    settings = config.evaluate
    path, ranked = calibration_path(config), config.split_path(settings.split).rstrip("/")
    if path is None or not has_edges(config, path):
        return None
    run = TrainedRun.to_evaluate(config, settings.checkpoint_version)
    known = known_paths(config)
    ask = partial(_answers, config, execution, run)
    fitted = fit(ask(path, [folder for folder in known if folder not in (path, ranked)]))
    figures = measure(fitted, ask(ranked, [folder for folder in known if folder != ranked]))
    split = str(settings.calibrate)
    checksum = pbg.version_checksum(run.checkpoint_path, run.version)
    lines: dict[str, dict[Side, Line]] = {}
    for group, line in zip(fitted.groups.tolist(), fitted.lines.tolist(), strict=True):
        name = run.relation_names[group // len(Side)]
        lines.setdefault(name, {})[list(Side)[group % len(Side)]] = Line(*line)
    calibrated = Calibration(run.version, checksum, split, fitted.temperature, fitted.pooled, lines)
    told = {"fitted_on": split, "temperature": fitted.temperature, "pooled": list(fitted.pooled)}
    return calibrated, told | {"measured_on": settings.split} | figures


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
    part: Part, side: Side, rows: slice, known: Sequence[KnownFile], true: Sequence[KnownFile], share: float
) -> tuple[npt.NDArray[np.float32], Bools, Numbers]:
    """Find the best answers of some queries of a group, as `CalibrationAnswers` has them; a task.

    A drawn `share` of the edges favours queries with many edges. A second draw, of queries, corrects this.
    """
    run, config = part.run, part.graph.config
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
    files_of = [tasks.load(part.folder, f"known-{side}-{file.number}", np.int64) for file in true]
    cells = distinct(np.concatenate(files_of).reshape(-1))
    cell_QK = number_QK * len(queries) + np.arange(rows.start, rows.stop)[:, None]
    is_edge_QK = contains(cells, cell_QK.reshape(-1)).reshape(cell_QK.shape) & np.isfinite(score_QK)
    num_edges_Q = np.bincount(cells % len(queries), minlength=len(queries))[rows]
    drawn = np.random.default_rng(seeds.derived(config.seed, "calibrate", side))
    kept = drawn.random(len(queries))[rows] < share / (1 - (1 - share) ** num_edges_Q)
    group_Q = queries.rel[rows] * len(Side) + list(Side).index(side)
    return score_QK[kept], is_edge_QK[kept], group_Q[kept]


def fit(answers: CalibrationAnswers) -> Fit:
    """Fit a temperature and lines."""
    temperature = _temperature(answers)
    share_QK = shares(answers.score, temperature)
    is_there = np.isfinite(share_QK)
    share_M, true_M = share_QK[is_there], answers.is_true[is_there]
    query_M = np.nonzero(is_there)[0]
    groups, number_Q = np.unique(answers.group, return_inverse=True)
    mean_2, precision_22 = np.array([1.0, 0.0]), np.eye(2)  # the softmax itself
    none = np.zeros(len(share_M), np.int64)
    pooled, information = _lines(share_M, true_M, none, 1, mean_2, precision_22)
    precision_22 = (information[0] + precision_22) / max(len(answers.group), 1)  # counts as one query
    lines, _ = _lines(share_M, true_M, number_Q[query_M], len(groups), pooled[0], precision_22)
    return Fit(temperature, Line(*pooled[0].tolist()), groups, lines)


def measure(fitted: Fit, answers: CalibrationAnswers) -> dict[str, Any]:
    """Measure probabilities on answers of other edges, for run.json.

    The expected calibration error is the mean distance between the mean probability and the share of true
    answers, in bins of equally many answers, sorted by probability.
    """
    probability_QK = fitted.probabilities(answers)
    figures: dict[str, Any] = {"num_queries": len(answers.group)}
    for k in SHOWN:
        is_there = np.isfinite(answers.score[:, :k])
        probability_M, true_M = probability_QK[:, :k][is_there], answers.is_true[:, :k][is_there]
        if not len(true_M):
            continue
        rate = float(true_M.mean())
        table = reliability(probability_M, true_M)
        error = sum(row["answers"] * abs(row["probability"] - row["true"]) for row in table)
        figures[f"top_{k}"] = {
            "num_answers": len(true_M),
            "true": rate,
            "ece": error / len(true_M),
            "brier": float(((probability_M - true_M) ** 2).mean()),
            "brier_base_rate": rate * (1 - rate),
            "reliability": table,
        }
    return figures


def reliability(probability_M: Floats, true_M: Bools) -> list[dict[str, float]]:
    """Answers, mean probability and share of true answers of each bin, those of low probability first."""
    bins = np.array_split(np.argsort(probability_M, kind="stable"), min(NUM_BINS, len(true_M)))
    return [
        {
            "answers": len(rows),
            "probability": float(probability_M[rows].mean()),
            "true": float(true_M[rows].mean()),
        }
        for rows in bins
    ]


def _temperature(answers: CalibrationAnswers) -> float:
    """The temperature at which true answers are likeliest, each as the only answer of its query.

    The mean score of the softmax grows with 1 / T, so a bisection finds where it is that of true answers.
    """
    num_true_Q = answers.is_true.sum(1)
    score_QK = answers.score[num_true_Q > 0].astype(np.float64)
    is_there = np.isfinite(score_QK)
    weight_Q, true_QK = num_true_Q[num_true_Q > 0], answers.is_true[num_true_Q > 0]
    finite_QK = np.where(is_there, score_QK, 0)
    mean_Q1 = finite_QK.sum(1, keepdims=True) / is_there.sum(1, keepdims=True)
    spread = float(np.sqrt(((finite_QK - mean_Q1) ** 2)[is_there].mean())) if len(score_QK) else 0.0
    if not spread:
        return 1.0
    total = float(finite_QK[true_QK].sum())
    low, high = np.log(spread / _LARGEST), np.log(spread * _LARGEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        expected_Q = (np.exp(shares(score_QK, np.exp(middle))) * finite_QK).sum(1)
        low, high = (middle, high) if float(weight_Q @ expected_Q) > total else (low, middle)
    return float(np.exp((low + high) / 2))


def _lines(
    share_M: Floats, true_M: Bools, group_M: Numbers, num_groups: int, mean_2: Floats, precision_22: Floats
) -> tuple[Floats, Floats]:
    """Likeliest lines [G, 2] of no negative slope, under a normal prior; their information [G, 2, 2]."""

    def sums(values_M: Floats) -> Floats:
        return np.bincount(group_M, values_M, num_groups).astype(np.float64)

    def loss(line_G2: Floats) -> Floats:
        odds_M = line_G2[group_M, 0] * share_M + line_G2[group_M, 1]
        away_G2 = line_G2 - mean_2
        of_prior_G = ((away_G2 @ precision_22) * away_G2).sum(1) / 2
        losses: Floats = sums(np.logaddexp(0, odds_M) - true_M * odds_M) + of_prior_G
        return losses

    line_G2, length_G1 = np.tile(mean_2, (num_groups, 1)), np.ones((num_groups, 1))
    loss_G = loss(line_G2)
    for _ in range(_STEPS):  # Newton's
        probability_M = probabilities(share_M, line_G2[group_M, 0], line_G2[group_M, 1])
        error_M, weight_M = probability_M - true_M, probability_M * (1 - probability_M)
        slope_G2 = np.stack([sums(error_M * share_M), sums(error_M)], 1)
        slope_G2 += (line_G2 - mean_2) @ precision_22
        cross_G = sums(weight_M * share_M)
        flat = [sums(weight_M * share_M**2), cross_G, cross_G, sums(weight_M)]
        information_G22 = np.stack(flat, 1).reshape(-1, 2, 2)
        curvature_G22 = information_G22 + precision_22
        is_bound_G = (line_G2[:, 0] <= 0) & (slope_G2[:, 0] > 0)  # the slope stays 0
        slope_G2[is_bound_G, 0] = 0
        curvature_G22[is_bound_G, 0, 1] = curvature_G22[is_bound_G, 1, 0] = 0
        step_G2 = np.linalg.solve(curvature_G22, slope_G2[:, :, None])[:, :, 0]
        if float((np.abs(step_G2) * length_G1).max(initial=0)) < _PRECISION:
            break
        next_G2 = line_G2 - length_G1 * step_G2
        next_G2[:, 0] = np.maximum(next_G2[:, 0], 0)
        next_loss_G = loss(next_G2)
        is_better_G1 = (next_loss_G <= loss_G)[:, None]
        loss_G = np.minimum(next_loss_G, loss_G)
        line_G2 = np.where(is_better_G1, next_G2, line_G2)
        length_G1 = np.where(is_better_G1, 1.0, length_G1 / 2)
    return line_G2, information_G22
