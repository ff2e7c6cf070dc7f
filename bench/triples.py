"""A folder of triples after ETL: the input of training and evaluation."""

from pathlib import Path
from typing import Any

from bench.setting import Setting, stage_figures, write_yaml
from bench.synthetic import Triples, triples_folder


def prepare(setting: Setting, output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Import the graph to `output`; the settings that our trainer and PBG's share, and the figures of ETL."""
    source = setting.triples or triples_folder(setting.graphs, Triples())
    graph = {
        "entities": {"entity": {"num_partitions": 1}},
        "relations": [{"name": "all", "lhs": "entity", "rhs": "entity", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "dimension": 8,
    }
    tables = [
        {"path": str(source / f"{split}.txt"), "format": "csv", "delimiter": "\t", "header": False}
        | {"lhs": 0, "relation_column": 1, "rhs": 2, "split": split}
        for split in ("train", "valid", "test")
    ]
    config = graph | {"output": str(output), "etl": {"tables": tables}}
    setting.graphmill("etl", "--conf", write_yaml(output / "config.yaml", config))
    paths = {"entity_path": str(output / "entities"), "edge_paths": [str(output / "edges" / "train")]}
    return graph | paths, stage_figures(output, "etl")


def ours(shared: dict[str, Any], output: Path) -> dict[str, Any]:
    """Our configuration of a run that writes to `output`."""
    roots = {"output": str(output), "edge_root": str(Path(shared["edge_paths"][0]).parent)}
    return {"defaults": "pbg", "checkpoint_path": str(output / "checkpoint")} | shared | roots
