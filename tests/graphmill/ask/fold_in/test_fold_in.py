"""`graphmill fold-in` on a finished run: what it writes, wrong input, what is left behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.random import Generator

import graphmill
from graphmill import storage
from graphmill.ask.fold_in import job, solver
from graphmill.ask.fold_in.sorting import NONE, Sorting, read_batch, sort_piece
from graphmill.ask.neighbors import neighbors
from graphmill.errors import BadInputError
from graphmill.formats import remapped
from tests.commands import Command
from tests.contents import contents
from tests.graphmill.ask.predict.world import World, tables_of, write_world

NUM_NEW = 40


@pytest.fixture
def world(tmp_path: Path) -> World:
    return write_world(tmp_path / "run", num_partitions=3, dimension=16)


@pytest.fixture
def rows(tmp_path: Path, world: World, rng: Generator) -> list[tuple[str, str, str]]:
    """Edges of new users and items, in any order; some between known ids, some between new ones."""
    made = [(world.name("user", 3), "likes", world.name("item", 4)), ("new-0", "follows", "new-1")]
    for number in range(NUM_NEW):
        for _ in range(int(rng.integers(1, 6))):
            user, item = (world.name(name, int(rng.integers(16))) for name in ("user", "item"))
            choices = [
                (f"new-{number}", "likes", item),
                (f"new-{number}", "follows", user),
                (user, "follows", f"new-{number}"),
                (user, "likes", f"thing-{number}"),
            ]
            made.append(choices[int(rng.integers(4))])
    made.append(("stranger", "likes", "thing-of-nobody"))
    made = [made[place] for place in rng.permutation(len(made))]
    write_edges(tmp_path / "new.parquet", made)
    return made


def write_edges(path: Path, rows: list[tuple[str, str, str]], **more: Any) -> Path:
    columns = dict(zip(("lhs", "relation", "rhs"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({**columns, **more}), path)
    return path


def read_all(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by type and id."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*/part-*.parquet"))]
    return {(row["type"], row["id"]): row for table in tables for row in table.to_pylist()}


def test_new_ids_get_vectors(tmp_path, world, fold_in, rows, capsys):
    before = contents(tmp_path / "run")
    assert fold_in("--edges", tmp_path / "new.parquet") == 0
    assert contents(tmp_path / "run") == before
    known = {*world.by_id("user"), *world.by_id("item")}
    ends = {("user", lhs) for lhs, *_ in rows}
    ends |= {("item" if relation == "likes" else "user", rhs) for _, relation, rhs in rows}
    found = read_all(tmp_path / "out")
    assert set(found) == {each for each in ends if each[1] not in known}
    for (name, raw_id), row in found.items():
        own = [each for each in rows if raw_id in each and known & set(each)]
        assert row["num_edges"] == len(own), (name, raw_id)
        assert (row["confidence"] > 0) <= (len(own) > 0)
        assert 0 <= row["confidence"] < 1
        assert np.isfinite(row["embedding"]).all()
    assert found["user", "stranger"]["num_edges"] == 0
    figures = json.loads((tmp_path / "out/_fold_in.json").read_text())
    assert figures["num_ids"] == len(found)
    assert (figures["num_between_known"], figures["num_between_new"]) == (1, 2)
    assert figures["num_edges"] == figures["num_usable"] == len(rows) - 3
    assert storage.read_marker(str(tmp_path / "out")) is not None
    written = {"user", "item", "_fold_in.json", "_SUCCESS", "_checksums.xxh128"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == written
    assert "edges between new ids, ignored" in capsys.readouterr().out
    run = graphmill.open(str(tmp_path / "run"), embedding_path=str(tmp_path / "out"))
    assert run.neighbors("user", "new-3", 2)
    assert neighbors(str(tmp_path / "out"), "new-3", 5, None)[0] == "user"
    ids, vectors = next(remapped.iter_part(str(tmp_path / "out"), "user", 0))  # as embeddings are read
    assert vectors.shape == (len(ids), 16)
    assert ids.to_pylist() == sorted(ids.to_pylist())


@pytest.mark.slow
def test_the_same_bytes_from_any_files_and_groups(tmp_path, fold_in, rows, monkeypatch):
    assert fold_in("--edges", tmp_path / "new.parquet", to="one") == 0
    (tmp_path / "parts").mkdir()
    for number in range(5):
        write_edges(tmp_path / f"parts/{number}.parquet", rows[::-1][number::5])
    monkeypatch.setattr(job, "GROUP_ROWS", 20)
    monkeypatch.setattr(solver, "OF_JOB", solver.OF_JOB._replace(ids=4))
    monkeypatch.setattr(solver, "MOST_FLOATS", 5 * 16)  # known ends of a few ids are read together
    assert fold_in("--edges", tmp_path / "parts", to="many") == 0
    assert len(list((tmp_path / "many/user").iterdir())) > 3
    assert read_all(tmp_path / "many") == read_all(tmp_path / "one")


@pytest.mark.slow
def test_a_call_gives_the_same(tmp_path: Path, world: World, fold_in: Command, rows: list[Any]) -> None:
    rows += [("hub", "likes", world.name("item", number % 30)) for number in range(300)]  # 256 count
    assert fold_in("--edges", write_edges(tmp_path / "new.parquet", rows)) == 0
    run = graphmill.open(str(tmp_path / "run"))
    expected = read_all(tmp_path / "out")
    for edges in (rows, pq.read_table(tmp_path / "new.parquet")):
        found = run.fold_in(edges)
        assert {(each.type, each.id) for each in found} == set(expected)
        for each in found:
            row = expected[each.type, each.id]
            assert each.num_edges == row["num_edges"]
            assert each.embedding == pytest.approx(row["embedding"], abs=1e-2)
    orders = ([*rows], [*rows][::-1])  # the same to the last bit
    forth, back = ({each[:2]: each.embedding.tobytes() for each in run.fold_in(edges)} for edges in orders)
    assert forth == back
    assert [each.id for each in run.fold_in([("new-1", "likes", world.name("item", 2))])] == ["new-1"]
    assert run.fold_in([]) == []
    item = world.name("item", 2)
    for lhs, weight in ((5, 2), (np.int64(5), np.float32(2)), ("5", np.int64(2))):
        (found,) = run.fold_in([(lhs, "likes", item, weight)])
        assert found.id == "5"
    (same,) = run.fold_in(pa.table({"lhs": [5], "relation": ["likes"], "rhs": [item], "weight": [2]}))
    np.testing.assert_array_equal(same.embedding, found.embedding)
    odd: list[Any] = [("a", "likes", ""), ("a", "likes", None), (True, "likes", item)]
    odd += [("a", "likes", item, weight) for weight in ("2", -1, float("inf"), 2e15)]
    wrong: list[tuple[str, Any]] = [
        *(("row 0: expected three texts", [row]) for row in odd),
        ("relation 'eats': the run was trained without it", [("a", "eats", "b")]),
        (r"row 1: expected \(lhs, relation, rhs\)", [("a", "likes", "b"), ("a", "b")]),
        ("edges: lhs: expected strings .*UTF-8", [("\ud800", "likes", item)]),
        ("edges: rhs: expected strings", pa.table({"lhs": ["a"], "relation": ["likes"], "rhs": [1.5]})),
        ("not 'rhs'", pa.table({"lhs": ["a"], "relation": ["likes"]})),
    ]
    for message, edges in wrong:
        with pytest.raises(BadInputError, match=message):
            run.fold_in(edges)


def test_ids_without_edges(tmp_path: Path, world: World, fold_in: Command) -> None:
    edges = write_edges(tmp_path / "new.parquet", [("new-0", "likes", world.name("item", 1))])
    pq.write_table(pa.table({"id": ["new-0", "silent", world.name("user", 2)]}), tmp_path / "ids.parquet")
    assert fold_in("--edges", edges, "--ids", f"user={tmp_path / 'ids.parquet'}") == 0
    found = read_all(tmp_path / "out")
    num_edges = {each: row["num_edges"] for each, row in found.items()}
    assert num_edges == {("user", "new-0"): 1, ("user", "silent"): 0}
    mean = world.vectors["user"].mean(0)
    assert found["user", "silent"]["embedding"] == pytest.approx(mean, abs=1e-5)
    assert found["user", "silent"]["confidence"] == 0
    assert json.loads((tmp_path / "out/_fold_in.json").read_text())["num_known_ids"] == 1


def test_tables_without_rows(tmp_path, world, fold_in, caplog):
    """The result has the types and columns, and no rows, as that of `features` has."""
    (tmp_path / "new.csv").write_text("lhs,relation,rhs\n")
    assert fold_in("--edges", tmp_path / "new.csv") == 0
    assert "fold-in: the tables have no rows" in caplog.text
    found = {path.parent.name: pq.read_table(path) for path in (tmp_path / "out").glob("*/part-*.parquet")}
    assert sorted(found) == ["item", "user"]
    for table in found.values():
        assert table.column_names == ["id", "type", "embedding", "confidence", "num_edges"]
        assert not len(table)
    figures = json.loads((tmp_path / "out/_fold_in.json").read_text())
    assert [figures[name] for name in ("num_rows", "num_ids", "num_edges", "num_over_limit")] == [0] * 4


@pytest.mark.slow
def test_tables_of_other_forms(tmp_path: Path, world: World, fold_in: Command) -> None:
    user, item = world.name("user", 1), world.name("item", 2)
    rows = [("new-0", "likes", item), ("new-1", "follows", user)]
    write_edges(tmp_path / "a.parquet", rows)
    (tmp_path / "b.tsv").write_text("".join(f"{rhs}\t{relation}\t{lhs}\n" for lhs, relation, rhs in rows))
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"from": lhs, "what": relation, "to": rhs}) + "\n" for lhs, relation, rhs in rows)
    )
    options: dict[str, list[Any]] = {
        "a.parquet": [],
        "b.tsv": ["--no-header", "--lhs", 2, "--relation-column", 1, "--rhs", 0],
        "c.jsonl": ["--lhs", "from", "--relation-column", "what", "--rhs", "to"],
    }
    found = []
    for name, more in options.items():
        assert fold_in("--edges", tmp_path / name, *more) == 0
        found.append(read_all(tmp_path / "out"))
    assert found[0] == found[1] == found[2]
    likes = ("--relation", "likes", "--lhs", "lhs", "--rhs", "rhs")  # all rows are likes now
    assert fold_in("--edges", tmp_path / "a.parquet", *likes) == 0
    assert set(read_all(tmp_path / "out")) == {("user", "new-0"), ("user", "new-1"), ("item", user)}


@pytest.mark.slow
def test_weights_count_and_at_most_so_many_edges(tmp_path: Path, world: World, fold_in: Command) -> None:
    rows = [("hub", "likes", world.name("item", number)) for number in range(30)]
    found = []
    for weights in (np.ones(30), np.ones(30), np.linspace(0.5, 1.5, 30)):
        rows.reverse()
        edges = write_edges(tmp_path / "a.parquet", rows, w=weights)
        assert fold_in("--edges", edges, "--max-edges", 7, "--weight", "w") == 0
        found.append(read_all(tmp_path / "out")["user", "hub"])
    assert found[0] == found[1]
    assert found[0]["embedding"] != found[2]["embedding"]
    assert found[0]["num_edges"] == 7
    assert json.loads((tmp_path / "out/_fold_in.json").read_text())["num_over_limit"] == 23


def test_a_piece_keeps_the_edges_that_count(tmp_path: Path, world: World) -> None:
    """One id with very many edges fits in memory: a piece holds no more of them than its vector takes."""
    names = [world.name("item", number) for number in range(30)] + [f"new-{number}" for number in range(60)]
    lhs, ones = ["hub"] * 60 + ["hub between new ids"] * 30, np.ones(90, np.float32)
    piece = {"lhs": lhs, "relation": np.zeros(90, np.int32), "rhs": names, "weight": ones}
    pq.write_table(pa.table(piece), tmp_path / "piece.parquet")
    rows = []
    for most in (30, 7):
        sorting = Sorting(world.config, tables_of(world.config)[1], 1, most)
        counts = sort_piece(sorting, str(tmp_path / "piece.parquet"), None, str(tmp_path / "sorted.arrow"))
        assert counts["num_usable"] == 30
        batch = read_batch(sorting, str(tmp_path / "sorted.arrow"), "user", 0)
        assert batch["id"].value_counts().field("counts").to_pylist() == [most, most]
        assert batch["known"].to_pylist().count(NONE) == most  # of the other id: they come last
        rows.append(sorted(zip(batch["order"].to_pylist(), batch["known"].to_pylist(), strict=True)))
    assert rows[1][:7] == rows[0][:7]


def test_featurized_types_are_refused(tmp_path, world, fold_in, capsys):
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["config"]["entities"]["item"]["featurized"] = True
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    edges = write_edges(tmp_path / "a.parquet", [("new", "likes", world.name("item", 1))])
    assert fold_in("--edges", edges) == 2
    assert "relation 'likes' joins a featurized type" in capsys.readouterr().err
    edges = write_edges(tmp_path / "a.parquet", [("new", "follows", world.name("user", 1))])
    assert fold_in("--edges", edges) == 0
