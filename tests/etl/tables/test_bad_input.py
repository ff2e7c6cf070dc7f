"""Mistakes of the user: refused with key or row, warned about where they are legal, or bad rows set aside.

The table of bad rows has their place and the reason, and never more of them than allowed.
"""

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
from etl.run.checks import warn_of_counts
from graphmill.config import Config, from_mapping
from graphmill.errors import ConfigError, NotFoundError, RawTableError
from graphmill.run.reading import summary
from tests.etl.graphs import RawEdge, all_edges, config_of, files_under, read_raw_edges, write_parquet
from tests.logged import messages_of

TABLE: dict[str, Any] = {"path": "t.parquet", "lhs": "l", "rhs": "t", "relation": "to"}
SHAPE: Any = {"entities": {"node": 2}}


# Keys of the entry, or of etl; the message.
BAD_ENTRIES: list[tuple[dict[str, Any], str]] = [
    ({"lsh": "l"}, r"\.lsh: unknown key"),
    ({"lhs": -1}, r"\.lhs"),
    ({"lhs": None}, r"\.lhs"),
    ({"path": []}, r"\.path"),
    ({"format": "xml"}, r"\.format: .*'parquet', 'csv', 'orc', 'json', 'delta' or 'iceberg'"),
    ({"delimiter": "||"}, r"\.delimiter: expected one character"),
    ({"delimiter": '"'}, r"\.delimiter: expected one character .*no quote"),
    ({"relation": None}, r": expected one of relation .* found neither"),
    ({"relation_column": "r"}, r": expected one of relation .* found both"),
    ({"rhs": "l"}, r": column 'l' is named twice"),
    ({"split": "../up"}, r"\.split"),
    ({"encoding": "rot13"}, r"\.encoding"),
    ({"comment": ""}, r"\.comment"),
    ({"comment": "#\n"}, r"\.comment"),
    ({"max_field_lines": 0}, r"\.max_field_lines"),
    ({"filters": [[]]}, r"\.filters: expected conditions"),
    ({"catalog": "c", "path": ["a.b", "a.c"]}, r": catalog: expected one path"),
    ({"catalog": "c", "format": "delta"}, r": catalog: expected one path"),
    ({"filters": [["day", "~", 1]]}, r"\.filters\[0\]\[0\]\[1\]: input should be '=='"),
    ({"filters": [["day", "in", 1]]}, r"\.filters: \[day, 'in'\]: expected a list of values, found 1"),
    ({"filters": [["day", "in", []]]}, r"\.filters: \[day, 'in'\]: expected values, found an empty list"),
    ({"filters": [["day", "==", [1]]]}, r"\.filters: \[day, '=='\]: expected one value"),
    ({"filters": [["day", "<", None]]}, r"\.filters: \[day, '<'\]: null is only == or !="),
    ({"filters": ["day < 5"]}, r"\.filters\[0\]: input should be a valid list; found 'day < 5'"),
]
BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"tables": []}, r"etl\.tables"),
    ({"holdout": {"train": 0.1}}, r"etl: holdout\.train"),
    ({"holdout": {"valid": 0.5, "test": 0.5}}, r"etl: holdout: the fractions add up"),
    ({"chunk_row": 5}, r"etl\.chunk_row: unknown key; did you mean 'chunk_rows'"),
    ({"entities": [{"type": "nobody", "path": "x", "id": 0}]}, r"etl\.entities\[0\]\.type: 'nobody'"),
    ({"min_entity_count": {"nobody": 1}}, r"etl\.min_entity_count: 'nobody'"),
    ({"duplicates": "remove"}, r"etl\.duplicates: .*'keep' or 'drop'"),
]


def test_keys_that_do_not_fit() -> None:
    raw = config_of("out", [TABLE], **SHAPE).model_dump()
    entries = [({"tables": [TABLE | entry]}, rf"etl\.tables\[0\]{message}") for entry, message in BAD_ENTRIES]
    for etl, message in entries + BAD_KEYS:
        with pytest.raises(ConfigError, match=message):
            job.check(from_mapping(raw | {"etl": {"tables": [TABLE], **etl}}))


