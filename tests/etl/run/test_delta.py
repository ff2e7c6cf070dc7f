"""A run that takes edges from an earlier run writes the same bytes as one that reads all files anew.

So does one that goes on after a kill.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import job
from etl.run.sources import source_files
from etl.tables.data_file import DataFile, Deletes
from etl.tables.files import find_all
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.formats.edge_buckets.files import REMOVED
from graphmill.formats.edge_buckets.origins import added_rows, has_added
from tests.contents import flip_a_bit
from tests.etl.graphs import (
    RawEdge,
    all_edges,
    as_anew,
    config_of,
    files_under,
    index_of,
    read_raw_edges,
    saved,
    write_parquet,
)
from tests.etl.run.test_go_on import figures_of, finished_steps
from tests.etl.run.test_lakes import WRITERS, graph, some_rows
from tests.forked import Kill

pytestmark = pytest.mark.slow
File = list[tuple[int, str, int, float]]  # lhs, relation, rhs, weight
# of figures that tell what a run has read
OF_THE_WORK = {"step_seconds", "num_chunks", "bytes_in", "bytes_out", "delta", "delta_reason"}

ROWS = st.lists(
    st.tuples(
        st.integers(0, 9), st.sampled_from(["saw", "bought"]), st.integers(0, 9), st.sampled_from([0.5, 2.0])
    ),
    max_size=12,
)
FILES = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), ROWS, max_size=4)
DAYS = st.lists(st.tuples(FILES, FILES, FILES), min_size=2, max_size=3)


def write_files(folder: Path, files: Mapping[str, File]) -> None:
    """Write the files of a table that are not there yet as they should be, and remove the others."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder.parent / f"{folder.name}.json"
    known = json.loads(notes.read_text()) if notes.exists() else {}
    now = {name: [list(row) for row in rows] for name, rows in files.items()}
    for name in known.keys() - now.keys():
        (folder / f"{name}.parquet").unlink()
    for name, rows in now.items():
        if known.get(name) != rows:
            lhs, rel, rhs, weight = ([row[n] for row in rows] for n in range(4))
            write_parquet(
                folder / f"{name}.parquet",
                5,
                l=np.array([f"u{n}" for n in lhs], dtype="O") if lhs else np.array([], dtype="U1"),
                r=np.array(rel, dtype="U8"),
                t=np.array([f"i{n}" for n in rhs], dtype="U8"),
                w=np.array(weight, np.float64),
            )
    notes.write_text(json.dumps(now))


def config_for(root: Path, day: int, name: str, shape: Mapping[str, Any], *, delta: bool) -> Config:
    columns = {"relation_column": "r"} | ({"weight": "w"} if shape.get("weights") else {})
    etl: dict[str, Any] = {"duplicates": "drop" if shape.get("drops") else "keep"}
    if shape.get("forget"):
        etl["forget_after"] = shape["forget"]
    if day:
        etl["previous_entity_path"] = str(root / f"out{day - 1}/entities")
    if delta:
        etl["previous_edge_path"] = str(root / f"out{day - 1}/edges")
    dynamic = bool(shape.get("dynamic"))
    kinds = [("saw", "user", "item"), ("bought", "user", "shop")]
    gone = {"path": "gone", "removes": True, "missing_paths": "skip"}
    return config_of(
        root / name,
        [
            {"path": "first"} | columns,
            *([gone | columns] if shape.get("removes") else []),
            {"path": "second", "split": "extra" if shape.get("splits") else "train"} | columns,
        ],
        entities={"user": shape.get("users", 2), "item": shape.get("items", 2), "shop": 1},
        relations=kinds[:1] if dynamic else kinds,
        dynamic=dynamic,
        top={"input": str(root / "raw"), "schedule": {"date": f"2026-03-{day + 1:02}"}},
        holdout={"test": 0.3} if shape.get("splits") else {},
        chunk_rows=shape.get("chunk_rows", 100),
        merge_bytes=shape.get("merge_bytes", 1 << 28),
        self_loops="drop",
        listed=[{"path": "listed", "type": "user", "id": "l"}] if shape.get("listed") else [],
        **etl,
    )


