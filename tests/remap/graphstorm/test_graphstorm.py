"""Remapping what GraphStorm saved: the same tables as its own command writes, and the odd forms of input."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests import DATA
from tests.remap.saved import Cli, Tree, raw_id, save, snapshot


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "graphstorm", tmp_path / "golden"))


def check_tables(found: Path, expected: Path) -> None:
    """The same files, columns, types and values, in the same order."""
    tables = {path.relative_to(found) for path in found.rglob("*.parquet")}
    assert tables == {path.relative_to(expected) for path in expected.rglob("*.parquet")}
    assert tables
    for path in tables:
        ours, theirs = pq.read_table(found / path), pq.read_table(expected / path)
        assert ours.schema.remove_metadata() == theirs.schema.remove_metadata()
        assert ours.to_pydict() == theirs.to_pydict()


def test_golden_embeddings(golden: Path, cli: Cli) -> None:
    arguments = ["--node-id-mapping", golden / "raw_id_mappings", "--node-emb-dir", golden / "emb"]
    assert cli(*arguments, "--output-chunk-size", 40, "--num-processes", 2) == 0
    check_tables(golden / "emb", golden / "output/emb")
    assert not list((golden / "emb").rglob("*.pt"))
    names = {path.name for path in (golden / "emb").iterdir()}
    assert names == {"_SUCCESS", "emb_info.json", "item", "user"}


@pytest.mark.parametrize("kind", ["pred_node", "pred_edge"])
def test_golden_predictions(golden: Path, tmp_path: Path, cli: Cli, kind: str) -> None:
    before = snapshot(golden / kind)
    arguments = ["--node-id-mapping", golden / "raw_id_mappings", "--prediction-dir", golden / kind]
    assert cli(*arguments, "--output-dir", tmp_path / "out", "--preserve-input", "True") == 0
    check_tables(tmp_path / "out", golden / "output" / kind)
    assert snapshot(golden / kind) == before


def test_both_at_once_and_types_by_flags(golden: Path, cli: Cli) -> None:
    code = cli(
        *("--node-id-mapping", golden / "raw_id_mappings"),
        *("--prediction-dir", golden / "pred_edge"),
        *("--node-emb-dir", golden / "emb"),
        *("--pred-etypes", "item,also_viewed,item"),
        *("--preserve-input", "0"),
    )
    assert code == 0
    folder = "item_also_viewed_item"
    check_tables(golden / "pred_edge" / folder, golden / "output/pred_edge" / folder)
    # What was not asked for is left alone.
    assert len(list((golden / "pred_edge/user_rated-by_item").glob("*.pt"))) == 6
    assert len(list((golden / "emb").rglob("*.parquet"))) == 4


@pytest.mark.parametrize("form", ["nested", "older columns", "one file", "integers as text"])
def test_every_form_of_map(tree: Tree, cli: Cli, form: str) -> None:
    expected = tree.write_users([4, 6])
    files = sorted((tree.maps / "user").iterdir())
    tables = [pq.read_table(path) for path in files]
    if form == "one file":
        shutil.rmtree(tree.maps / "user")
        pq.write_table(pa.concat_tables(tables), tree.maps / "user_id_remap.parquet")
    elif form == "nested":
        (tree.maps / "user/parquet").mkdir()
        for number, path in enumerate(files):
            path.rename(tree.maps / f"user/parquet/part-0000{number}-c0ffee.c000.snappy.parquet")
        (tree.maps / "user/parquet/_SUCCESS").touch()
    for path, table in zip(files, tables, strict=True):
        orig, new = table["orig"], table["new"]
        if form == "older columns":
            pq.write_table(pa.table({"node_str_id": orig, "node_int_id": new}), path)
        elif form == "integers as text":
            encoded = orig.cast(pa.large_string()).dictionary_encode()
            pq.write_table(pa.table({"orig": encoded, "new": new.cast(pa.int32())}), path)
    assert cli(*tree.arguments()) == 0
    assert tree.embeddings() == expected


def test_integer_raw_ids_stay_integers(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([10], num_files=1)
    tree.write_map_file("user", 0, range(1000, 1010), range(10))
    assert cli(*tree.arguments()) == 0
    table = pq.read_table(tree.emb / "user/embed-00000_00000.parquet")
    assert table.schema.field("nid").type == pa.int64()
    found = zip(table["nid"].to_pylist(), table["emb"].to_pylist(), strict=True)
    assert {raw_id("user", nid - 1000): row for nid, row in found} == expected


def test_empty_ranks_write_no_table_and_are_no_fault(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([0, 5, 0])
    assert cli(*tree.arguments()) == 0
    assert tree.embeddings() == expected
    assert tree.tables() == ["emb/user/embed-00001_00000.parquet"]
    assert tree.inputs() == {}


def test_without_files_of_ids(tree: Tree, cli: Cli) -> None:
    tree.write_map("user", 7)
    vectors = tree.rng.standard_normal((7, 4), np.float32)
    for rank, part in enumerate((vectors[:2], vectors[2:4], vectors[4:])):
        save(tree.emb / f"user/embed-{rank:05d}.pt", part)
    tree.write_emb_info("user", 3)
    assert cli(*tree.arguments()) == 0
    assert tree.embeddings() == {raw_id("user", nid): row for nid, row in enumerate(vectors.tolist())}


def test_tasks_of_a_multi_task_run(tree: Tree, cli: Cli) -> None:
    tree.write_map("user", 6)
    tree.write_map("item", 3, 1)
    tree.write_embeddings("user", [6])
    tree.write_embeddings("user", [6], folder="link_prediction-all")
    tree.write_emb_info(["user"], 1)
    tree.write_predictions("nc-user/user", 6, types=["user"])
    tree.write_predictions("nr-item/item", 3, types=["item"])
    assert cli(*tree.arguments("--prediction-dir", tree.pred)) == 0
    assert tree.tables() == [
        "emb/link_prediction-all/user/embed-00000_00000.parquet",
        "emb/user/embed-00000_00000.parquet",
        "pred/nc-user/user/pred.predict-00000_00000.parquet",
        "pred/nr-item/item/pred.predict-00000_00000.parquet",
    ]
    table = pq.read_table(tree.root / tree.tables()[-1]).to_pydict()
    assert table == {"pred": [0.0, 0.5, 1.0], "nid": [raw_id("item", nid) for nid in range(3)]}
    assert tree.inputs() == {}


def test_other_folders_of_types_among_the_embeddings(tree: Tree, cli: Cli) -> None:
    """Predictions, a model and an earlier output below the embeddings are not tasks of theirs."""
    tree.write_users([3, 5])
    tree.pred = tree.emb / "predictions"
    tree.write_predictions("user", 8, types=["user"])
    save(tree.emb / "epoch-0/user/sparse_emb_00000.pt", torch.ones(8, 4))
    arguments = tree.arguments("--output-dir", tree.emb / "out", "--preserve-input", "true")
    tables = ["embed-00000_00000", "embed-00001_00000", "pred.predict-00000_00000"]
    for _ in range(2):
        assert cli(*arguments, "--prediction-dir", tree.pred) == 0
        assert tree.tables() == [f"emb/out/user/{name}.parquet" for name in tables]


def test_csv(tree: Tree, cli: Cli) -> None:
    odd = ["plain", 'quo"te', "com,ma", "new\nline", "", " space"]
    tree.write_map_file("user", 0, odd, range(6))
    vectors = torch.tensor([[0.1, 1e-30], [1.0, -2.5], [3e38, 0.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    save(tree.emb / "user/embed-00000.pt", vectors)
    save(tree.emb / "user/embed_nids-00000.pt", torch.arange(6))
    tree.write_emb_info(["user"], 1)
    names = ["--column-names", "nid,~id", "emb,vector:Float[]"]
    assert cli(*tree.arguments("--output-format", "csv", *names)) == 0
    with (tree.emb / "user/embed-00000_00000.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["~id"] for row in rows] == odd
    found = [[float(text) for text in row["vector:Float[]"].split(";")] for row in rows]
    assert found == vectors.double().tolist()
    tree.write_predictions("user", torch.tensor([5, -1, 0]), nids=torch.tensor([2, 0, 1]))
    arguments = tree.prediction_arguments("--pred-ntypes", "user", "--output-format", "csv")
    assert cli(*arguments, "--output-delimiter", "\t") == 0
    text = (tree.pred / "user/pred.predict-00000_00000.csv").read_text()
    assert text.splitlines() == ["pred\tnid", '5\t"com,ma"', '-1\t"plain"', '0\t"quo""te"']


def test_vectors_of_fixed_size_and_compression(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([8])
    more = ["--fixed-size-list", "--value-compression", "zstd", "--compression", "lz4"]
    assert cli(*tree.arguments(*more)) == 0
    parquet = pq.ParquetFile(tree.emb / "user/embed-00000_00000.parquet")
    assert parquet.schema_arrow.field("emb").type == pa.list_(pa.float32(), 4)
    assert [parquet.metadata.row_group(0).column(n).compression for n in range(2)] == ["ZSTD", "LZ4"]
    assert tree.embeddings() == expected


def test_tables_of_an_earlier_job_are_replaced(tree: Tree, cli: Cli) -> None:
    tree.write_users([8])
    assert cli(*tree.arguments("--output-chunk-size", 2)) == 0
    expected = tree.write_embeddings("user", [8])
    assert cli(*tree.arguments("--output-chunk-size", 5)) == 0
    assert tree.tables() == [f"emb/user/embed-00000_0000{n}.parquet" for n in range(2)]
    assert tree.embeddings() == expected


def test_the_launchers_yaml(tree: Tree, cli: Cli, tmp_path: Path) -> None:
    tree.write_map("item", 4)
    tree.write_users([4])
    folder = tree.pred / "user_likes_a_lot_item"
    for stem in ("predict", "src_nids", "dst_nids"):
        save(folder / f"{stem}-00000.pt", torch.arange(4))
    (tree.root / "gs.yaml").write_text(
        f"""
