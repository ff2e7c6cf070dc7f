"""Featurized entities: lists of features in the table become lists of indices in the buckets."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from etl import job
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError, RawTableError
from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket, Side
from tests.etl.graphs import config_of, files_under, index_of, write_parquet

Rows = list[tuple[list[str], str]]
LISTS = st.lists(st.sampled_from(["red", "blue", "ü", "x"]), max_size=4)
ROWS = st.lists(st.tuples(LISTS, st.text("abc", min_size=1, max_size=2)), min_size=1, max_size=30)


def config_for(root: Path, name: str, rows: Rows, num_partitions: int, **etl: Any) -> Config:
    """Looks (featurized) at items; users buy items; items resemble looks."""
    lists = pa.array([features for features, _ in rows], pa.list_(pa.string()))
    items = [item for _, item in rows]
    looks = write_parquet(root / "looks.parquet", 7, f=lists, t=items)
    alike, as_text = root / "alike.csv", {"header": False, "feature_delimiter": "|"}
    alike.write_text("".join(f"{item},{'|'.join(features)}\n" for features, item in rows))
    bought = write_parquet(root / "bought.parquet", 7, l=[f"u{item}" for item in items], t=items)
    return config_of(
        root / name,
        [
            {"path": looks, "lhs": "f", "relation": "looks"},
            {"path": alike, "relation": "alike", "lhs": 0, "rhs": 1} | as_text,
            {"path": bought, "relation": "bought"},
        ],
        entities={"look": 1, "item": num_partitions, "user": num_partitions},
        relations=[("looks", "look", "item"), ("alike", "item", "look"), ("bought", "user", "item")],
        featurized="look",
        **etl,
    )


def raw_edges(config: Config, num_partitions: int) -> Counter[Any]:
    """(relation, lhs, rhs); a list of features as a tuple."""
    index = index_of(config)
    found: Counter[Any] = Counter()
    for bucket in (Bucket(a, b) for a in range(num_partitions) for b in range(num_partitions)):
        edges = edge_buckets.read_bucket(config.split_path("train"), bucket, takes_features=True)
        for row, rel in enumerate(edges.rel):
            ends = []
            for at, side in enumerate(Side):
                features, name = edges.features(side), getattr(config.relations[rel], side)
                listed = features.indices[features.offsets[row] : features.offsets[row + 1]]
                number = getattr(edges, side)[row]
                assert (number == -1) == (name == "look")
                ids = index[name, 0 if name == "look" else bucket[at]]
                ends.append(tuple(ids[feature] for feature in listed) if number == -1 else ids[number])
            found[(config.relations[rel].name, *ends)] += 1
    return found


@pytest.mark.slow
@given(rows=ROWS, num_partitions=st.integers(1, 3), tight=st.booleans())
@settings(max_examples=8)
def test_lists_come_back(near_client, tmp_path, rows, num_partitions, tight):
    memory = {"chunk_rows": 4, "merge_bytes": 1, "index_bytes": 500, "max_opens": 9} if tight else {}
    config = config_for(tmp_path, "out", rows, num_partitions, **memory)
    figures = job.run(config, near_client)
    expected: Counter[Any] = Counter()
    for features, item in rows:
        expected += Counter(
            [("looks", tuple(features), item), ("alike", item, tuple(features)), ("bought", f"u{item}", item)]
        )
    assert raw_edges(config, num_partitions) == expected
    assert figures["num_entities"]["look"] == [len({name for features, _ in rows for name in features})]


@pytest.mark.slow
def test_the_same_bytes_whatever_the_cut(near_client: Client, tmp_path: Path, rng: Generator) -> None:
    rows = [([f"f{n}" for n in rng.integers(0, 50, n % 5)], f"i{n % 70}") for n in range(150)]
    made = []
    tight = {"chunk_rows": 30, "merge_bytes": 500, "index_bytes": 500, "max_opens": 40}
    for memory in ({}, tight | {"spill_compression": "none"}):
        job.run(config_for(tmp_path, "out", rows, 2, holdout={"test": 0.3}, **memory), near_client)
        made.append(files_under(tmp_path / "out"))
    assert made[0] == made[1]


def test_lists_of_one_length_are_lists(near_client: Client, tmp_path: Path) -> None:
    rows: Rows = [(["a", "b"], "x"), (["b", "ü"], "y")]
    config = config_for(tmp_path, "out", rows, 1)
    job.run(config, near_client)
    expected = raw_edges(config, 1)
    lists = pa.array([features for features, _ in rows], pa.list_(pa.string(), 2))
    write_parquet(tmp_path / "looks.parquet", f=lists, t=["x", "y"])
    job.run(config, near_client)
    assert raw_edges(config, 1) == expected


def test_rows_without_a_list_of_features(near_client: Client, tmp_path: Path) -> None:
    config = config_for(tmp_path, "out", [(["a"], "b")], 1)
    for features, message in (
        ([["a"], None], r"row 2 .*'f' \(lhs\): null.*set etl\.on_bad_row"),
        ([["a"], ["b", ""]], r"row 2 .*'f' \(lhs\): a feature is empty"),
        ([["a"], [None]], r"row 2 .*'f' \(lhs\): a feature is null"),
    ):
        write_parquet(tmp_path / "looks.parquet", f=pa.array(features, pa.list_(pa.string())), t=["x", "y"])
        with pytest.raises(RawTableError, match=message):
            job.run(config, near_client)


def test_settings_that_features_exclude(near_client: Client, tmp_path: Path) -> None:
    rows: Rows = [(["a"], "b")]
    config = config_for(tmp_path, "out", rows, 1)
    parted = {name: each.model_copy(update={"num_partitions": 2}) for name, each in config.entities.items()}
    etl = config.section(EtlConfig)
    table = etl.tables[0].model_copy(update={"relation": None, "relation_column": "r"})
    of_any_type = config.with_section(etl.model_copy(update={"tables": [table]}))
    partitions = r"entities\.look\.num_partitions: a featurized type has one partition"
    rare = config_for(tmp_path, "out", rows, 1, min_entity_count=1)
    for wrong, message in (
        (config_for(tmp_path, "out", rows, 1, duplicates="drop"), r"etl\.duplicates"),
        (rare, r"etl\.min_entity_count: look is featurized"),
        (config.model_copy(update={"entities": parted}), partitions),
        (of_any_type, r"tables\[0\]\.lhs: rows of types item, look, user"),
    ):
        with pytest.raises(ConfigError, match=message):
            job.run(wrong, near_client)