def test_all_that_decides_rows_is_in_the_digest_of_a_file() -> None:
    table = TableConfig(path=("x",), lhs="a", rhs="b", relation="r")
    file = DataFile("/none/x.csv", size_bytes=1)
    changes = {
        "lhs": 0,
        "rhs": 0,
        "relation": "s",
        "weight": "w",
        "split": "x",
        "removes": True,
        "header": False,
    }
    changes |= {"delimiter": ";", "null_values": ("-",), "quoting": False, "feature_delimiter": ";"}
    tables = [table, *(table.model_copy(update={key: value}) for key, value in changes.items())]
    files = [{"values": {"b": "x"}}, {"filters": ((("a", "==", 1),),)}, {"deletes": (Deletes("delta", "x"),)}]
    files += [{"schema": pa.schema([])}, {"size_bytes": 2}, {"mtime_ns": 1}, {"checksum": "x"}]
    all_files = [(0, "", each, file) for each in tables]
    all_files += [(0, "", table, replace(file, **each)) for each in files]
    digests = [source.digest for source in source_files(all_files)]
    assert len(set(digests)) == len(all_files)
    (moved,) = source_files([(0, "", table.model_copy(update={"path": ("y",)}), file)])
    assert moved.digest == digests[0]


def changed(config: Config, etl: Mapping[str, Any]) -> Config:
    return config.with_section(config.section(EtlConfig).model_copy(update=dict(etl)))


def of_the_graph(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key not in OF_THE_WORK}


def origins(folder: Path) -> dict[str, Any]:
    """Content of origins.json of each split, but for the files that were added."""
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("origins.json")}
    return {split: {k: v for k, v in each.items() if k != "added"} for split, each in found.items()}