gsf:
  basic: {{part_config: {tree.root}/graph.json, num_layers: 1}}
  output: {{save_embed_path: {tree.emb}, save_prediction_path: {tree.pred}}}
  edge_classification: {{target_etype: ["user,likes_a_lot,item"], task_type: edge_classification}}
"""
    )
    assert cli("--cf", tree.root / "gs.yaml", "--logging-level", "warning") == 0
    assert tree.tables() == [
        "emb/user/embed-00000_00000.parquet",
        "pred/user_likes_a_lot_item/pred.predict-00000_00000.parquet",
    ]
    assert tree.inputs() == {}


def test_ranks(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([2, 2])
    before = snapshot(tree.root)
    assert cli(*tree.arguments("--rank", 1, "--world-size", 2)) == 0  # rank 0 does it all
    assert snapshot(tree.root) == before
    assert cli(*tree.arguments("--rank", 0, "--world-size", 2)) == 0
    assert tree.embeddings() == expected
    tree.write_embeddings("user", [2, 2])
    for path in (tree.emb / "user").glob("embed*-00000*"):
        path.unlink()
    (tree.emb / "emb_info.json").unlink()  # a rank with files of its own
    assert cli(*tree.arguments("--rank", 1, "--world-size", 2, "--with-shared-fs", "false")) == 0
    assert tree.tables() == ["emb/user/embed-00001_00000.parquet"]
    assert tree.inputs() == {}
