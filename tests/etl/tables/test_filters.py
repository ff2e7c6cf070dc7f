"""Filters of rare ids, relations and loops; entities without edges."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from etl.run import figures
from etl.steps.left_out import find_edges
from graphmill.errors import RawTableError
from graphmill.formats import entity_counts
from tests.etl.graphs import RawEdge, all_edges, check_entities, config_of, files_under, write_parquet

IDS = st.sampled_from(["a", "b", "c", "7", "007"]) | st.text('aé\t"\n ,€😀', min_size=1, max_size=2)
ROWS = st.lists(st.tuples(IDS, st.sampled_from("rst"), IDS), min_size=1, max_size=40)
TYPES = {"r": ("user", "user"), "s": ("user", "item"), "t": ("item", "item")}
KINDS = ("user", "item", "shop")  # of which the last is in no relation


@pytest.mark.slow
@given(
    rows=ROWS,
    entity_count=st.integers(0, 3),
    num_partitions=st.integers(1, 4),
    one_item=st.booleans(),
    seed=st.integers(0, 3),
    etl=st.fixed_dictionaries(
        {
            "min_relation_count": st.integers(0, 12),
            "self_loops": st.sampled_from(["keep", "drop"]),
            "duplicates": st.sampled_from(["keep", "drop"]),
            "merge_bytes": st.sampled_from([1, 100, 1 << 20]),
        }
    ),
)
@settings(max_examples=16)
def test_every_edge_that_passes_is_in_one_bucket_and_every_entity_has_one_index(
    near_client, tmp_path, rows, entity_count, num_partitions, one_item, seed, etl
):
    lhs, relation, rhs = zip(*rows, strict=True)
    path = write_parquet(tmp_path / "t.parquet", 7, l=list(lhs), r=list(relation), t=list(rhs))
    listed = write_parquet(tmp_path / "listed.parquet", n=["a", "isolated", "a"])
    config = config_of(
        tmp_path / "out",
        [{"path": path, "relation_column": "r"}],
        entities=dict.fromkeys(KINDS, num_partitions) | ({"item": 1} if one_item else {}),
        top={"seed": seed},
        relations=[(name, *types) for name, types in TYPES.items()],
        min_entity_count={"user": entity_count, "item": 1},
        chunk_rows=10,
        listed=[{"type": "user", "path": listed, "id": "n"}],
        **etl,
    )
    edges = [RawEdge(TYPES[r][0], a, r, TYPES[r][1], b) for a, r, b in rows]
    keeps = etl["self_loops"] == "keep"
    without_loops = [e for e in edges if keeps or (e.lhs_type, e.lhs) != (e.rhs_type, e.rhs)]
    degrees = Counter(end for e in without_loops for end in ((e.lhs_type, e.lhs), (e.rhs_type, e.rhs)))
    of_relation = Counter(e.relation for e in without_loops)
    common = [e for e in without_loops if of_relation[e.relation] >= etl["min_relation_count"]]
    entities = {end for end, degree in degrees.items() if degree >= (entity_count if end[0] == "user" else 1)}
    entities |= {("user", "a"), ("user", "isolated")}
    kept = [e for e in common if {(e.lhs_type, e.lhs), (e.rhs_type, e.rhs)} <= entities]
    expected = Counter(kept if etl["duplicates"] == "keep" else set(kept))

    if not without_loops:
        with pytest.raises(RawTableError, match="no rows that become edges"):
            job.run(config, near_client)
        return
    figures = job.run(config, near_client)
    assert all_edges(config) == expected
    expected_ids = {kind: {raw for own, raw in entities if own == kind} for kind in KINDS}
    check_entities(config, expected_ids)
    assert {name: sum(counts) for name, counts in figures["num_entities"].items()} == {
        name: len(each) for name, each in expected_ids.items()
    }
    assert figures["num_entities_outside_train"] == {
        kind: sum(not degrees[kind, each] for each in ids) for kind, ids in expected_ids.items()
    }
    assert figures["num_rows"] == len(rows) + 3
    assert figures["num_edges"] == {"train": expected.total()}
    assert figures["num_edges_left_out"] == {
        "self_loops": len(edges) - len(without_loops),
        "min_relation_count": len(without_loops) - len(common),
        "min_entity_count": len(common) - len(kept),
        "duplicates": len(kept) - expected.total(),
    }
    assert figures["num_edges_by_relation"] == {name: sum(e.relation == name for e in kept) for name in TYPES}
    for kind in ("user", "item"):
        found = sorted(degrees[end] for end in entities if end[0] == kind)
        if found:
            assert figures["train_degree"][kind]["max"] == found[-1]
            assert figures["train_degree"][kind]["p50"] == found[(len(found) - 1) // 2]


def test_ends_of_two_types_with_one_id_are_no_loop(near_client: Client, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", l=["a"], r=["s"], t=["a"])
    shape: Any = {"entities": {"user": 1, "item": 1}, "relations": [("s", "user", "item")]}
    config = config_of(tmp_path / "out", [{"path": path, "relation_column": "r"}], self_loops="drop", **shape)
    assert job.run(config, near_client)["num_edges"] == {"train": 1}


def test_rare_dynamic_relations_have_no_number(near_client: Client, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", 2, l=list("abcd"), r=["x", "y", "x", "z"], t=list("bcde"))
    shape: Any = {"entities": {"n": 2}, "dynamic": True, "min_relation_count": 2, "chunk_rows": 2}
    config = config_of(tmp_path / "out", [{"path": path, "relation_column": "r"}], **shape)
    figures = job.run(config, near_client)
    assert entity_counts.read_relation_names(config.entity_path) == ["x"]
    assert all_edges(config) == Counter(RawEdge("n", lhs, "x", "n", rhs) for lhs, rhs in ("ab", "cd"))
    assert (figures["num_relations"], figures["num_relations_left_out"]) == (1, 2)


@pytest.mark.slow
def test_half_of_all_edges_have_one_id(near_client, tmp_path, rng, monkeypatch, caplog):
    monkeypatch.setattr(figures, "UNEVEN_EDGES", figures.UNEVEN_EDGES // 10)
    num_edges = 6_000
    lhs = np.where(np.arange(num_edges) % 2, "hot", rng.integers(0, 900, num_edges).astype(str))
    rhs = np.where(np.arange(num_edges) % 4 == 1, "hot", rng.integers(0, 900, num_edges).astype(str))
    path = write_parquet(tmp_path / "t.parquet", 700, l=lhs.tolist(), t=rhs.tolist())
    made = []
    for chunk_rows, tight in ((100_000, 1 << 29), (1_000, 10_000)):
        memory = {"index_bytes": tight, "merge_bytes": tight, "chunk_rows": chunk_rows}
        config = config_of(tmp_path / f"out{chunk_rows}", path, entities={"n": 4}, **memory)
        found = job.run(config, near_client)
        made.append(files_under(config.output or ""))
    assert made[0] == made[1]
    assert all_edges(config) == Counter(RawEdge("n", a, "to", "n", b) for a, b in zip(lhs, rhs, strict=True))
    assert "buckets of train are uneven" in caplog.text
    exact = Counter([*lhs.tolist(), *rhs.tolist()])
    degree = found["train_degree"]["n"]
    assert degree["max"] == exact["hot"]
    assert degree["p99"] == sorted(exact.values())[int(np.ceil(0.99 * len(exact))) - 1]
    assert found["bytes_in"] == Path(path).stat().st_size
    written = [each for each in Path(config.output or "").rglob("*") if each.is_file()]
    sizes = [each.stat().st_size for each in written if each.name != "origins.json"]
    assert found["bytes_out"] == sum(sizes)


Edge = tuple[int, int, int]
PIECES = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=20),
    ),
    max_size=6,
)


@given(pieces=PIECES, budget=st.integers(0, 60), drops=st.booleans())
def test_the_first_of_equal_edges_stays_unless_it_is_removed(pieces, budget, drops):
    def read() -> Iterator[tuple[np.ndarray, bool]]:
        for removes, edges in pieces:
            yield np.array(edges, np.int32).reshape(-1, 3), removes

    expected: list[bool] = []
    live: list[tuple[int, Edge]] = []
    for removes, edges in pieces:
        for edge in edges:
            if removes:
                for place, other in live:
                    expected[place] &= other != edge
                live = [each for each in live if each[1] != edge]
            else:
                live.append((len(expected), edge))
                expected.append(True)
    if drops:
        for number, (place, edge) in enumerate(live):
            expected[place] = edge not in [other for _, other in live[:number]]
    num_rows = sum(len(edges) for _, edges in pieces)
    assert find_edges(read, num_rows, budget, drops=drops).tolist() == expected
