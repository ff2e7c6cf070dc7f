"""A run with every figure of a report, and with hostile ids and names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.formats import remapped

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</script><script>document.title='owned'</script>",
    "$$x^2$$",
    r"\(x\)",
    "{{ 7 * 7 }}",
    "@label{safe}",
    "&amp;<b>\u2028\u202e",
    '"id":"p1001"',
)
SIDE = {"num_edges": 10, "mrr": 0.2, "hits@10": 0.4, "mrr_most_popular": 0.05, "mrr_random": 0.01}
SIDES = dict.fromkeys(("lhs", "rhs"), SIDE)


def record() -> dict[str, Any]:
    """A run.json."""
    bucket = {"lhs": 0, "edges": 50, "seconds": 0.1, "wait_s": 0, "reg": 0, "mrr": 0.1}
    buckets = [bucket | {"rhs": n, "loss": 2 / (n + 1)} for n in range(4)]
    moved = {"swap_wait_s": 0.1, "partitions_read": 2, "partitions_written": 2, "peak_bytes": 100_000_000}
    every = {"edges": 200, "seconds": 1.0, "edges_per_s": 200, "reg": 0.0, **moved, "buckets": buckets}
    epochs = [every | {"epoch": epoch, "loss": 2 / epoch, "mrr": 0.1 * epoch} for epoch in (1, 2, 3)]
    names = list(HOSTILE)
    buckets_of_train = {"num_buckets": 4, "num_empty": 1, "min_edges": 0, "mean_edges": 13, "max_edges": 40}
    etl = {
        **{"status": "done", "seconds": 1.0, "step_seconds": {"encode": 0.5}, "bytes_in": 12345},
        **{"num_rows": 1000, "num_rows_quarantined": 9, "quarantined": {names[0]: 9}},
        **{"num_edges": {"train": 900, "test": 88}, "num_edges_left_out": {"duplicates": 3}},
        **{"num_relations": len(names), "num_edges_by_relation": dict.fromkeys(names, 7)},
        **{"num_entities": {"node": [30, 30], names[1]: [4]}, "num_entities_outside_train": {"node": 2}},
        "edges_by_bucket": {"train": {"partitions_a_cell": 1, "counts": [[10, 0], [3, 40]]}},
        "buckets": {"train": buckets_of_train},
        "degree_histogram": {"node": [[0, 0, 2], [1, 1, 20], [2, 3, 8], [4, 7, 1]]},
        "train_degree": {"node": {"min": 0, "p50": 1, "max": 5}},
        "highest_degrees": {"node": [[5, name] for name in names]},
    }
    ranks, edges = {"mrr": 0.2, "hits@10": 0.4, "mean_rank": 12.5}, {"num_edges": 88}
    metrics = ranks | {f"{name}_pessimistic": value for name, value in ranks.items()} | edges
    before = {"split": "test", "filtered": True, "metrics": ranks | edges | {"mrr": 0.15}}
    simple = {"mrr": 0.05, "hits@10": 0.1, "mean_rank": 25.0}
    bins = [{"answers": 150, "probability": p, "true": p + 0.01} for p in (0.02, 0.4)]
    best = {"num_answers": 300, "true": 0.1, "ece": 0.0123, "brier": 0.08, "brier_base_rate": 0.09}
    fitted = {"fitted_on": "valid", "measured_on": "test", "num_queries": 40}
    evaluate = {
        **(before | {"status": "done", "seconds": 0.5, "metrics": metrics}),
        "baselines": {"most_popular": simple, "random": simple | {"mrr": 0.01}},
        "calibration": fitted | {"top_10": best | {"reliability": bins}},
        "metrics_by_relation": [{"relation": name} | SIDES for name in names],
        "metrics_by_degree": [{"first": 0, "last": 0} | SIDES, {"first": 3, "last": None} | SIDES],
    }
    train = {
        **{"status": "done", "seconds": 3.0, "num_epochs": 3, "loss": 0.6, "edges_per_s": 200},
        "epochs": epochs,
        "validation": [{"epoch": epoch, "version": epoch, "mrr": 0.1 * epoch} for epoch in (1, 3)],
        "members": [{"seed": 2**62 + place, "loss": 0.6, "validation_mrr": 0.3} for place in (0, 1)],
    }
    remap = {"status": "done", "seconds": 0.1}
    return {
        **{"status": "done", "command": ["pipeline.py", names[0]], "versions": {"graphmill": "0"}},
        **{"started": "2026-01-02T03:04:05+00:00", "finished": "2026-01-02T03:04:15+00:00"},
        "config": {"input": names[0], "dimension": 8, "relations": [{"name": names[1], "lhs": "node"}]},
        "stages": {"etl": etl, "train": train, "evaluate": evaluate, "remap": remap},
        "metrics": metrics,
        "before": before,
    }


def write_run(folder: Path, content: dict[str, Any]) -> Path:
    """Write run.json, and embeddings of the type `node`, which begins with the hostile ids."""
    rng = np.random.default_rng(5)
    ids = [*HOSTILE, *(f"n{number}" for number in range(60 - len(HOSTILE)))]
    for partition in range(2):
        with remapped.new_part(str(folder / "embeddings"), "node", partition, 8) as part:
            part.append(pa.array(ids[partition::2]), rng.normal(size=(30, 8)).astype(np.float32))
    (folder / "run.json").write_text(json.dumps(content))
    return folder


CHARTS = {
    "overview": ["time"],
    "etl": ["rows", "entities", "partitions", "relations", "buckets", "degrees"],
    "training": ["loss", "mrr", "validation", "edges_per_s", "waits", "swaps", "memory"],
    "ranking": ["baselines", "relations", "degrees"],
    "probabilities": ["reliability"],
    "vectors": ["map-8"],
}