# Keys of the entry; columns; the error, and its message.
BAD_TABLES: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({"relation": "into"}, {}, ConfigError, r"etl\.tables\[0\]\.relation: 'into' is not among .*: to"),
    ({"path": "other.parquet"}, {}, NotFoundError, r"other\.parquet: no file there"),
    ({}, {"l": [], "t": []}, RawTableError, r"the tables hold no rows"),
    (
        *({"relation": None, "relation_column": "r"}, {"r": ["to", "from"]}, RawTableError),
        r"t\.parquet: row 2 .*'r' \(relation\): 'from' is not a relation .*to; add it to relations",
    ),
    (
        *({"relation": None, "relation_column": "r"}, {"r": [["to"], ["to"]]}, RawTableError),
        r"t\.parquet: column 'r' \(relation\): expected strings or integers, found list<",
    ),
]


@pytest.mark.slow
def test_tables_that_cannot_become_a_graph(near_client: Client, tmp_path: Path) -> None:
    for table, columns, error, message in BAD_TABLES:
        write_parquet(tmp_path / "t.parquet", 1, **({"l": ["a", "b"], "t": ["c", "d"]} | columns))
        config = config_of(tmp_path / "out", [TABLE | table], top={"input": str(tmp_path)}, **SHAPE)
        with pytest.raises(error, match=message):
            job.run(config, near_client)
        assert files_under(tmp_path) == {"t.parquet": (tmp_path / "t.parquet").read_bytes()}


@pytest.mark.slow
def test_folders_in_one_another_and_one_folder_by_two_names(near_client: Client, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=["a"], t=["b"])
    (tmp_path / "graph" / "other").mkdir(parents=True)
    for entity_path in ("graph", "graph/other/../train/"):
        places = {"edge_root": f"{tmp_path}/graph/", "entity_path": f"{tmp_path}/{entity_path}"}
        config = config_of(f"{tmp_path}/out/", path, top=places, **SHAPE)
        for _ in range(2):
            job.run(config, near_client)
        assert sum(map(len, read_raw_edges(config, "train").values())) == 1
        assert (tmp_path / "graph/train/edges_1_1.h5").exists()


def test_splits_of_an_earlier_run_lose_their_markers(near_client: Client, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=["a"] * 9, t=list("bcdefghij"))
    job.run(config_of(tmp_path / "out", path, holdout={"test": 0.5}, **SHAPE), near_client)
    (tmp_path / "out/edges/test/_SUCCESS").write_text("{}")
    (tmp_path / "out/edges/notes").mkdir()
    (tmp_path / "out/edges/notes/_SUCCESS").write_text("{}")
    job.run(config_of(tmp_path / "out", path, **SHAPE), near_client)
    assert (tmp_path / "out/edges/test/edges_0_0.h5").exists()
    assert not (tmp_path / "out/edges/test/_SUCCESS").exists()
    assert (tmp_path / "out/edges/notes/_SUCCESS").exists()


ROWS = [(f"u{number % 50}", f"i{number % 30}") for number in range(150)]
WARNINGS: dict[str, tuple[list[tuple[str, str]], int, list[str]]] = {
    "none": (ROWS, 1, []),
    "a header that is read as a row": (
        [("user_id", "Item"), ("u1", "i1"), ("u1", "i2")],
        1,
        [r"first row looks like column names \(user_id, Item\).*etl\.tables\[0\]\.header: true"],
    ),
    "nothing to train on": (ROWS, 1, [r"no edge is in train.*etl\.holdout"]),
    "more partitions than ids": (ROWS, 8, ["user: 8 partitions for 50 ids", "item: 8 partitions for 30"]),
    "ids that occur once": (
        [(f"order-{number}", f"i{number % 30}") for number in range(150)],
        1,
        [r"entities\.user: each of 150 ids has one edge only"],
    ),
    "ids that other systems write for null": (
        [*ROWS, (r"\N", "i1"), ("NULL", "i2"), (r"\N", "i2")],
        1,
        [r"entities\.user: ids that .* null: 'NULL', '.*N'; .* not in"],
    ),
}


