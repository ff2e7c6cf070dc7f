"""`graphmill init`: the graph that it finds in tables, and a configuration that runs."""

import csv
import datetime
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from etl.survey import outlook
from graphmill import config
from graphmill.cli.main import init as command
from graphmill.config import defaults, yaml_text
from graphmill.errors import GraphMillError
from tests import REPOSITORY
from tests.etl.graphs import config_of
from tests.etl.survey.test_written_by_others import text_of
from tests.etl.tables.lakes import iceberg_table, root_of

DEBIAN = REPOSITORY / "demo" / "debian"


def written(*tables: Path) -> dict[str, Any]:
    """The configuration for the tables, parsed."""
    content = yaml_text.parsed(text_of(*tables)[0], "init")
    config.from_mapping(defaults.applied(content)[0])
    return dict(content)


def write(path: Path, rows: list[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def ratings(rng: np.random.Generator, num_rows: int = 2000) -> list[list[Any]]:
    users, films = rng.integers(0, 300, num_rows), rng.integers(0, 80, num_rows)
    return [
        [f"u{user}" if at % 500 else "", f'Möbius, "{film}"', at % 5 + 1, 1_700_000_000 + at]
        for at, (user, film) in enumerate(zip(users, films, strict=True))
    ]


def test_a_ratings_table_becomes_users_and_films(tmp_path: Path, rng: np.random.Generator) -> None:
    head = ["userId", "film", "rating", "timestamp"]
    found = written(write(tmp_path / "ratings.csv", [head, *ratings(rng)]))
    assert list(found["entities"]) == ["user", "film"]
    assert found["relations"] == [{"name": "ratings", "lhs": "user", "rhs": "film", "operator": "none"}]
    (table,) = found["etl"]["tables"]
    assert (table["lhs"], table["rhs"], table["relation"]) == ("userId", "film", "ratings")
    assert found["output"] == "output/ratings"


@pytest.mark.parametrize(
    ("suffix", "delimiter"), [(".csv", ","), (".csv", "\t"), (".tsv", ";"), (".txt", "|"), (".txt", " ")]
)
def test_triples_without_a_header(
    tmp_path: Path, rng: np.random.Generator, suffix: str, delimiter: str
) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        heads, tails = rng.integers(0, 100, (2, 500))
        rows = [[f"/m/{h}", f"/is/{h % 7}", f"/m/{t}"] for h, t in zip(heads, tails, strict=True)]
        write(folder / f"{split}{suffix}", rows, delimiter)
    found = written(folder)
    assert found["dynamic_relations"] is True
    assert list(found["entities"]) == ["entity"]
    assert "holdout" not in found["etl"]
    tables = {table.get("split", "train"): table for table in found["etl"]["tables"]}
    assert tables.keys() == {"train", "valid", "test"}
    for table in tables.values():
        assert (table["lhs"], table["relation_column"], table["rhs"]) == (0, 1, 2)
        assert table["header"] is False
        default = "," if suffix == ".csv" else "\t"
        assert table.get("delimiter", default) == delimiter


@pytest.mark.slow
def test_the_demo_graph_is_found_as_people_have_configured_it() -> None:
    found = written(*sorted(DEBIAN.glob("*.parquet")))
    by_hand = config.load(str(REPOSITORY / "conf" / "demo.yaml"), ["output=x"])
    assert set(found["entities"]) == set(by_hand.entities)
    ends = {(each["name"], each["lhs"], each["rhs"]) for each in found["relations"]}
    expected = {(each.name, each.lhs, each.rhs) for each in by_hand.relations}
    assert ends == expected


def test_a_table_about_entities_is_no_table_of_edges(tmp_path: Path, rng: np.random.Generator) -> None:
    films = [["film_id", "title", "year"], *([at, f"Film {at % 70}", 1950 + at % 60] for at in range(80))]
    edges = [["user_id", "film_id"], *zip(*rng.integers(0, 80, (2, 900)).tolist(), strict=True)]
    found = written(write(tmp_path / "films.csv", films), write(tmp_path / "seen.csv", edges))
    assert list(found["entities"]) == ["user", "film"]  # numbers of users and of films are alike
    (table,) = found["etl"]["entities"]
    assert (table["type"], table["id"]) == ("film", "film_id")


def test_row_keys_floats_times_and_nested_columns_are_no_ids(tmp_path: Path) -> None:
    rows = 200
    columns = {
        "order_id": range(rows),
        "when": pd.date_range("2026-01-01", periods=rows),
        "price": np.linspace(0, 1, rows),
        "tags": [["a"]] * rows,
        "customer_id": [f"c{at % 40}" for at in range(rows)],
        "product_id": [at % 7 for at in range(rows)],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "orders.parquet")
    (found,) = written(tmp_path / "orders.parquet")["etl"]["tables"]
    assert (found["lhs"], found["rhs"]) == ("customer_id", "product_id")


def test_ends_with_common_values_are_of_one_type(tmp_path: Path, rng: np.random.Generator) -> None:
    edges = [[f"n{a}", f"n{b}", 0.5] for a, b in rng.integers(0, 50, (300, 2))]
    found = written(write(tmp_path / "links.csv", [["source", "target", "weight"], *edges]))
    assert list(found["entities"]) == ["entity"]
    assert found["relations"][0]["operator"] == "complex_diagonal"  # the direction counts


def test_tables_that_are_no_graph(tmp_path: Path) -> None:
    table, mine = tmp_path / "table.csv", tmp_path / "mine.yaml"
    write(table, [["name", "price"], ["a", 0.5], ["b", 1.5]])
    mine.write_text("mine")
    (tmp_path / "empty.csv").touch()
    for words, message in (
        ([table], "expected two columns of ids, found the columns name"),
        ([tmp_path / "empty.csv"], "expected rows, found an empty file"),
        ([tmp_path / "none.csv"], "no file there"),
        ([DEBIAN / "in_section.parquet", "--to", mine], r"mine\.yaml: there is a file"),
    ):
        with pytest.raises(GraphMillError, match=message):
            CliRunner().invoke(command, [str(each) for each in words], catch_exceptions=False)
    assert mine.read_text() == "mine"


def test_names_that_yaml_would_change(tmp_path: Path) -> None:
    rows = [[f"a{at % 9}", f"b{at % 8}"] for at in range(50)]
    for name, ends in (
        ("on", ["yes", "no: really"]),
        ("lines", ["user\n  on_bad_row: x", "timestamp"]),  # which are in comments too
        ("odd\x7f", ["user\x7f", "item\u2028\x85\ufeff"]),  # YAML refuses them, or takes them for line ends
    ):
        (table,) = written(write(tmp_path / f"{name}.csv", [ends, *rows]))["etl"]["tables"]
        assert [table["lhs"], table["rhs"]] == ends
        assert table["relation"] == "on" or name != "on"


@pytest.mark.parametrize("scale", [1, 4, 25])
def test_the_estimate_of_distinct_values(rng: np.random.Generator, scale: int) -> None:
    """The estimator's error is at most a factor of sqrt(scale)."""
    values = rng.zipf(1.3, 50_000)
    sample = Counter(map(str, rng.choice(values, len(values) // scale, replace=False)))
    exact = len(set(values.tolist()))
    assert exact / scale**0.5 * 0.9 <= outlook.estimate_distinct(sample, scale) <= exact * scale**0.5 * 1.1
    if scale == 1:
        assert outlook.estimate_distinct(sample, scale) == exact


USERS, ITEMS, DAYS = np.random.default_rng(1).integers(0, [[90], [70], [3]], (3, 6000)).tolist()
SHOP = pa.table(
    {
        "user_id": [f"u{n}" for n in USERS],
        "sku": [f"i{n}" for n in ITEMS],
        "relation": ["bought", "viewed"] * 3000,
        "day": [datetime.date(2026, 11, 1 + n) for n in DAYS],
    }
)


def write_hive(folder: Path) -> Path:
    parts = ds.partitioning(pa.schema([("day", pa.date32()), ("relation", pa.string())]), flavor="hive")
    ds.write_dataset(SHOP, folder / "orders", format="parquet", partitioning=parts)
    return folder / "orders"


def write_delta(folder: Path) -> Path:
    write_deltalake(folder / "orders", SHOP, partition_by=["day", "relation"])
    return folder / "orders"


def write_iceberg(folder: Path) -> Path:
    return root_of(iceberg_table(folder, SHOP))


@pytest.mark.parametrize("write_shop", [write_hive, write_delta, write_iceberg])
def test_tables_as_sites_keep_them(tmp_path: Path, write_shop: Callable[[Path], Path]) -> None:
    path = write_shop(tmp_path)
    text, _ = text_of(path)
    found = yaml_text.parsed(text, "init")
    assert found["entities"] == {"user": {}, "sku": {}}
    (table,) = found["etl"]["tables"]
    assert table == {"path": str(path), "lhs": "user_id", "rhs": "sku", "relation_column": "relation"}
    settings = config.from_mapping(defaults.applied(found)[0])
    rows = outlook.estimate(settings).rows
    assert rows[f"table {path}"].startswith("about 6,000 rows")
    assert (rows["entities, user"], rows["entities, sku"]) == ("about 90", "about 70")
    (with_filter,) = yaml_text.parsed(re.sub("# filters", "filters", text), "init")["etl"]["tables"]
    filters = None if write_shop is write_iceberg else [["day", "==", "2026-11-01"]]
    assert with_filter.get("filters") == filters


def test_an_estimate_of_columns_in_structs_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "kind=a/t.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"e": [{"user": "u1"}, {"user": "u2"}]}), path)
    shape: Any = {"entities": {"user": 1, "kind": 1}, "relations": [("to", "user", "kind")]}
    settings = config_of("/nowhere", [{"path": tmp_path, "lhs": "e.user", "rhs": "kind"}], **shape)
    rows = outlook.estimate(settings).rows
    assert (rows["entities, user"], rows["entities, kind"]) == ("about 2", "about 1")
