"""`graphmill features`: against a join by pandas, in all forms of tables, with wrong questions."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from distributed import Client
from numpy.random import Generator

from etl import pieces
from graphmill.ask.features import job
from graphmill.ask.features.settings import FeaturesOptions
from graphmill.formats import remapped
from tests.commands import Command
from tests.contents import contents
from tests.graphmill.ask.fold_in.test_fold_in import write_edges
from tests.graphmill.ask.predict.world import DIMENSION, World, write_world


def orders(world: World, rng: Generator, num: int = 200) -> pa.Table:
    """Rows with known ids, many of them twice, unknown ids, empty ones and nulls."""
    ids: list[str | None] = [world.name("user", number) for number in range(16)]
    ids += ["nobody", "", None, world.name("item", 3)]
    return pa.table(
        {
            "order": pa.array(np.arange(num), pa.int32()),
            "customer": pa.array([ids[place] for place in rng.integers(0, len(ids), num)], pa.string()),
            "day": pa.array(rng.integers(0, 9, num).astype(np.int32), pa.date32()),
            "items": pa.array([[float(each)] * (each % 3) for each in range(num)]),
            "note": pa.array([None if each % 4 else f"n{each}" for each in range(num)]).dictionary_encode(),
        }
    )


def expected(world: World, ids: Sequence[str | None], kind: str = "user") -> list[Any]:
    """The vectors by a left join of pandas."""
    known = pd.DataFrame({"id": list(found := world.by_id(kind)), "vector": list(found.values())})
    merged = pd.DataFrame({"id": pd.Series(ids, dtype=object)}).merge(known, how="left", on="id")
    return [each.tolist() if isinstance(each, np.ndarray) else None for each in merged["vector"]]


def read(folder: Path | str) -> pa.Table:
    files = sorted(Path(folder).glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(each) for each in files])


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "_features.json").read_text())
    return found


@pytest.fixture
def table(tmp_path: Path, world: World, rng: Generator) -> pa.Table:
    """Orders, in `orders.parquet`."""
    made = orders(world, rng)
    pq.write_table(made, tmp_path / "orders.parquet", row_group_size=70)
    return made


def test_like_a_left_join(tmp_path, world, features, table, caplog):
    ask = [tmp_path / "orders.parquet", "--column", "customer", "--type", "user"]
    assert features(*ask) == 0
    found = read(tmp_path / "out")
    assert found.select(table.column_names).to_pylist() == table.to_pylist()
    assert found.schema.types[:5] == table.schema.types
    assert found.column_names[5:] == ["vector", "has_vector"]
    assert found.schema.field("vector").type == pa.list_(pa.float32())
    wanted = expected(world, table["customer"].to_pylist())
    assert found["vector"].to_pylist() == wanted
    assert found["has_vector"].to_pylist() == [each is not None for each in wanted]
    counts = figures(tmp_path / "out")["columns"]["customer"]
    ids = table["customer"].to_pylist()
    assert counts["num_found"] == sum(each is not None for each in wanted)
    assert counts["num_without_id"] == sum(each in (None, "") for each in ids)
    assert counts["num_missing"] == ids.count("nobody") + ids.count(world.name("item", 3))
    assert set(counts["missing"]) == {"nobody", world.name("item", 3)}
    told = r"no user of the run have no vector \(.*\): '[^']+', '[^']+'$"
    assert re.search(told, caplog.text, re.MULTILINE)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(f"part-{number:05d}.parquet" for number in range(figures(tmp_path / "out")["num_files"])),
        "_features.json",
        "_SUCCESS",
        "_checksums.xxh128",
    }

    def written() -> dict[str, bytes]:
        return {name: each for name, each in contents(tmp_path / "out").items() if "_features" not in name}

    before = written()
    assert features(*ask) == 0  # replaces the first, with the same bytes
    assert written() == before


def write_json(table: pa.Table, path: str) -> None:
    rows = [{key: each for key, each in row.items() if each is not None} for row in table.to_pylist()]
    Path(path).write_text("\n".join(map(json.dumps, rows)) + "\n")


@pytest.mark.parametrize(
    ("kind", "write"), [("orc", paorc.write_table), ("csv", pacsv.write_csv), ("json", write_json)]
)
def test_forms_of_tables(tmp_path, world, features, table, kind, write):
    (tmp_path / "orders").mkdir()
    for number, rows in enumerate((slice(90), slice(90, None))):
        write(table.select(["order", "customer"])[rows], str(tmp_path / f"orders/t{number}.{kind}"))
    assert features(tmp_path / "orders", "--column", "customer", "--type", "user") == 0
    found = read(tmp_path / "out")
    assert [int(each) for each in found["order"].to_pylist()] == table["order"].to_pylist()
    assert found["vector"].to_pylist() == expected(world, table["customer"].to_pylist())


@pytest.mark.slow
def test_memory_changes_no_row(tmp_path: Path, world: World, near_client: Client, rng: Generator) -> None:
    path = tmp_path / "orders.parquet"
    pq.write_table(orders(world, rng, 150), path, row_group_size=30)
    table = pieces.whole_table(world.config, [str(path)], {})
    for name, memory_bytes in (("large", 1 << 28), ("small", 1)):
        request = FeaturesOptions(columns={"customer": "user"}, components=3, memory_bytes=memory_bytes)
        job.run(world.config, request, table, str(tmp_path / name), near_client)
    assert read(tmp_path / "large").equals(read(tmp_path / "small"))
    assert pq.ParquetFile(tmp_path / "small/part-00000.parquet").num_row_groups >= 30


def test_integers_are_ids(tmp_path: Path, features: Command) -> None:
    world = write_world(tmp_path / "run", num_partitions=1)
    world_ids = pa.array([5, None, 2], pa.int64())
    pq.write_table(pa.table({"c": world_ids}), tmp_path / "t.parquet")
    ask = [tmp_path / "t.parquet", "--column", "c", "--type", "user"]
    assert features(*ask) == 2  # no id of the run is a number
    (tmp_path / "edges.csv").write_text(f"lhs,relation,rhs\n5,likes,{world.name('item', 1)}\n")
    assert features(*ask, "--fold-in", tmp_path / "edges.csv") == 0
    found = read(tmp_path / "out")
    assert (found["c"].to_pylist(), found["has_vector"].to_pylist()) == ([5, None, 2], [True, False, False])


def test_errors_about_edges_name_the_option_that_gave_them(tmp_path, world, features, capsys, caplog):
    pq.write_table(pa.table({"c": [world.name("user", 1)]}), tmp_path / "t.parquet")
    ask = [tmp_path / "t.parquet", "--column", "c", "--type", "user", "--fold-in"]
    assert features(*ask, tmp_path / "missing.csv") == 2
    assert f"--fold-in: {tmp_path}/missing.csv" in capsys.readouterr().err
    edges = write_edges(tmp_path / "known.parquet", [(world.name("user", 1), "likes", world.name("item", 1))])
    assert features(*ask, edges) == 0
    assert "features: new edges: expected ids that the run does not know, found none" in caplog.text
    record = json.loads((tmp_path / "run/run.json").read_text())
    tables = [{"path": "t.csv", "lhs": lhs, "rhs": "b", "relation": "likes"} for lhs in ("a", "c")]
    record["config"]["etl"] = {"tables": tables}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    (tmp_path / "edges.csv").write_text(f"a,b\n5,{world.name('item', 1)}\n")
    assert features(*ask, tmp_path / "edges.csv") == 2
    said = capsys.readouterr().err
    assert "--fold-in: the run has 2 kinds of tables" in said
    assert "run `graphmill fold-in` with --lhs, --rhs" in said


def test_principal_components(tmp_path: Path, world: World, features: Command, table: pa.Table) -> None:
    ask = [tmp_path / "orders.parquet", "--column", "customer", "--type", "user"]
    assert features(*ask, "--components", 4, "--as-columns") == 0
    assert features(*ask, "--components", 4, to="lists") == 0
    vectors = world.vectors["user"].astype(np.float64)
    centred = vectors - vectors.mean(0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    projected = dict(zip(world.by_id("user"), centred @ axes[:4].T, strict=True))
    found = read(tmp_path / "out")
    assert found.column_names[5:] == [*(f"component_{number}" for number in range(4)), "has_vector"]
    rows = np.array([found[f"component_{number}"].to_numpy() for number in range(4)]).T
    lists = read(tmp_path / "lists")["components"].to_pylist()
    for name, row, as_list in zip(table["customer"].to_pylist(), rows, lists, strict=True):
        if name in projected:
            np.testing.assert_allclose(row, projected[name], atol=1e-5)
        assert np.isnan(row).all() == (name not in projected)
        assert as_list == (row.tolist() if name in projected else None)
    shares = figures(tmp_path / "out")["explained_variance"]["user"]
    np.testing.assert_allclose(shares, (spread**2 / (spread**2).sum())[:4], atol=1e-5)


def test_similarity(tmp_path: Path, world: World, features: Command, table: pa.Table) -> None:
    names = [world.name("user", number) for number in (2, 11)]
    (tmp_path / "ids.txt").write_text("\n".join([*names, names[0]]) + "\n")
    ask = [tmp_path / "orders.parquet", "--column", "customer", "--type", "user"]
    assert features(*ask, "--similar-to", tmp_path / "ids.txt") == 0
    found = read(tmp_path / "out")
    assert found.column_names[5:] == [*(f"similarity_{name}" for name in names), "has_vector"]
    unit = {raw_id: row / np.linalg.norm(row) for raw_id, row in world.by_id("user").items()}
    for name in names:
        expected = [
            pytest.approx(unit[each] @ unit[name], abs=1e-6) if each in unit else None
            for each in found["customer"].to_pylist()
        ]
        assert found[f"similarity_{name}"].to_pylist() == expected


def test_several_columns(tmp_path: Path, world: World, features: Command) -> None:
    users = [world.name("user", number) for number in (1, 15)]
    items = [world.name("item", number) for number in (29, 0)]
    pq.write_table(pa.table({"user": users, "item": items}), tmp_path / "t.parquet")
    ask = [tmp_path / "t.parquet", "--column", "user", "--type", "user"]
    ask += ["--column", "item", "--type", "item", "--as-columns", "--prefix", "g_"]
    assert features(*ask) == 0
    found = read(tmp_path / "out")
    stems = [f"g_{each}_" for each in ("user", "item")]
    numbers = [f"vector_{number}" for number in range(DIMENSION)]
    made = [f"{stem}{name}" for stem in stems for name in [*numbers, "has_vector"]]
    assert found.column_names == ["user", "item", *made]
    for kind, ids in (("user", users), ("item", items)):
        rows = np.array([found[f"g_{kind}_{name}"].to_numpy() for name in numbers]).T
        assert rows.tolist() == expected(world, ids, kind)


@pytest.mark.slow
def test_folded_ids(tmp_path: Path, world: World, features: Command, graphmill_command: Command) -> None:
    known = world.name("user", 3)
    pq.write_table(pa.table({"c": ["new", known, "nobody", "new"]}), tmp_path / "t.parquet")
    edges = write_edges(tmp_path / "e.parquet", [("new", "likes", world.name("item", n)) for n in (1, 4, 9)])
    ask = [tmp_path / "t.parquet", "--column", "c", "--type", "user"]
    assert features(*ask, "--fold-in", edges) == 0
    assert graphmill_command("fold-in", tmp_path / "run", "--edges", edges, "--to", tmp_path / "new") == 0
    folded = remapped.read_part(str(tmp_path / "new"), "user", 0)
    found = read(tmp_path / "out")
    wanted = folded["embedding"][0].as_py()
    assert found["vector"].to_pylist() == [wanted, expected(world, [known])[0], None, wanted]
    assert found["has_vector"].to_pylist() == [True, True, False, True]
    confidence = pq.read_table(tmp_path / "new/user/part-00000.parquet")["confidence"][0].as_py()
    assert found["confidence"].to_pylist() == [confidence, None, None, confidence]
    counts = figures(tmp_path / "out")["columns"]["c"]
    assert (counts["num_found"], counts["num_folded_in"], counts["num_missing"]) == (1, 2, 1)
    assert features(*ask, "--fold-in", tmp_path / "new", to="again") == 0
    assert read(tmp_path / "again").equals(found)
    old = write_edges(tmp_path / "old.parquet", [(known, "likes", world.name("item", 1))])
    assert features(*ask, "--fold-in", old, to="none") == 0  # nothing is new
    assert read(tmp_path / "none")["has_vector"].to_pylist() == [False, True, False, False]


def test_an_empty_table(tmp_path: Path, world: World, features: Command) -> None:
    (tmp_path / "t.csv").write_text("a,c\n")
    assert features(tmp_path / "t.csv", "--column", "c", "--type", "user") == 0
    found = read(tmp_path / "out")
    assert found.column_names == ["a", "c", "vector", "has_vector"]
    assert found.schema.types[:2] == [pa.string(), pa.string()]
    assert len(found) == 0


def test_columns_that_folders_name(tmp_path: Path, world: World, features: Command) -> None:
    for day in ("01", "02"):
        (tmp_path / f"t/day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"c": [world.name("user", int(day))]}), tmp_path / f"t/day={day}/x.parquet")
    assert features(tmp_path / "t", "--column", "c", "--type", "user") == 0
    assert read(tmp_path / "out")["day"].to_pylist() == ["01", "02"]


@pytest.mark.slow
def test_wrong_files(tmp_path, world, features, capsys):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"c": [world.name("user", 1)]}), tmp_path / "t/a.parquet")
    ask = [tmp_path / "t", "--column", "c", "--type", "user"]
    (tmp_path / "ids").write_text("nobody\n")
    assert features(*ask, "--similar-to", tmp_path / "ids") == 2
    assert "expected ids of 'user', found 1 others: 'nobody'" in capsys.readouterr().err
    for name, text in (("empty", ""), ("header.csv", "name\n")):
        (tmp_path / name).write_text(text)
        assert features(*ask, "--similar-to", tmp_path / name) == 2
        assert "expected 1 to 1000 ids, found none" in capsys.readouterr().err
    pq.write_table(pa.table({"c": ["x"], "more": [1]}), tmp_path / "t/b.parquet")
    assert features(*ask) == 2
    assert "b.parquet: expected 1 columns as in the first file, found 2" in capsys.readouterr().err
    pq.write_table(pa.table({"c": [b"\xff"]}), tmp_path / "t/b.parquet")
    assert features(*ask) == 2
    assert "column 'c' (c): expected string, as in the first file" in capsys.readouterr().err
    known = world.name("user", 1)
    (tmp_path / "é.csv").write_bytes(f"c\né\n{known}\n".encode("latin-1"))
    latin = [tmp_path / "é.csv", *ask[1:]]
    assert features(*latin, to="latin") == 2
    assert features(*latin, "--encoding", "latin-1", to="latin") == 0
    assert read(tmp_path / "latin")["c"].to_pylist() == ["é", known]