def check_day(root: Path, day: int, shape: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Run a day with and without the earlier edges, and compare; return the figures of the delta."""
    if not day:
        return job.run(config_for(root, 0, "out0", shape, delta=False), client)
    anew = job.run(config_for(root, day, f"anew{day}", shape, delta=False), client)
    found = job.run(config_for(root, day, f"out{day}", shape, delta=True), client)
    assert as_anew(files_under(root / f"out{day}")) == files_under(root / f"anew{day}")
    check_removed(root, day, shape)
    assert origins(root / f"out{day}") == origins(root / f"anew{day}")
    assert of_the_graph(found) == of_the_graph(anew)
    assert found["delta"] is not None, found["delta_reason"]
    return found


def check_removed(root: Path, day: int, shape: Mapping[str, Any]) -> None:
    """Compare the edges that the day has lost with those of both days by raw id."""
    before, now = (config_for(root, each, f"out{each}", shape, delta=True) for each in (day - 1, day))
    ids = {(name, each) for (name, _), part in index_of(now).items() for each in part}

    def is_known(edge: RawEdge) -> bool:
        return {(edge.lhs_type, edge.lhs), (edge.rhs_type, edge.rhs)} <= ids

    had, has = ({edge._replace(weight=None) for edge in all_edges(each)} for each in (before, now))
    removed = [edge for part in read_raw_edges(now, "train", REMOVED).values() for edge in part]
    assert len(removed) == len(set(removed))
    expected = {edge for edge in had - has if is_known(edge)}
    if shape.get("merge_bytes", 1 << 28) < 1 << 20:  # not all fit in memory
        assert set(removed) <= expected
    else:
        assert set(removed) == expected
    assert not list(root.glob(f"out{day}/edges/[!t]*/removed_*"))


SHAPES = st.fixed_dictionaries(
    {
        **dict.fromkeys(("weights", "drops", "dynamic", "splits", "removes"), st.booleans()),
        "users": st.sampled_from([1, 2]),
        "items": st.sampled_from([1, 3]),
        "forget": st.sampled_from([None, 1, 2]),
        "merge_bytes": st.sampled_from([100, 1 << 28]),
        "chunk_rows": st.just(7),
    }
)


@given(days=DAYS, shape=SHAPES)
@settings(max_examples=6)
def test_the_same_bytes_as_anew(near_client, tmp_path_factory, days, shape):
    root = tmp_path_factory.mktemp("delta")
    for day, (first, second, gone) in enumerate(days):
        write_files(root / "raw/first", {"y": [], **first})
        write_files(root / "raw/second", {"z": [(0, "saw", 0, 0.5), (0, "bought", 1, 2.0)], **second})
        write_files(root / "raw/gone", gone)
        check_day(root, day, shape, near_client)


def rows_of(rng: np.random.Generator, num: int, least: int = 0) -> File:
    ids = rng.integers(least, least + 60, (num, 2)).tolist()
    return [(a, ["saw", "bought"][a % 2], b, 0.5 * (1 + b % 3)) for a, b in ids]


def write_window(root: Path, rng_of: Sequence[int], least: int = 0) -> None:
    files = {f"day{n}": rows_of(np.random.default_rng(n), 100, least + n) for n in rng_of}
    write_files(root / "raw/first", files)
    write_files(root / "raw/second", {"z": [(0, "saw", 0, 0.5)]})


def test_a_window_moves(near_client: Client, tmp_path: Path) -> None:
    """Only a new file is read, and told to training; on the next days nothing is new, and a file changes."""
    shape = {"weights": True, "splits": True}
    for day in range(2):
        write_window(tmp_path, range(day, day + 4))
        figures = check_day(tmp_path, day, shape, near_client)
    kept = {"files_kept": 4, "files_added": 1, "files_gone": 1}
    assert figures["delta"] == kept | {"edges_kept": 301, "edges_added": 100, "edges_gone": 100}
    config = config_for(tmp_path, 1, "out1", shape, delta=True)
    new = {(f"u{a}", r, f"i{b}") for a, r, b, _ in rows_of(np.random.default_rng(4), 100, 4)}
    added = 0
    for split in ("train", "test"):
        assert has_added(config.split_path(split))
        for bucket, edges in read_raw_edges(config, split).items():
            ranges = added_rows(config.split_path(split), bucket).tolist()
            own = [edge for first, past in ranges for edge in edges[first:past]]
            assert {(edge.lhs, edge.relation, edge.rhs) for edge in own} <= new
            added += len(own)
    assert added == 100
    assert not has_added(config_for(tmp_path, 0, "out0", shape, delta=False).split_path("train"))
    assert check_day(tmp_path, 2, shape, near_client)["num_chunks"] == 0
    write_files(tmp_path / "raw/second", {"z": [(7, "saw", 7, 0.5), (7, "saw", 8, 0.5)]})
    delta = check_day(tmp_path, 3, shape, near_client)["delta"]
    assert (delta["files_added"], delta["files_gone"], delta["edges_added"]) == (1, 1, 2)


def test_a_row_returns_when_its_twin_goes(near_client: Client, tmp_path: Path) -> None:
    shape = {"drops": True, "weights": True}
    twin = (1, "saw", 2, 0.5)
    for day, files in enumerate(({"a": [twin], "b": [(*twin[:3], 2.0)]}, {"b": [(*twin[:3], 2.0)]})):
        write_files(tmp_path / "raw/first", files)
        write_files(tmp_path / "raw/second", {"z": [(0, "saw", 0, 0.5)]})
        check_day(tmp_path, day, shape, near_client)
        found = all_edges(config_for(tmp_path, day, f"out{day}", shape, delta=False))
        assert [edge.weight for edge in found if edge.lhs == "u1"] == [2.0 if day else 0.5]


@pytest.mark.parametrize(("drops", "dynamic"), [(False, True), (True, False)])
def test_rows_take_out_equal_edges(near_client: Client, tmp_path: Path, drops: bool, dynamic: bool) -> None:
    """Edges come back when the rows that took them out go; ids of such rows alone are not indexed."""
    shape = {"drops": drops, "removes": True, "dynamic": dynamic, "splits": True}
    rng = np.random.default_rng(1)
    first, second = {"a": rows_of(rng, 120), "b": rows_of(rng, 120)}, {"z": rows_of(rng, 40)}
    unknown: File = [(999, "saw", 998, 1.0), (1, "seen" if dynamic else "saw", 997, 1.0)]
    days: list[dict[str, File]] = [
        {"x": first["a"][::2] + unknown},
        {"x": first["a"][::2] + unknown, "y": first["b"][::3]},
        {"y": first["b"][::3]},
        {},
    ]
    for day, gone in enumerate(days):
        write_files(tmp_path / "raw/first", first)
        write_files(tmp_path / "raw/second", second)
        write_files(tmp_path / "raw/gone", gone)
        figures = check_day(tmp_path, day, shape, near_client)
        config = config_for(tmp_path, day, f"out{day}", shape, delta=False)
        taken = {row[:3] for rows in gone.values() for row in rows}
        left = [row[:3] for rows in first.values() for row in rows if row[:3] not in taken]
        found = all_edges(config) + all_edges(config, "test")
        counts = Counter({(each.lhs, each.relation, each.rhs): count for each, count in found.items()})
        assert counts == Counter((f"u{a}", rel, f"i{b}") for a, rel, b in (set(left) if drops else left))
        num_left_out = figures["num_edges_left_out"]["removed_or_duplicates" if drops else "removed"]
        assert num_left_out >= 240 - len(left)
        ids = {each for part in index_of(config).values() for each in part}
        assert not {"u999", "i998", "i997"} & ids
        assert figures["num_relations"] == 2
        degrees: Counter[str] = Counter()
        for edge, count in all_edges(config).items():
            degrees[edge.lhs] += count
        assert figures["train_degree"]["user"]["max"] == max(degrees.values())
        if day:
            assert figures["delta"]["files_added"] == figures["delta"]["files_gone"] == 0


def test_rows_that_take_out_edges_need_tables_before(near_client: Client, tmp_path: Path) -> None:
    write_window(tmp_path, range(2))
    config = config_for(tmp_path, 0, "out0", {}, delta=False)
    tables = tuple(each.model_copy(update={"removes": True}) for each in config.section(EtlConfig).tables)
    with pytest.raises(ConfigError, match=r"etl\.tables\[0\]\.removes: expected tables of edges before it"):
        job.run(changed(config, {"tables": tables}), near_client)


def test_tables_of_entities(near_client: Client, tmp_path: Path) -> None:
    """A file that the earlier run had is not read again; its ids stay."""
    shape = {"listed": True}
    files: dict[str, File] = {"a": [(500, "saw", 1, 1.0)], "b": [(501, "saw", 1, 1.0)]}
    for day, names in enumerate((["a"], ["a", "b"], ["b"])):
        write_window(tmp_path, range(2))
        write_files(tmp_path / "raw/listed", {name: files[name] for name in names})
        figures = check_day(tmp_path, day, shape, near_client)
        assert figures["num_rows"] == 201 + len(names)
        assert figures["num_entities_outside_train"]["user"] == (2 if day else 1)
    assert (figures["delta"]["files_kept"], figures["delta"]["files_gone"]) == (4, 1)
    assert (figures["delta"]["edges_kept"], figures["delta"]["edges_gone"]) == (201, 0)


def test_moved_tables_are_told(near_client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All edges would be trained as new ones."""
    write_window(tmp_path, range(2))
    job.run(config_for(tmp_path, 0, "out0", {}, delta=False), near_client)
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    config = config_for(tmp_path, 1, "out1", {}, delta=True)
    figures = job.run(config.model_copy(update={"input": str(tmp_path / "elsewhere")}), near_client)
    assert (figures["delta"]["files_kept"], figures["delta"]["files_gone"]) == (0, 3)
    assert "none of the 3 files" in caplog.text
    assert f"such as {tmp_path}/raw/first/day0.parquet" in caplog.text
    assert not list(tmp_path.rglob("removed_*"))


def test_bad_rows_of_kept_files_are_not_in_the_quarantine(near_client, tmp_path, caplog):
    write_files(tmp_path / "raw/second", {"z": [(0, "saw", 0, 0.5)]})
    files = {"a": [(1, "saw", 1, 1.0), (1, "eats", 1, 1.0), (2, "eats", 1, 1.0)], "b": [(3, "eats", 3, 1.0)]}
    for day in range(2):
        write_files(tmp_path / "raw/first", dict(list(files.items())[: day + 1]))
        config = config_for(tmp_path, day, f"out{day}", {}, delta=day > 0)
        job.run(changed(config, {"on_bad_row": "quarantine", "max_bad_fraction": 1}), near_client)
    assert [len(pq.read_table(tmp_path / f"out{day}/quarantine")) for day in range(2)] == [2, 1]
    assert f"they go to {tmp_path}/out0/quarantine\n" in caplog.text
    assert f"to {tmp_path}/out1/quarantine, but for 2 in files that the earlier run has read\n" in caplog.text


TWO_DAYS = {"splits": True}


@pytest.fixture(scope="module")
def two_days(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("days")
    write_window(root, range(2))
    for day in range(2):
        check_day(root, day, TWO_DAYS, near_client)
    return root


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"min_entity_count": 1}, "min_entity_count and min_relation_count depend on all edges"),
        ({"holdout": {"test": 0.1}}, "settings have changed: holdout"),
        ("train", "has no origins.json"),
        ("test", "are of different runs"),
        ("entities", "are of different runs"),
    ],
)
def test_where_a_delta_would_not_be_exact(near_client, two_days, tmp_path, caplog, change, reason):
    config = config_for(two_days, 1, "other1", TWO_DAYS, delta=True)
    lost = [two_days / f"out0/edges/{change}/origins.json"] if change in ("train", "test") else []
    if change == "entities":
        write_window(tmp_path, range(3), 30)
        job.run(config_for(tmp_path, 0, "other", TWO_DAYS, delta=False), near_client)
        change = {"previous_entity_path": str(tmp_path / "other/entities")}
    if isinstance(change, dict):
        config = changed(config, change)
    for path in lost:
        path.rename(tmp_path / "lost")
    with caplog.at_level(logging.INFO):
        figures = job.run(config, near_client)
    for path in lost:
        (tmp_path / "lost").rename(path)
    assert figures["delta"] is None
    assert reason in figures["delta_reason"]
    assert f"reads all files anew, without etl.previous_edge_path: {figures['delta_reason']}" in caplog.text
    assert not has_added(config.split_path("train"))


