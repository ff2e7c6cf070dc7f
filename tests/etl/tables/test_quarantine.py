"""The table of bad rows: their place, the reason, and never more than allowed."""

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from etl import job
from graphmill.config import Config
from graphmill.errors import ConfigError, RawTableError
from graphmill.run.reading import summary
from tests.etl.graphs import RawEdge, all_edges, config_of, write_parquet

TABLE = {"path": "t.parquet", "relation_column": "r", "weight": "w"}
GOOD = {"l": ["a"] * 40, "t": ["b"] * 40, "r": ["to"] * 40, "w": ["1"] * 40}


def config_with(root: Path, table: dict[str, Any], **etl: Any) -> Config:
    settings = {"on_bad_row": "quarantine", "max_bad_fraction": 0.5, "chunk_rows": 7} | etl
    return config_of(root / "out", [table], entities={"n": 2}, top={"input": str(root)}, **settings)


def quarantined(root: Path) -> list[dict[str, Any]]:
    tables = map(pq.read_table, (root / "out/quarantine").glob("*.parquet"))
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: (row["start"], row["row"]))


def test_parquet(near_client: Client, tmp_path: Path) -> None:
    columns: dict[str, Any] = {name: list(values) for name, values in GOOD.items()}
    for row, (column, value) in {
        3: ("l", None), 4: ("l", b""), 12: ("l", b"\xff"), 13: ("w", "x"), 20: ("w", "-1"), 39: ("r", "from")
    }.items():  # fmt: skip
        columns[column][row] = value
    columns["t"][4] = None  # one row, two reasons: it counts once
    columns["l"] = pa.array(
        [each if each is None or isinstance(each, bytes) else each.encode() for each in columns["l"]]
    )
    write_parquet(tmp_path / "t.parquet", 11, **columns)
    config = config_with(tmp_path, TABLE)
    figures = job.run(config, near_client)
    found = quarantined(tmp_path)
    assert [(row["row"], row["reason"]) for row in found] == [
        (4, "lhs: null"), (5, "lhs: empty"), (13, "lhs: not UTF-8"), (14, "weight: not a number"),
        (21, "weight: out of range"), (40, "relation: unknown relation 'from'"),
    ]  # fmt: skip
    assert {row["file"] for row in found} == {str(tmp_path / "t.parquet")}
    assert found[2]["lhs"] == "\\xff"
    assert found[3].items() >= {"lhs": "a", "rhs": "b", "relation": "to", "weight": "x"}.items()
    assert (found[3]["id"], found[3]["start"]) == (None, 0)
    assert (figures["num_rows"], figures["num_rows_quarantined"]) == (40, 6)
    assert figures["quarantined"] == {row["reason"].removesuffix(" 'from'"): 1 for row in found}
    assert figures["unknown_relations"] == {"from": 1}
    assert all_edges(config) == Counter({RawEdge("n", "a", "to", "n", "b", 1.0): 34})


def test_the_most_frequent_unknown_relations_are_told(
    near_client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["to"] * 30 + ["of", "in"] * 4 + ["in", "x" * 200]
    write_parquet(tmp_path / "t.parquet", 7, l=["a"] * 40, t=["b"] * 40, r=names, w=["1"] * 40)
    with caplog.at_level(logging.WARNING, "graphmill"):
        figures = job.run(config_with(tmp_path, TABLE), near_client)
    assert list(figures["unknown_relations"].items()) == [("in", 5), ("of", 4), ("x" * 79 + "…", 1)]
    told = r"10 of 40 rows cannot .*10 relation: unknown relation; .*'in' 5, 'of' 4, .*out/quarantine"
    assert re.search(told, caplog.text)
    assert summary({"etl": figures})["unknown relation 'in'"] == "5"
    reasons = Counter(row["reason"] for row in quarantined(tmp_path))
    assert reasons["relation: unknown relation 'in'"] == 5
    with pytest.raises(RawTableError, match=r"unknown relations: 'in' 5, 'of' 4.*max_bad_fraction 0\.1 "):
        job.run(config_with(tmp_path, TABLE, max_bad_fraction=0.1), near_client)


@pytest.mark.parametrize(("num_blank", "chunk_rows"), [(0, 1), (2, 3), (0, 1000)])
def test_text_with_missing_and_surplus_fields(
    near_client: Client, tmp_path: Path, chunk_rows: int, num_blank: int
) -> None:
    lines = ["a,b", "a", "c,d", ",e", "a,b,c", "x,y", ",z"]
    (tmp_path / "t.csv").write_text("\n" * num_blank + "\n".join(["l,t", *lines]) + "\n")
    config = config_with(tmp_path, {"path": "t.csv"}, max_bad_fraction=0.6, chunk_rows=chunk_rows)
    figures = job.run(config, near_client)
    found = quarantined(tmp_path)
    assert [(row["row"], row["reason"], row["text"]) for row in found] == [
        (2, "number of fields", "a"),
        (4, "lhs: empty", None),
        (5, "number of fields", "a,b,c"),
        (7, "lhs: empty", None),
    ]
    assert figures["num_rows"] == 7
    assert figures["num_edges"] == {"train": 3}


def test_a_block_without_a_good_list_of_features(near_client: Client, tmp_path: Path) -> None:
    write_parquet(tmp_path / "in/bad.parquet", l=pa.array([None], pa.list_(pa.string())), t=["x"])
    write_parquet(tmp_path / "in/good.parquet", l=[["a", "b"]], t=["x"])
    shape: Any = {"entities": {"words": 1, "n": 1}, "relations": [("to", "words", "n")]}
    shape |= {"featurized": "words", "on_bad_row": "quarantine", "max_bad_fraction": 0.5}
    config = config_of(tmp_path / "out", str(tmp_path / "in"), **shape)
    assert job.run(config, near_client)["num_edges"] == {"train": 1}
    assert [row["reason"] for row in quarantined(tmp_path)] == ["lhs: null"]


def test_too_many_bad_rows(near_client: Client, tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", l=["a"] * 9 + [None], t=["b"] * 10)
    table = {"path": "t.parquet"}
    job.run(config_with(tmp_path, table, max_bad_fraction=0.1), near_client)
    edges = (tmp_path / "out/edges/train/edges_0_0.h5").read_bytes()
    message = r"1 of 10 rows .*1 lhs: null.*max_bad_fraction 0\.09 .*out/quarantine"
    with pytest.raises(RawTableError, match=message):
        job.run(config_with(tmp_path, table, max_bad_fraction=0.09), near_client)
    assert len(quarantined(tmp_path)) == 1  # to be looked at
    assert (tmp_path / "out/edges/train/edges_0_0.h5").read_bytes() == edges
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_quarantine_needs_a_folder(tmp_path: Path) -> None:
    assert str(tmp_path / "out/quarantine") in job.output_uris(config_with(tmp_path, TABLE))
    top = {"entity_path": "/x/entities", "edge_paths": ["/x/edges/train"], "checkpoint_path": "/x/c"}
    config = config_of("", [TABLE], top=top | {"output": None}, on_bad_row="quarantine")
    with pytest.raises(ConfigError, match=r"etl\.quarantine_path"):
        job.output_uris(config)
