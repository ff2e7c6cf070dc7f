"""Mistakes of the user: refused before the run with key or row, or warned about where they are legal."""

import re
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from etl import job
from graphmill.config import from_mapping
from graphmill.errors import ConfigError, NotFoundError, RawTableError
from tests.etl.graphs import config_of, files_under, read_raw_edges, write_parquet
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
    ({"filters": [["day", "~", 1]]}, r"\.filters\[0\]\[0\]\[1\]: input should be '=='"),
    ({"filters": [["day", "in", 1]]}, r"\.filters: \[day, 'in'\]: expected a list of values, found 1"),
    ({"filters": [["day", "in", []]]}, r"\.filters: \[day, 'in'\]: expected values, found an empty list"),
    ({"filters": [["day", "==", [1]]]}, r"\.filters: \[day, '=='\]: expected one value"),
    ({"filters": [["day", "<", None]]}, r"\.filters: \[day, '<'\]: null is only == or !="),
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


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_legal_and_cannot_be_meant(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path, name: str
) -> None:
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


def test_keys_of_text_for_tables_of_other_formats(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
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