def test_few_ids_of_one_edge_each_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    numbers = {"num_edges": {"train": 1000}, "train_degree": {"city": {"max": 1}}}
    for num_ids in (99, 100):
        warn_of_counts(numbers | {"num_entities": {"city": [num_ids]}})
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_legal_and_cannot_be_meant(near_client, caplog, tmp_path, name):
    rows, num_partitions, expected = WARNINGS[name]
    (tmp_path / "t.csv").write_text("".join(f"{lhs},{rhs}\n" for lhs, rhs in rows))
    table = {"path": tmp_path / "t.csv", "header": False, "lhs": 0, "rhs": 1}
    table["split"] = "test" if name == "nothing to train on" else "train"
    entities = {"user": num_partitions, "item": num_partitions}
    shape: Any = {"entities": entities, "relations": [("to", "user", "item")]}
    job.run(config_of(tmp_path / "o", [table], **shape), near_client)
    found = messages_of(caplog, "WARNING")
    assert len(found) == len(expected)
    assert all(re.search(message, line) for message, line in zip(expected, found, strict=True)), found


def test_keys_of_text_for_tables_of_other_formats(near_client, caplog, tmp_path):
    (tmp_path / "t.json").write_text('{"l": "a", "t": "b"}\n')
    table = TABLE | {"path": str(tmp_path / "t.json"), "delimiter": ";", "comment": "#", "header": True}
    job.run(config_of(tmp_path / "out", [table], **SHAPE), near_client)
    (told,) = (line for line in messages_of(caplog) if "no effect" in line)
    assert told.startswith("etl: etl.tables[0].delimiter: no effect on ")
    assert "t.json, which is read as json" in told
    caplog.clear()
    path = write_parquet(tmp_path / "t.parquet", user_id=["a"], item=["b"])
    table = TABLE | {"path": path, "header": False, "lhs": 0, "rhs": 1}
    job.run(config_of(tmp_path / "out", [table], **SHAPE), near_client)
    assert "header: no effect" in caplog.text
    assert "looks like column names" not in caplog.text


TRIPLES = {"path": "t.parquet", "relation_column": "r", "weight": "w"}
GOOD = {"l": ["a"] * 40, "t": ["b"] * 40, "r": ["to"] * 40, "w": ["1"] * 40}


def config_with(root: Path, table: dict[str, Any], **etl: Any) -> Config:
    settings = {"on_bad_row": "quarantine", "max_bad_fraction": 0.5, "chunk_rows": 7} | etl
    return config_of(root / "out", [table], entities={"n": 2}, top={"input": str(root)}, **settings)


def quarantined(root: Path) -> list[dict[str, Any]]:
    tables = map(pq.read_table, (root / "out/quarantine").glob("*.parquet"))
    rows = (row for table in tables for row in table.to_pylist())
    return sorted(rows, key=lambda row: (row["start"], row["row"]))


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
    config = config_with(tmp_path, TRIPLES)
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


def test_the_most_frequent_unknown_relations_are_told(near_client, tmp_path, caplog):
    names = ["to"] * 30 + ["of", "in"] * 4 + ["in", "x" * 200]
    write_parquet(tmp_path / "t.parquet", 7, l=["a"] * 40, t=["b"] * 40, r=names, w=["1"] * 40)
    with caplog.at_level(logging.WARNING, "graphmill"):
        figures = job.run(config_with(tmp_path, TRIPLES), near_client)
    assert list(figures["unknown_relations"].items()) == [("in", 5), ("of", 4), ("x" * 79 + "…", 1)]
    told = r"10 of 40 rows cannot .*10 relation: unknown relation; .*'in' 5, 'of' 4, .*out/quarantine"
    assert re.search(told, caplog.text)
    assert summary({"etl": figures})["unknown relation 'in'"] == "5"
    reasons = Counter(row["reason"] for row in quarantined(tmp_path))
    assert reasons["relation: unknown relation 'in'"] == 5
    with pytest.raises(RawTableError, match=r"unknown relations: 'in' 5, 'of' 4.*max_bad_fraction 0\.1 "):
        job.run(config_with(tmp_path, TRIPLES, max_bad_fraction=0.1), near_client)


@pytest.mark.parametrize(("num_blank", "chunk_rows"), [(0, 1), (2, 3), (0, 1000)])
def test_text_with_missing_and_surplus_fields(near_client, tmp_path, chunk_rows, num_blank):
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
    assert str(tmp_path / "out/quarantine") in job.output_uris(config_with(tmp_path, TRIPLES))
    top = {"entity_path": "/x/entities", "edge_paths": ["/x/edges/train"], "checkpoint_path": "/x/c"}
    config = config_of("", [TRIPLES], top=top | {"output": None}, on_bad_row="quarantine")
    with pytest.raises(ConfigError, match=r"etl\.quarantine_path"):
        job.output_uris(config)
