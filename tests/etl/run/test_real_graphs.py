"""Graphs that people use: FB15k-237, and Debian's packages, which ship with the repository."""

import json
import tarfile
from collections import Counter
from pathlib import Path

import distributed
import pyarrow.parquet as pq
import pytest

from etl import job
from graphmill.config import Config
from tests import REPOSITORY
from tests.etl.graphs import RawEdge, all_edges, check_entities, config_of

DEBIAN = REPOSITORY / "demo" / "debian"


@pytest.fixture(scope="module")
def triples(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with FB15k-237's train.txt, valid.txt, test.txt."""
    archive = shared_dir / "data" / "FB15k-237.tar.gz"
    if not archive.exists():
        pytest.skip("no FB15k-237.tar.gz in the folder `shared`")
    folder = tmp_path_factory.mktemp("FB15k-237")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(folder.rglob("train.txt")).parent


def fb15k_config(output: Path | str, triples: Path | str) -> Config:
    columns = {"header": False, "quoting": False, "lhs": 0, "relation_column": 1, "rhs": 2}
    return config_of(
        output,
        [{"path": f"{split}.txt", "split": split, **columns} for split in ("train", "valid", "test")],
        entities={"all": 4},
        relations=[("all", "all", "all")],
        top={"input": str(triples), "dynamic_relations": True},
    )


def test_fb15k_237(client: distributed.Client, triples: Path, tmp_path: Path) -> None:
    config = fb15k_config(tmp_path / "out", triples)
    figures = job.run(config, client)
    assert figures["num_edges"] == {"train": 272_115, "valid": 17_535, "test": 20_466}
    assert sum(figures["num_entities"]["all"]) == 14_541
    assert figures["num_relations"] == 237
    assert json.loads(json.dumps(figures)) == figures  # it goes to run.json
    assert figures["num_entities_outside_train"] == {"all": 14_541 - 14_505}
    ids: set[str] = set()
    for split in figures["num_edges"]:
        rows = [line.split("\t") for line in (triples / f"{split}.txt").read_text().splitlines()]
        assert all_edges(config, split) == Counter(
            RawEdge("all", lhs, rel, "all", rhs) for lhs, rel, rhs in rows
        )
        ids |= {raw_id for lhs, _, rhs in rows for raw_id in (lhs, rhs)}
    check_entities(config, {"all": ids})


def test_debian(client: distributed.Client, tmp_path: Path) -> None:
    between = [(name, "package", "package") for name in ("depends", "recommends", "suggests", "conflicts")]
    one_each = {"maintained_by": "maintainer", "in_section": "section"}
    config = config_of(
        tmp_path / "out",
        [
            {
                "path": "package_relations.parquet",
                "lhs": "source",
                "rhs": "target",
                "relation_column": "relation",
            },
            *(
                {"path": f"{name}.parquet", "lhs": "package", "rhs": column, "relation": name}
                for name, column in one_each.items()
            ),
        ],
        entities={"package": 4, "maintainer": 4, "section": 1},
        relations=[*between, *((name, "package", column) for name, column in one_each.items())],
        top={"input": str(DEBIAN)},
        holdout={"valid": 0.02, "test": 0.02},
    )
    figures = job.run(config, client)
    table = pq.read_table(DEBIAN / "package_relations.parquet").to_pylist()
    expected = Counter(RawEdge("package", r["source"], r["relation"], "package", r["target"]) for r in table)
    for name, column in one_each.items():
        rows = pq.read_table(DEBIAN / f"{name}.parquet").to_pylist()
        expected += Counter(RawEdge("package", row["package"], name, column, row[column]) for row in rows)
    splits = {split: all_edges(config, split) for split in ("train", "valid", "test")}
    assert sum(splits.values(), Counter()) == expected
    for split in ("valid", "test"):
        assert figures["num_edges"][split] == pytest.approx(0.02 * expected.total(), rel=0.1)
    ids: dict[str, set[str]] = {}
    for edge in expected:
        ids.setdefault(edge.lhs_type, set()).add(edge.lhs)
        ids.setdefault(edge.rhs_type, set()).add(edge.rhs)
    check_entities(config, ids)
    trained = {(e.lhs_type, e.lhs) for e in splits["train"]} | {(e.rhs_type, e.rhs) for e in splits["train"]}
    outside = {name: len(found) - sum(kind == name for kind, _ in trained) for name, found in ids.items()}
    assert figures["num_entities_outside_train"] == outside
    assert figures["buckets"]["train"]["max_edges"] < 2 * figures["buckets"]["train"]["min_edges"]
