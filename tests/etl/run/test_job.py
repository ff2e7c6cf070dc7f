"""The whole stage on small graphs: the edges that go in come out, however the work is cut."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from etl import job
from etl.run import sources
from etl.strings import native
from etl.tables.files import find_all
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import ConfigError, RawTableError
from graphmill.formats import edge_buckets, entity_counts, entity_index
from graphmill.vocab import Bucket, Side
from tests.etl.graphs import (
    RawEdge,
    all_edges,
    check_entities,
    config_of,
    content_under,
    files_under,
    index_of,
    read_raw_edges,
    write_parquet,
)

RELATIONS = [
    ("follows", "user", "user"),
    ("bought", "user", "item"),
    ("in", "item", "shop"),
    ("near", "shop", "shop"),
]
SHAPE: Any = {"entities": {"user": 2, "item": 2, "shop": 1}, "relations": RELATIONS}
Row = tuple[str, str, str]
RAW_IDS = st.one_of(
    st.sampled_from(["a", "b", "c", "007", "7"]), st.text('aé\t"\n ,€😀', min_size=1, max_size=3)
)
ROWS = st.lists(
    st.tuples(RAW_IDS, st.sampled_from([name for name, *_ in RELATIONS]), RAW_IDS), min_size=1, max_size=30
)


@pytest.mark.slow
@given(
    rows=ROWS,
    cuts=st.lists(st.integers(0, 30), max_size=3),
    tight=st.booleans(),
    work=st.fixed_dictionaries(
        {"chunk_rows": st.integers(1, 35), "max_opens": st.sampled_from([1, 40, 100_000])}
    ),
)
@settings(max_examples=8)
def test_the_graph_does_not_depend_on_how_rows_are_cut(near_client, tmp_path, rows, cuts, tight, work):
    def made(name: str, files: list[list[Row]], **settings: Any) -> dict[str, Any]:
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        for number, each in enumerate(files):
            lhs, relation, rhs = map(list, zip(*each, strict=True))
            write_parquet(folder / f"raw/{number}.parquet", 7, l=lhs, r=relation, t=rhs)
        table = {"path": folder / "raw", "relation_column": "r"}
        shape: Any = {"entities": {"user": 3, "item": 3, "shop": 1}, "relations": RELATIONS}
        config = config_of(folder / "out", [table], **shape, holdout={"valid": 0.2}, **settings)
        job.run(config, near_client)
        return content_under(folder / "out")

    ends = [*sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    memory = {"index_bytes": 500, "merge_bytes": 1} if tight else {}
    assert made("whole", [rows]) == made("cut", [part for part in parts if part], **work, **memory)


def test_the_same_bytes_of_two_processes_and_without_a_compiler(client, near_client, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {name: [f"{name}{n}é" for n in rng.zipf(1.3, 10_000) % 3_000] for name in "lt"}
    path = write_parquet(tmp_path / "edges.parquet", 1500, **columns)
    shape: Any = {"entities": {"node": 4}, "holdout": {"test": 0.1}}
    made = []
    for name, each in (("far", client), ("near", near_client), ("plain", near_client)):
        if name == "plain":
            monkeypatch.setattr(native, "library", lambda: None)
        chunk_rows = 100_000 if name == "near" else 2_000
        job.run(config_of(tmp_path / name, path, **shape, chunk_rows=chunk_rows), each)
        made.append(files_under(tmp_path / name))
    assert made[0] == made[1] == made[2]


@pytest.mark.slow
def test_tables_of_many_kinds_make_one_graph(near_client: Client, tmp_path: Path) -> None:
    """Constant and column relations, splits as tables, weights in some tables only, integer ids."""
    raw = tmp_path / "raw"
    write_parquet(raw / "bought.parquet", user=[7, 8, 7], item=["x", "y", "x"], stars=[0.5, 2.0, 1.0])
    (raw / "more.tsv").write_text("who\twhat\trel\nu1\tu2\tfollows\n7\tu1\tfollows\n007\tx\tbought\n")
    (raw / "later.csv").write_text("new,x\n7,x\n")
    tables: list[dict[str, Any]] = [
        {"path": "bought.parquet", "lhs": "user", "rhs": "item", "relation": "bought", "weight": "stars"},
        {"path": "more.tsv", "lhs": "who", "rhs": 1, "relation_column": "rel"},
        {"path": "later.csv", "lhs": 0, "rhs": 1, "header": False, "relation": "bought", "split": "valid"},
    ]
    shape = SHAPE | {"top": {"input": str(raw)}, "entity_names": True, "graphstorm_maps": True}
    config = config_of(tmp_path / "out", tables, **shape)
    figures = job.run(config, near_client)
    assert all_edges(config) == Counter(
        {
            RawEdge("user", "7", "bought", "item", "x", 0.5): 1,
            RawEdge("user", "7", "bought", "item", "x", 1.0): 1,
            RawEdge("user", "8", "bought", "item", "y", 2.0): 1,
            RawEdge("user", "u1", "follows", "user", "u2", 1.0): 1,
            RawEdge("user", "7", "follows", "user", "u1", 1.0): 1,
            RawEdge("user", "007", "bought", "item", "x", 1.0): 1,
        }
    )
    assert all_edges(config, "valid") == Counter(
        RawEdge("user", user, "bought", "item", "x", 1.0) for user in ("new", "7")
    )
    check_entities(config, {"user": {"7", "8", "u1", "u2", "007", "new"}, "item": {"x", "y"}})
    assert figures["num_entities_outside_train"] == {"user": 1, "item": 0, "shop": 0}
    assert figures["integer_id_columns"] == ["tables[0].lhs"]
    assert json.loads(json.dumps(figures)) == figures  # it goes to run.json
    for partition in range(2):
        names = entity_counts.read_entity_names(config.entity_path, "user", partition)
        assert names == entity_index.read_part(config.entity_path, "user", partition).to_pylist()
    maps = [
        pq.read_table(f"{config.entity_path}/raw_id_mappings/user/part-0000{partition}.parquet").to_pylist()
        for partition in range(2)
    ]
    assert [row["new"] for rows in maps for row in rows] == list(range(6))
    assert {row["orig"] for rows in maps for row in rows} == {"7", "8", "u1", "u2", "007", "new"}
    job.run(config, near_client)  # its own maps are no foreign files


def test_unpartitioned_types_spread_evenly(near_client: Client, tmp_path: Path) -> None:
    edges = {
        "in": ([f"i{n}" for n in range(20_000)], [f"s{n % 10}" for n in range(20_000)]),
        "near": ([f"s{n % 100}" for n in range(5_000)], [f"s{n // 50}" for n in range(5_000)]),
        "follows": (["u1"], ["u2"]),
    }
    tables = [
        {"path": write_parquet(tmp_path / f"{name}.parquet", l=lhs, t=rhs), "relation": name}
        for name, (lhs, rhs) in edges.items()
    ]
    entities = {"user": 4, "item": 4, "shop": 1}
    config = config_of(tmp_path / "out", tables, entities=entities, relations=RELATIONS)
    job.run(config, near_client)
    placed = read_raw_edges(config, "train")
    for relation, num_edges in (("in", 20_000), ("near", 5_000)):
        counts = [sum(edge.relation == relation for edge in edges) for edges in placed.values()]
        assert sum(counts) == num_edges
        assert max(counts) < 1.25 * num_edges / 16
        assert min(counts) > 0.75 * num_edges / 16


@pytest.mark.slow
def test_holdout_is_drawn_by_content(near_client: Client, tmp_path: Path, rng: np.random.Generator) -> None:
    rows = [(f"a{x}", f"b{y}") for x, y in rng.integers(0, 200, (8_000, 2))]
    extra = [(f"new{x}", f"b{x}") for x in range(100)]
    given = [(f"given{x}", f"b{x}") for x in range(100)]  # of a split that the user has made
    given_path = write_parquet(tmp_path / "given.parquet", l=[a for a, _ in given], t=[b for _, b in given])

    def split_of(name: str, table: list[Any], seed: int, partitions: int) -> dict[str, Counter[Any]]:
        path = write_parquet(tmp_path / f"{name}.parquet", l=[a for a, _ in table], t=[b for _, b in table])
        config = config_of(
            tmp_path / name,
            [{"path": path}, {"path": given_path, "split": "valid"}],
            entities={"node": partitions},
            top={"seed": seed},
            holdout={"valid": 0.1, "test": 0.2},
        )
        job.run(config, near_client)
        splits = {split: all_edges(config, split) for split in ("train", "valid", "test")}
        splits["valid"] -= Counter(RawEdge("node", a, "to", "node", b) for a, b in given)
        assert not any(edge.lhs.startswith("given") for edges in splits.values() for edge in edges)
        return splits

    first = split_of("first", rows, 0, 2)
    assert sum(first.values(), Counter()) == Counter(RawEdge("node", a, "to", "node", b) for a, b in rows)
    assert 600 < first["valid"].total() < 1000
    assert 1300 < first["test"].total() < 1900
    # Equal edges are never torn apart, and more rows or other partitions move none of the old.
    assert not (set(first["train"]) & set(first["valid"]) | set(first["valid"]) & set(first["test"]))
    second = split_of("second", [*extra, *rows[::-1]], 0, 3)
    assert all(not first[split] - second[split] for split in first)
    other = split_of("other", rows, 1, 2)
    assert set(other["test"]) != set(first["test"])


@pytest.mark.parametrize("split", ["train", "test"])
def test_tables_of_entities_whose_ids_no_edge_has(near_client, tmp_path, caplog, split):
    edges = write_parquet(tmp_path / "edges.parquet", l=[7, 8, 9] * 40, t=["x", "y", "z"] * 40)
    tables = [{"path": edges, "relation": "bought"}]
    tables += [tables[0] | {"split": split}] if split != "train" else []
    for name, ids in (("apart", ["user-7", "user-8", "user-11"]), ("one", ["user-7", "8"])):
        caplog.clear()
        listed = [
            {"path": write_parquet(tmp_path / f"{name}.parquet", n=ids), "id": "n", "type": "user"},
            {"path": write_parquet(tmp_path / "items.parquet", n=["y", "w"]), "id": "n", "type": "item"},
        ]
        job.run(config_of(tmp_path / name, tables, **SHAPE, listed=listed), near_client)
        told = [record.message for record in caplog.records if "tables of entities" in record.message]
        assert len(told) == (name == "apart")
        message = r"entities\.user: none of 3 ids .*'user-\d+'.* of edges, such as '[789]'"
        assert all(re.search(message, each) for each in told)


def test_types_and_splits_without_rows_are_written_too(near_client: Client, tmp_path: Path) -> None:
    (tmp_path / "none.tsv").write_text("l\tt\n")
    tables = [
        {"path": tmp_path / "none.tsv", "relation": "in", "split": "test"},
        {"path": write_parquet(tmp_path / "some.parquet", l=["a"], t=["b"]), "relation": "follows"},
    ]
    config = config_of(tmp_path / "out", tables, **SHAPE)
    figures = job.run(config, near_client)
    assert figures["num_edges"] == {"train": 1, "test": 0}
    sizes = {"num_buckets": 4, "num_empty": 3, "min_edges": 0, "mean_edges": 0.25, "max_edges": 1}
    assert figures["buckets"]["train"] == sizes
    assert all_edges(config, "test") == Counter()
    check_entities(config, {"user": {"a", "b"}})
    assert edge_buckets.count_edges(config.split_path("test"), Bucket(1, 1)) == 0


def test_nothing_is_left_behind(near_client: Client, tmp_path: Path) -> None:
    table = {"path": write_parquet(tmp_path / "t.parquet", l=["a"], t=["b"]), "relation": "follows"}
    shape = SHAPE | {"work_path": str(tmp_path / "work")}
    job.run(config_of(tmp_path / "out", [table], **shape), near_client)
    assert not list((tmp_path / "work").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["edges", "entities"]
    failing = config_of(tmp_path / "out", [table | {"rhs": "nowhere"}], **shape)
    before = files_under(tmp_path / "out")
    with pytest.raises(Exception, match="nowhere"):
        job.run(failing, near_client)
    assert files_under(tmp_path / "out") == before
    assert not list((tmp_path / "work").iterdir())


TABLE = {"lhs": 0, "rhs": 1, "relation": "to", "header": False}


def described(folder: Path, path: Path, compare_files: str) -> tuple[Any, list[str]]:
    """Say whether the stage runs again, and whether a later run reads a file again."""
    config = config_of(folder / "out", [TABLE | {"path": path}], compare_files=compare_files)
    files = sources.source_files(sources.numbered(find_all(config)))
    return job.fingerprint(config)["inputs"], [each.digest for each in files]


@given(st.binary(min_size=1, max_size=99), st.binary(min_size=1, max_size=99), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_file_is_the_same_by_time_or_by_content(first, second, is_later, is_named):
    """In a folder; or by its name, which may begin with an underscore then."""
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name, "t", "_a.csv" if is_named else "a.csv")
        path.parent.mkdir()
        found = []
        for number, content in enumerate((first, second)):
            path.write_bytes(content)
            os.utime(path, ns=(10**18, 10**18 + number * is_later))
            place = path if is_named else path.parent
            found.append({kind: described(folder, place, kind) for kind in ("time", "content")})
        before, after = found
        assert (before["content"] == after["content"]) == (first == second)
        assert (before["time"] == after["time"]) == (len(first) == len(second) and not is_later)
        (inputs,) = before["time"][0]
        assert Path(inputs["uri"]).name == path.name


Rows = list[tuple[list[str], str]]
LISTS = st.lists(st.sampled_from(["red", "blue", "ü", "x"]), max_size=4)
LOOKS = st.lists(st.tuples(LISTS, st.text("abc", min_size=1, max_size=2)), min_size=1, max_size=30)


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
@given(rows=LOOKS, num_partitions=st.integers(1, 3), tight=st.booleans())
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
    rows = [([f"f{n}" for n in rng.integers(0, 50, n % 5)], f"i{n % 40}") for n in range(80)]
    made = []
    tight = {"chunk_rows": 20, "merge_bytes": 500, "index_bytes": 500, "max_opens": 40}
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
