"""Splits of configurations that name their edge paths, as PBG's do."""

from pathlib import Path

import pytest

from graphmill import config
from graphmill.config.splits import folder_of, names_of

FB15K = [f"/d/FB15k/freebase_mtr100_mte100-{split}_partitioned" for split in ("train", "valid", "test")]


@pytest.mark.parametrize(
    ("split", "edge_paths", "folder"),
    [
        ("train", FB15K, FB15K[0]),
        ("valid", FB15K, FB15K[1]),
        ("test", FB15K, FB15K[2]),
        ("freebase_mtr100_mte100-test_partitioned", FB15K, FB15K[2]),
        ("holdout", FB15K, "/root/holdout"),
        ("train", FB15K[::-1], FB15K[0]),
        ("train", ["/d/monday", "/d/tuesday"], "/d/monday"),
        ("tuesday", ["/d/monday", "/d/tuesday"], "/d/tuesday"),
        ("test", ["/d/train/edges", "/d/test/edges"], "/d/test/edges"),
        ("test-edges", ["/d/train/edges", "/d/test/edges"], "/d/test/edges"),
        ("test", ["/d/test_of_spring"], "/root/test"),  # the only path is trained on
        ("test", ["/d/a_test", "/d/b_test"], "/root/test"),
        ("test", ["/d/latest", "/d/train"], "/root/test"),
        ("train", ["hdfs://ns/d/x", "/d/y"], "hdfs://ns/d/x"),
        ("y", ["hdfs://ns/d/x", "/d/y"], "/d/y"),
        ("test", ["hdfs://ns/d/train/", "hdfs://ns/d/test/"], "hdfs://ns/d/test/"),
    ],
)
def test_the_folder_of_a_split(split: str, edge_paths: list[str], folder: str) -> None:
    assert folder_of(split, edge_paths, "/root") == folder


def test_names_of_edge_paths_differ_as_the_paths_do() -> None:
    assert names_of(["/d/train/edges", "/d/test/edges"]) == ["train-edges", "test-edges"]
    assert names_of(["/d/edges.v1"]) == ["edges-v1"]
    assert names_of(FB15K)[2] == "freebase_mtr100_mte100-test_partitioned"


@pytest.mark.parametrize(
    ("edge_paths", "overrides", "split", "folder"),
    [
        (["d/edges"], [], "edges", "d/edges"),
        (["d/monday", "d/tuesday"], [], "tuesday", "d/tuesday"),
        (["d/x_train", "d/x_test"], [], "test", "d/x_test"),
        (["d/x_train", "d/x_test"], ["edge_paths=[d/x_test]"], "x_test", "d/x_test"),
        (["d/edges"], ["evaluate.split=test"], "test", "d/test"),
        (["d/edges"], ["etl.tables=[{path: x, lhs: 0, rhs: 1, relation: r, split: test}]"], "test", "d/test"),
        (["beside/train"], [], "test", "beside/test"),
    ],
)
def test_a_configuration_of_pbg_evaluates_held_out_edges_or_its_last_edge_path(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edge_paths: list[str],
    overrides: list[str],
    split: str,
    folder: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside" / "test").mkdir(parents=True)
    raw = {
        "entity_path": "d",
        "edge_paths": edge_paths,
        "checkpoint_path": "model",
        "dimension": 2,
        "entities": {"a": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "a", "rhs": "a"}],
    }
    (tmp_path / "config.py").write_text(f"def get_torchbiggraph_config():\n    return {raw!r}\n")
    found = config.load("config.py", overrides)
    chosen = found.evaluate.split
    assert (chosen, found.split_path(chosen)) == (split, str(tmp_path / folder))
