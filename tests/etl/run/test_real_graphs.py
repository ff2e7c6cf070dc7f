"""Real graphs: UMLS, and Debian's packages."""

import json
from collections import Counter
from pathlib import Path

import distributed
import pyarrow.parquet as pq
import pytest

from etl import job
from tests import DATA, REPOSITORY
from tests.etl.graphs import RawEdge, all_edges, check_entities, config_of

DEBIAN = REPOSITORY / "demo" / "debian"


@pytest.mark.slow
def test_umls(near_client: distributed.Client, tmp_path: Path) -> None:
    """Tables without a header, one per split, whose relations are in a column."""
    rows = [line.split("\t") for line in (DATA / "pbg_v1_dyn" / "raw.tsv").read_text().splitlines()]
    splits = {"train": rows[:4000], "valid": rows[4000:4500], "test": rows[4500:]}
    for split, triples in splits.items():
        (tmp_path / f"{split}.txt").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    columns = {"header": False, "quoting": False, "lhs": 0, "relation_column": 1, "rhs": 2}
    config = config_of(
        tmp_path / "out",
        [{"path": f"{split}.txt", "split": split, **columns} for split in splits],
        entities={"all": 4},
        relations=[("all", "all", "all")],
        top={"input": str(tmp_path), "dynamic_relations": True},
    )
    figures = job.run(config, near_client)
    assert figures["num_edges"] == {"train": 4000, "valid": 500, "test": 716}
    assert sum(figures["num_entities"]["all"]) == 135
    assert figures["num_relations"] == 46
    assert json.loads(json.dumps(figures)) == figures  # it goes to run.json
    ids = {split: {end for lhs, _, rhs in triples for end in (lhs, rhs)} for split, triples in splits.items()}
    assert figures["num_entities_outside_train"] == {"all": 135 - len(ids["train"])}
    for split, triples in splits.items():
        assert all_edges(config, split) == Counter(
            RawEdge("all", lhs, rel, "all", rhs) for lhs, rel, rhs in triples
        )
    check_entities(config, {"all": set().union(*ids.values())})


@pytest.mark.slow
def test_debian(near_client: distributed.Client, tmp_path: Path) -> None:
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
    figures = job.run(config, near_client)
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