@pytest.mark.parametrize("name", ["train/edges_1_1.h5", "train/origins.json", "test/origins.json"])
def test_a_damaged_file_is_refused_and_none_is_lost(near_client: Client, two_days: Path, name: str) -> None:
    before = files_under(two_days / "out1")
    path = two_days / "out0/edges" / name
    whole = path.read_bytes()
    flip_a_bit(path)
    with pytest.raises(FormatError, match=rf"{name}: expected the checksum"):
        job.run(config_for(two_days, 1, "out1", TWO_DAYS, delta=True), near_client)
    path.write_bytes(whole)
    assert files_under(two_days / "out1") == before


def test_what_the_key_needs(two_days: Path) -> None:
    for etl, message in (
        ({"previous_entity_path": None}, "expected etl.previous_entity_path too"),
        ({"previous_edge_path": str(two_days / "out1/edges")}, "where this run's edges go"),
        ({"previous_edge_path": str(two_days / "nowhere")}, "expected the folder `edges` of an earlier run"),
    ):
        config = config_for(two_days, 1, "out1", TWO_DAYS, delta=True)
        with pytest.raises(ConfigError, match=message):
            job.check(changed(config, etl))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_lake_gets_rows(near_client: Client, tmp_path: Path, kind: str) -> None:
    """Files that both snapshots have are kept; one whose rows were deleted since is another file."""
    write, append = WRITERS[kind]
    path = write(tmp_path / "lake")
    filters = [["day", ">=", "2026-11-02"], ["n", "<", 300]]

    def run(name: str, before: str | None, *, delta: bool, least: str = "2026-11-02") -> dict[str, Any]:
        # a window that moves decides which files there are, not which rows of them
        config = graph(tmp_path / name, path, filters=[["day", ">=", least], filters[1]])
        etl = {"previous_entity_path": str(tmp_path / f"{before}/entities") if before else None}
        if delta:
            etl["previous_edge_path"] = str(tmp_path / f"{before}/edges")
        return job.run(changed(config, etl), near_client)

    num_files = len(find_all(graph("/nowhere", path, filters=filters))[0].files())
    run("first", None, delta=False)
    run("moved-anew", "first", delta=False, least="2026-11-03")
    moved = run("moved", "first", delta=True, least="2026-11-03")
    assert moved["delta"]["files_kept"] > 0 == moved["delta"]["files_added"]
    assert as_anew(files_under(tmp_path / "moved")) == files_under(tmp_path / "moved-anew")
    append(tmp_path / "lake", some_rows(3))
    run("anew", "first", delta=False)
    found = run("out", "first", delta=True)
    assert found["delta"]["files_kept"] == num_files
    assert found["delta"]["files_added"] > 0 == found["delta"]["files_gone"]
    assert as_anew(files_under(tmp_path / "out")) == files_under(tmp_path / "anew")


