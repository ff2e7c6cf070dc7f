"""Warnings about legal but probably unintended tables and settings; none about others."""

import re
from pathlib import Path

import pytest
from distributed import Client

from etl import job
from tests.etl.graphs import config_of


def warnings_of(
    near_client: Client,
    caplog: pytest.LogCaptureFixture,
    folder: Path,
    rows: list[tuple[str, str]],
    *,
    num_partitions: int = 1,
) -> list[str]:
    (folder / "t.csv").write_text("".join(f"{lhs},{rhs}\n" for lhs, rhs in rows))
    table = {"path": str(folder / "t.csv"), "header": False, "lhs": 0, "rhs": 1, "relation": "r"}
    entities = {"user": num_partitions, "item": num_partitions}
    job.run(
        config_of(folder / "out", [table], entities=entities, relations=[("r", "user", "item")]), near_client
    )
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_tables_as_they_should_be(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [(f"u{number % 50}", f"i{number % 30}") for number in range(150)]
    assert warnings_of(near_client, caplog, tmp_path, rows) == []


def test_a_header_that_is_read_as_a_row(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (found,) = warnings_of(near_client, caplog, tmp_path, [("user_id", "Item"), ("u1", "i1"), ("u1", "i2")])
    assert "first row looks like column names (user_id, Item)" in found
    assert "etl.tables[0].header: true" in found


@pytest.mark.slow
def test_more_partitions_than_ids_need(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [(f"u{number % 50}", f"i{number % 30}") for number in range(150)]
    found = warnings_of(near_client, caplog, tmp_path, rows, num_partitions=8)
    assert [line for line in found if "entities.user: 8 partitions for 50 ids" in line]
    assert len(found) == 2


def test_ids_that_occur_once(near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rows = [(f"order-{number}", f"i{number % 30}") for number in range(150)]
    (found,) = warnings_of(near_client, caplog, tmp_path, rows)
    assert "entities.user: each of 150 ids has one edge only" in found


def test_ids_that_other_systems_write_for_null(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [(f"u{number % 50}", f"i{number % 30}") for number in range(150)]
    (found,) = warnings_of(
        near_client, caplog, tmp_path, [*rows, (r"\N", "i1"), ("NULL", "i2"), (r"\N", "i2")]
    )
    assert re.search(r"entities\.user: ids that .* null: 'NULL', '.*N'; .* not in", found)


def test_keys_of_text_for_tables_of_other_formats(
    near_client: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text('{"l": "a", "r": "b"}\n')
    table = {"path": str(tmp_path / "t.json"), "lhs": "l", "rhs": "r", "relation": "r"}
    text = {"delimiter": ";", "comment": "#", "header": True}
    entities = {"user": 1, "item": 1}
    job.run(
        config_of(tmp_path / "out", [table | text], entities=entities, relations=[("r", "user", "item")]),
        near_client,
    )
    (told,) = (record.message for record in caplog.records if "no effect" in record.message)
    assert told.startswith("etl: etl.tables[0].delimiter: no effect on ")
    assert "t.json, which is read as json" in told
