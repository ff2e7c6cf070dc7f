"""Evaluation: full filtered ranking against the bare matrix product that it needs.

Every distinct query (entity, relation, side) of the test edges meets every entity once. An epoch of training
is enough, because the ranks do not change the time.
"""

import numpy as np

from bench import floor, triples
from bench.report import Report
from bench.setting import Setting, stage_figures, write_yaml
from graphmill.formats import edge_buckets, entity_counts
from graphmill.vocab import Bucket

DIMENSION = 400


def run(setting: Setting) -> Report:
    """Rank the test edges with one checkpoint, on both sides."""
    report = Report("evaluate", f"Filtered evaluation, ComplEx, D={DIMENSION}, {setting.num_workers} cores")
    with setting.run_folder("evaluate") as folder:
        graph, _ = triples.prepare(setting, folder)
        settings = triples.ours(graph | {"dimension": DIMENSION}, folder)
        config_path = write_yaml(folder / "config.yaml", settings)
        setting.graphmill("train", "--conf", config_path)
        measured, metrics = setting.evaluate(config_path)
        num_entities = entity_counts.read_count(graph["entity_path"], "entity", 0)
        stage_s = float(stage_figures(folder, "evaluate")["seconds"])
        num_queries = _count_queries(str(folder / "edges" / "test"))
    product = floor.run("product", [[num_queries, num_entities, DIMENSION, setting.num_workers]])
    num_scores = num_queries * num_entities
    for what, in_stage_s, cost in (("ours", stage_s, measured), ("floor: matrix product", None, product)):
        report.add(
            what,
            edges=int(metrics["num_edges"]),
            queries=num_queries,
            entities=num_entities,
            stage_s=in_stage_s,
            M_scores_per_s=num_scores / (in_stage_s or cost.wall_s) / 1e6,
            **cost.figures(),
        )
    report.ratio("ours / matrix product, the stage", stage_s / product.wall_s)
    report.ratio("ours / matrix product, whole command", measured.wall_s / product.wall_s)
    return report


def _count_queries(edge_path: str) -> int:
    """Count the distinct (relation, entity) pairs of both sides."""
    edges = edge_buckets.read_bucket(edge_path, Bucket(0, 0))
    sides = (np.stack([edges.rel, entity], axis=1) for entity in (edges.lhs, edges.rhs))
    return sum(len(np.unique(pairs, axis=0)) for pairs in sides)