TO_BE_KILLED = {"drops": True, "weights": True, "splits": True, "items": 3, "chunk_rows": 40}


@pytest.fixture(scope="module")
def first_day(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of the first day, and of the second read anew; the tables are the second day's."""
    root = tmp_path_factory.mktemp("days")
    write_window(root, range(3))
    check_day(root, 0, TO_BE_KILLED, near_client)
    write_window(root, range(1, 4))
    job.run(config_for(root, 1, "anew1", TO_BE_KILLED, delta=False), near_client)
    return root


@pytest.mark.parametrize(
    "kill",
    [
        *map(Kill, (0, 2, 7, 14, 24, 39, 49, 54, 59)),
        *(Kill(0, name, is_after=True) for name in ("*.codes.arrow", "edges_*.h5")),
    ],
    ids=str,
)
def test_killed_at_a_rename(near_client, forked, first_day, tmp_path, kill):
    before = files_under(first_day / "out0")
    config = config_for(first_day, 1, f"out-{len(list(first_day.iterdir()))}", TO_BE_KILLED, delta=True)
    forked(*saved(config, tmp_path / "saved"), kill=kill)
    done = finished_steps(Path(config.output or ""))
    figures, num_tasks = figures_of(config, near_client)
    assert figures["delta"]["files_added"] == 1
    if "merge" not in done:
        assert ("etl: encode" in num_tasks) == ("encode" not in done)
    assert as_anew(files_under(config.output or "")) == files_under(first_day / "anew1")
    assert files_under(first_day / "out0") == before
