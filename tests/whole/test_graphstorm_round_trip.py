"""Through GraphStorm's files and back: what the trainer saves for its tools is remapped as by ourselves."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.commands import Command

pytestmark = pytest.mark.slow


def test_embeddings(tmp_path: Path, graphmill_command: Command) -> None:
    rng = np.random.default_rng(0)
    rows = [f"u{u}\tlikes_it\ti{i}\n" for u, i in zip(*rng.integers(0, 40, (2, 600)), strict=True)]
    rows += [f"i{i}\tis_like\ti{j}\n" for i, j in zip(*rng.integers(0, 40, (2, 300)), strict=True)]
    (tmp_path / "graph.txt").write_text("".join(rows))
    table = {
        "path": str(tmp_path / "graph.txt"),
        "format": "csv",
        "header": False,
        "lhs": 0,
        "rhs": 2,
        "relation_column": 1,
    }
    settings = {
        "output": str(tmp_path / "run"),
        "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": "likes_it", "lhs": "user", "rhs": "item", "operator": "translation"},
            {"name": "is_like", "lhs": "item", "rhs": "item", "operator": "diagonal"},
        ],
        "etl": {"tables": [table], "graphstorm_maps": True, "holdout": {"test": 0.1}},
        "dimension": 8,
        "comparator": "dot",
        "loss_fn": "softmax",
        "train": {"save_embed_path": str(tmp_path / "emb")},
    }
    (tmp_path / "conf.yaml").write_text(json.dumps(settings))
    conf = ["--conf", tmp_path / "conf.yaml"]
    assert graphmill_command("pipeline", *conf) == 0
    maps = ["--node-id-mapping", tmp_path / "run/entities/raw_id_mappings"]
    assert graphmill_command("remap", *maps, "--node-emb-dir", tmp_path / "emb") == 0
    ours, theirs = {}, {}
    for path in (tmp_path / "run/embeddings").rglob("part-*.parquet"):
        found = pq.read_table(path).to_pydict()
        ours |= dict(zip(found["id"], found["embedding"], strict=True))
    for path in (tmp_path / "emb").rglob("embed-*.parquet"):
        found = pq.read_table(path).to_pydict()
        theirs |= dict(zip(found["nid"], found["emb"], strict=True))
    assert ours == theirs
    assert len(ours) == 80
