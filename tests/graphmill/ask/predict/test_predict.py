"""`graphmill predict` on a finished run: all ids, some ids, pairs, wrong questions, what is left behind."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.entities import EntityTable, Numbers
from graphmill.ask.predict import job
from graphmill.vocab import Side
from tests.commands import Command
from tests.graphmill.ask.predict.world import World, assert_equal, read_answers, tables_of, write_world


def test_all_ids(tmp_path: Path, world: World, predict: Command) -> None:
    arguments = ["--relation", "likes", "--k", 4, "--exclude-known"]
    assert predict(*arguments) == 0
    assert_equal(read_answers(tmp_path / "out"), world.best(0, Side.RHS, 4, world.pairs(0, Side.RHS)))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"part-00000.parquet", "_predict.json", "_checksums.xxh128", "_SUCCESS"}
    figures = json.loads((tmp_path / "out/_predict.json").read_text())
    assert (figures["num_answers"], figures["checkpoint_version"]) == (16 * 4, 1)
    assert storage.read_marker(str(tmp_path / "out")) is not None
    table = pq.read_table(tmp_path / "out")  # as others read it: names with underscores are left out
    types = [pa.string(), pa.string(), pa.int32(), pa.string(), pa.float32()]
    assert table.schema.names == ["id", "relation", "rank", "candidate", "score"]
    assert table.schema.types == types
    assert set(table["relation"].to_pylist()) == {"likes"}
    assert predict(*arguments, of="run/run.json") == 0  # replaces an earlier answer


def write_ids(kind: str, path: Path, ids: list[str]) -> Path:
    """The ids in one of the forms that users have."""
    if kind == "folder":
        path.mkdir()
        for number, part in enumerate((ids[:2], ids[2:])):
            as_dictionary = pa.array(part).dictionary_encode()
            pq.write_table(pa.table({"z": part, "id": as_dictionary}), path / f"part-{number}.parquet")
        (path / "_metadata.parquet").touch()  # of another writer: no rows
        return path
    path, csv = path.with_suffix(f".{kind}"), "\n".join(["x,id", *(f'1,"{each}"' for each in ids)])
    match kind:
        case "parquet":
            pq.write_table(pa.table({"n": range(len(ids)), "name": ids}), path)
        case "csv.gz":
            path.write_bytes(gzip.compress(csv.encode()))
        case "csv":
            path.write_text(f"{csv}\n", encoding="utf-8-sig")
        case "txt":
            path.write_text("\r\n".join(ids) + "\r\n\r\n")
    return path


@pytest.mark.parametrize("kind", ["parquet", "folder", "csv", "csv.gz", "txt"])
def test_ids_in_all_forms(tmp_path: Path, kind: str) -> None:
    ids = ["user-15ß", "nobody,1", "x", "nobody 2"]
    path = str(write_ids(kind, tmp_path / "ids", ids))
    assert [each for table in given.iter_ids(path) for each in table["id"].to_pylist()] == ids
    assert not given.may_have_header(path)


def test_given_ids(tmp_path, world, predict, caplog):
    chosen = [world.name("user", number) for number in (15, 3, 8)]
    ids = write_ids("folder", tmp_path / "ids", [chosen[0], "nobody,1", *chosen[1:], "nobody 2"])
    assert predict("--relation", "follows", "--side", "lhs", "--k", 3, "--ids", ids) == 0
    best = world.best(1, Side.LHS, 3)
    expected = {(name, rank): best[name, rank] for name in chosen for rank in (1, 2, 3)}
    assert_equal(read_answers(tmp_path / "out"), expected)
    figures = json.loads((tmp_path / "out/_predict.json").read_text())
    found = [figures[key] for key in ("num_ids", "num_unknown", "unknown")]
    assert found == [5, 2, ["nobody,1", "nobody 2"]]
    assert "ids that are no user of the run get no answers (2 of 5): " in caplog.text


@pytest.mark.parametrize(
    ("header", "encoding"), [(None, "utf-8-sig"), ("name", "utf-8-sig"), ("name,age", "utf-8")]
)
def test_ids_in_csv_with_and_without_header(tmp_path, world, predict, header, encoding, caplog):
    """A first line that the run knows as an id is one; an id that comes twice is answered twice."""
    caplog.set_level("INFO")
    names = [world.name("user", number) for number in (15, 3, 8, 3)]
    ages = ",7" if header == "name,age" else ""
    lines = [*([header] if header else []), *(f'"{name}"{ages}' for name in names)]
    (tmp_path / "ids.csv").write_text("\n".join(lines), encoding=encoding)
    assert predict("--relation", "likes", "--k", 1, "--ids", tmp_path / "ids.csv") == 0
    answers = pq.read_table(tmp_path / "out").to_pydict()
    assert (answers["id"], answers["rank"]) == (names, [1] * 4)
    figures = json.loads((tmp_path / "out/_predict.json").read_text())
    assert (figures["num_ids"], figures["num_unknown"]) == (4, 0)
    told = "is its name, as the run knows no such id" if header else "is an id too"
    assert told in caplog.text


@pytest.mark.slow  # the workers import torch
@pytest.mark.parametrize(("kind", "side"), [("static", Side.RHS), ("dynamic", Side.LHS)])
def test_pairs_have_the_scores_of_the_oracle(tmp_path: Path, predict: Command, side: Side, kind: str) -> None:
    world = write_world(tmp_path / "run", operator="affine", dynamic=kind == "dynamic", comparator="cos")
    names = ["likes", "sees", "buys"] if kind == "dynamic" else ["likes", "follows"]
    triples = [edge for edge in world.edges["test"] if edge[1] < len(names)]
    rows = [
        (world.name(types[Side.LHS], lhs), names[rel], world.name(types[Side.RHS], rhs))
        for lhs, rel, rhs in triples
        if (types := world.types(rel))
    ]
    rows.insert(1, ("nobody", names[0], rows[0][2]))
    columns = dict(zip(("lhs", "relation", "rhs"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    assert predict("--pairs", tmp_path / "pairs.parquet", "--side", side) == 0
    table = pq.read_table(tmp_path / "out").to_pydict()
    assert {name: table[name] for name in columns} == columns  # the same rows, in the same order
    assert table["score"].pop(1) is None
    ends = [({Side.LHS: lhs, Side.RHS: rhs}, world.scores(rel, side)) for lhs, rel, rhs in triples]
    expected = [scores[of[side.other], of[side]] for of, scores in ends]
    assert table["score"] == pytest.approx(expected, abs=1e-5)
    figures = json.loads((tmp_path / "out/_predict.json").read_text())
    assert (figures["num_pairs"], figures["num_without_score"]) == (len(rows), 1)


def test_raw_ids_are_searched_once_for_all_relations(tmp_path, world, monkeypatch):
    searched, find = [], EntityTable.find

    def counted(table: EntityTable, ids: pa.Array) -> Numbers:
        searched.append(table.entity_type)
        return find(table, ids)

    monkeypatch.setattr(EntityTable, "find", counted)
    user, item = world.name("user", 1), world.name("item", 2)
    pairs = {"lhs": [user, user], "relation": ["likes", "follows"], "rhs": [item, user]}
    pq.write_table(pa.table(pairs), tmp_path / "piece.parquet")
    asked = *tables_of(world.config), Side.RHS, "likes", str(tmp_path / "piece.parquet")
    counts, _ = job.write_scores(*asked, str(tmp_path / "part-0.parquet"))
    assert (counts["num_without_score"], sorted(searched)) == (0, ["item", "user"])


def test_pairs_of_one_relation_in_csv(tmp_path: Path, world: World, predict: Command) -> None:
    lhs, rhs = world.name("user", 12), world.name("item", 29)
    (tmp_path / "pairs.csv").write_text(f"rhs,day,lhs\n{rhs},monday,{lhs}\n{rhs},friday,nobody\n")
    assert predict("--pairs", tmp_path / "pairs.csv", "--relation", "likes") == 0
    table = pq.read_table(tmp_path / "out").to_pydict()
    assert (table["lhs"], table["relation"]) == ([lhs, "nobody"], ["likes", "likes"])
    assert table["score"] == [pytest.approx(world.scores(0, Side.RHS)[12, 29], abs=1e-4), None]


def test_a_relation_that_was_added_after_the_training(tmp_path, predict, capsys):
    world = write_world(tmp_path / "run", dynamic=True)
    storage.write_text(
        storage.join(world.config.entity_path, "dynamic_rel_names.json"), '["likes", "sees", "buys", "eats"]'
    )
    assert predict("--relation", "eats") == 2
    assert "was trained before it was added" in capsys.readouterr().err


def test_featurized_types_are_refused(tmp_path, world, predict, capsys):
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["config"]["entities"]["item"]["featurized"] = True
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert predict("--relation", "likes") == 2
    assert "item: a featurized type has no list of all its entities" in capsys.readouterr().err
    assert predict("--relation", "follows", "--k", 1) == 0
