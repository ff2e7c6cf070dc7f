"""Remapping what GraphStorm saved: the same tables as its own command writes, and every form of input."""

import csv
import logging
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask import ids as strings
from graphmill.errors import FormatError
from remap.graphstorm import id_map
from tests import DATA
from tests.contents import contents
from tests.remap.saved import Cli, Refused, Tree, raw_id, save


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
    before = contents(golden / kind)
    arguments = ["--node-id-mapping", golden / "raw_id_mappings", "--prediction-dir", golden / kind]
    assert cli(*arguments, "--output-dir", tmp_path / "out", "--preserve-input", "True") == 0
    check_tables(tmp_path / "out", golden / "output" / kind)
    assert contents(golden / kind) == before


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


@pytest.mark.parametrize("form", ["nested", "older columns", "one file", "integers as text", "views"])
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
        elif form == "views":
            pq.write_table(pa.table({"orig": orig.cast(pa.string_view()), "new": new}), path)
    assert cli(*tree.arguments()) == 0
    assert tree.embeddings() == expected


@pytest.mark.parametrize(("first", "kind"), [(1000, pa.int64()), (2**63 - 5, pa.uint64())])
def test_integer_raw_ids_stay_integers(tree: Tree, cli: Cli, first: int, kind: pa.DataType) -> None:
    expected = tree.write_users([10], num_files=1)
    tree.write_map_file("user", 0, pa.array(range(first, first + 10), kind), range(10))
    assert cli(*tree.arguments()) == 0
    table = pq.read_table(tree.emb / "user/embed-00000_00000.parquet")
    assert table.schema.field("nid").type == kind
    found = zip(table["nid"].to_pylist(), table["emb"].to_pylist(), strict=True)
    assert {raw_id("user", nid - first): row for nid, row in found} == expected


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


def test_places_beyond_32_bits_and_texts_of_a_slice() -> None:
    assert id_map.MapPlan("user", "", pa.string(), 1 << 32, ()).place_dtype == np.uint64
    chars, ends = id_map._split(pa.array(["a", "bc", "", "d"])[1:])
    assert (chars.tobytes(), ends.tolist()) == (b"bcd", [0, 2, 2, 3])


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


def test_tables_of_an_earlier_job_are_replaced(tree: Tree, cli: Cli) -> None:
    for output_format in ("csv", "parquet"):
        tree.write_users([0, 8, 0])
        assert cli(*tree.arguments("--output-chunk-size", 2, "--output-format", output_format)) == 0
    expected = tree.write_embeddings("user", [0, 8, 0])
    assert cli(*tree.arguments("--output-chunk-size", 5)) == 0
    assert tree.tables() == [f"emb/user/embed-00001_0000{n}.parquet" for n in range(2)]  # none of empty ranks
    assert tree.embeddings() == expected
    assert tree.inputs() == {}


def test_the_launchers_yaml(tree: Tree, cli: Cli) -> None:
    tree.write_map("item", 4)
    tree.write_users([4])
    folder = tree.pred / "user_likes_a_lot_item"
    for stem in ("predict", "src_nids", "dst_nids"):
        save(folder / f"{stem}-00000.pt", torch.arange(4))
    task = {"target_etype": ["user,likes_a_lot,item"], "task_type": "edge_classification"}
    assert cli("--cf", write_yaml(tree, edge_classification=task), "--logging-level", "warning") == 0
    assert tree.tables() == [
        "emb/user/embed-00000_00000.parquet",
        "pred/user_likes_a_lot_item/pred.predict-00000_00000.parquet",
    ]
    assert tree.inputs() == {}


def test_ranks(tree: Tree, cli: Cli) -> None:
    expected = tree.write_users([2, 2])
    before = contents(tree.root)
    assert cli(*tree.arguments("--rank", 1, "--world-size", 2)) == 0  # rank 0 does it all
    assert contents(tree.root) == before
    assert cli(*tree.arguments("--rank", 0, "--world-size", 2)) == 0
    assert tree.embeddings() == expected
    tree.write_embeddings("user", [2, 2])
    for path in (tree.emb / "user").glob("embed*-00000*"):
        path.unlink()
    (tree.emb / "emb_info.json").unlink()  # a rank with files of its own
    assert cli(*tree.arguments("--rank", 1, "--world-size", 2, "--with-shared-fs", "false")) == 0
    assert tree.tables() == ["emb/user/embed-00001_00000.parquet"]
    assert tree.inputs() == {}


# Inputs that GraphStorm's own command takes, and tables of ids.

IDS = [raw_id("user", nid) for nid in range(4)]
PREDICTED = "pred/user/pred.predict-00000_00000.parquet"


@pytest.fixture
def users(tree: Tree) -> Tree:
    """A map of 4 users, and embeddings of one rank, which are ones."""
    tree.write_map("user", 4)
    save(tree.emb / "user/embed-00000.pt", torch.ones(4, 2))
    save(tree.emb / "user/embed_nids-00000.pt", torch.arange(4))
    tree.write_emb_info(["user"], 1)
    return tree


def write_yaml(tree: Tree, **sections: object) -> Path:
    output = {"save_embed_path": str(tree.emb), "save_prediction_path": str(tree.pred)}
    basic = {"part_config": str(tree.root / "graph.json")}
    tree.root.mkdir(exist_ok=True)
    path = tree.root / "gs.yaml"
    path.write_text(yaml.safe_dump({"gsf": {"basic": basic, "output": output, **sections}}))
    return path


def table(tree: Tree, place: str = "emb/user/embed-00000_00000.parquet") -> pa.Table:
    return pq.read_table(tree.root / place)


@pytest.mark.parametrize(
    ("dtype", "arrow", "width"),
    [
        (torch.int64, pa.int64(), 2),
        (torch.int32, pa.int32(), None),
        (torch.uint8, pa.uint8(), 2),
        (torch.bool, pa.bool_(), None),
        (torch.float16, pa.float16(), None),
        (torch.bfloat16, pa.float32(), 2),  # parquet has none
        (torch.float64, pa.float64(), 2),
    ],
)
def test_every_type_of_number(users, cli, dtype, arrow, width):
    """GraphStorm's emb_dim of a 1-D tensor is its number of rows, of rank 0."""
    rows = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=dtype)
    rows = rows if width else rows[:, 0].clone()
    save(users.emb / "user/embed-00000.pt", rows)
    users.write_emb_info(["user"], 1, emb_dim={"user": width or 4})
    assert cli(*users.arguments()) == 0
    found = table(users)
    kind = found.schema.field("emb").type
    assert (kind.value_type if width else kind) == arrow
    assert found.to_pydict() == {"emb": rows.tolist(), "nid": IDS}


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_numbers_in_other_tables(users: Tree, cli: Cli, dtype: torch.dtype) -> None:
    rows = torch.tensor([[1, -2], [3, 0]] * 2, dtype=dtype)
    save(users.emb / "user/embed-00000.pt", rows)
    flags = users.arguments("--preserve-input", "true")
    assert cli(*flags, "--fixed-size-list", "--value-compression", "zstd", "--compression", "lz4") == 0
    parquet = pq.ParquetFile(users.emb / "user/embed-00000_00000.parquet")
    assert parquet.schema_arrow.field("emb").type.list_size == 2
    assert [parquet.metadata.row_group(0).column(n).compression for n in range(2)] == ["ZSTD", "LZ4"]
    assert parquet.read().to_pydict()["emb"] == rows.tolist()
    assert cli(*flags, "--output-format", "csv") == 0
    lines = (users.emb / "user/embed-00000_00000.csv").read_text().splitlines()
    found = [[float(text) for text in line.split(",")[0].split(";")] for line in lines[1:]]
    assert found == rows.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_hdf5(tree: Tree, cli: Cli, dtype: type) -> None:
    """`save_embeddings` with the format hdf5: one file, rows in the order of the ids."""
    tree.write_map("user", 4)
    rows = np.arange(8).reshape(4, 2).astype(dtype)
    tree.emb.mkdir(parents=True)
    with h5py.File(tree.emb / "embed_dict.hdf5", "w") as hdf5:
        hdf5["user"] = rows
    (tree.emb / "emb_info.json").write_text('{"format": "hdf5", "emb_dim": {"user": 2}, "world_size": 0}')
    assert cli(*tree.arguments("--output-chunk-size", 3)) == 0
    tables = [table(tree, f"emb/user/embed-00000_0000{number}.parquet") for number in (0, 1)]
    assert pa.concat_tables(tables).to_pydict() == {"emb": rows.tolist(), "nid": IDS}
    assert not (tree.emb / "embed_dict.hdf5").exists()


def test_the_yaml_comes_before_the_flags(users: Tree, cli: Cli, tmp_path: Path) -> None:
    """GraphStorm's own script passes a folder of maps that is not there beside --cf."""
    absent = tmp_path / "absent"
    flags = ["--node-id-mapping", absent, "--node-emb-dir", absent, "--prediction-dir", absent]
    users.write_predictions("user", types=["user"])
    assert cli("--cf", write_yaml(users), *flags, "--pred-ntypes", "nobody") == 0
    assert users.tables() == ["emb/user/embed-00000_00000.parquet", PREDICTED]


def test_a_launcher_s_other_flags(users: Tree, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    """GraphStorm's launchers pass all flags of the training; those that name folders win over the YAML."""
    moved = users.emb.rename(users.root / "elsewhere")
    flags = ["--ip-config", "ips.txt", "--part-config", users.root / "graph.json", "--num-epochs", 3]
    users.write_predictions("user", types=["user"])
    yaml_path = write_yaml(users, basic={"part_config": "/absent/graph.json"})
    more = ["--save-embed-path", moved, "--use-mini-batch-infer", "false", "--fanout", "5,5"]
    with caplog.at_level(logging.INFO, logger="graphmill"):
        assert cli("--cf", yaml_path, *flags, *more, "--rank", 0, "--world-size", 1) == 0
    assert "elsewhere/user/embed-00000_00000.parquet" in users.tables()
    assert "--ip-config, --num-epochs, --use-mini-batch-infer, --fanout: not of this command" in caplog.text


def test_a_run_that_saved_nothing(tree: Tree, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    """A launcher calls the command after every training."""
    path = write_yaml(tree, output={})
    with caplog.at_level(logging.WARNING, logger="graphmill"):
        assert cli("--cf", path) == 0
        assert cli("--cf", write_yaml(tree, output={"save_embed_path": str(tree.emb)})) == 0
    assert caplog.text.count("nothing to remap") == 2
    assert not tree.emb.exists()


def test_types_of_no_predictions_are_skipped(users: Tree, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    users.write_predictions("user", types=["user"])
    flags = users.prediction_arguments("--pred-ntypes", "user", "item", "--pred-etypes", "a,b,c")
    with caplog.at_level(logging.WARNING, logger="graphmill"):
        assert cli(*flags) == 0
    assert users.tables() == [PREDICTED]
    for name in ("item", "a_b_c"):
        assert f"{users.pred}/{name}: there is no such folder; the type is skipped" in caplog.text


def test_what_is_not_there_is_refused(users: Tree, cli: Cli) -> None:
    """A type of the JSON without a folder; and flags of others without the YAML."""
    users.write_predictions("user", types=["user", "item"])
    assert cli(*users.prediction_arguments()) == 2
    assert cli(*users.arguments("--num-epochs", 3)) == 2
    assert users.tables() == []


def test_tasks_of_the_yaml(users: Tree, cli: Cli) -> None:
    """Multi-task: each task's predictions in a folder of its own; a task that predicted nothing has none."""
    tasks = [
        {"node_classification": {"target_ntype": "user", "label_field": "a"}},
        {"node_regression": {"target_ntype": "user", "label_field": "b"}},
        {"link_prediction": {}},
    ]
    users.write_predictions("node_classification-user-a/user", types=["user"])
    assert cli("--cf", write_yaml(users, multi_task_learning=tasks)) == 0
    assert users.tables() == [
        "emb/user/embed-00000_00000.parquet",
        "pred/node_classification-user-a/user/pred.predict-00000_00000.parquet",
    ]


def test_a_task_without_its_json_is_refused(users: Tree, cli: Cli, refused: Refused) -> None:
    """On a machine of its own, a rank has no result_info.json, and no task tells its types."""
    users.write_predictions("nc/user")
    tasks = [{"node_classification": {"target_ntype": "user"}}]
    flags = ["--cf", write_yaml(users, output={"save_prediction_path": str(users.pred)})]
    message = "no such file; give the types: --pred-ntypes, --pred-etypes"
    refused(message, *flags, "--with-shared-fs", "false")
    assert cli("--cf", write_yaml(users, multi_task_learning=tasks), "--with-shared-fs", "false") == 2
    assert users.tables() == []


@pytest.mark.slow
@given(
    ids=st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True),
    num_files=st.integers(1, 4),
    group_rows=st.integers(1, 9),
    part_rows=st.integers(1, 12),
    seed=st.integers(0, 1000),
    has_repeated=st.booleans(),
)
def test_any_map_is_looked_up_right(
    tmp_path_factory, ids, num_files, group_rows, part_rows, seed, has_repeated
):
    ids += ids[:has_repeated]
    root = tmp_path_factory.mktemp("map")
    new = np.random.default_rng(seed).permutation(len(ids))
    (root / "t").mkdir()
    for number, part in enumerate(np.array_split(new, num_files)):
        table = pa.table({"orig": pa.array([ids[n] for n in part], pa.string()), "new": part})
        pq.write_table(table, root / f"t/part-{number}.parquet", row_group_size=group_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_map, "PART_ROWS", part_rows)
        patch.setattr(id_map, "DISTINCT_ROWS", part_rows)
        plan = id_map.plan_map(str(root), "t", "0")
        assert sum(part.num_rows for part in plan.parts) == len(ids)
        if has_repeated:
            with pytest.raises(FormatError, match="expected one"):
                id_map.open_table(plan, str(root))
            return
        table = id_map.open_table(plan, str(root))
    nids = np.random.default_rng(seed + 1).integers(0, len(ids), 100)
    assert table.take(nids, "x", 0).to_pylist() == [ids[n] for n in nids]
    with pytest.raises(FormatError, match=rf"x: row 7: the id is {len(ids)}"):
        table.take(np.array([0, len(ids)]), "x", 6)


@given(texts=st.lists(st.text(max_size=20), max_size=50), first=st.integers(0, 3), is_compiled=st.booleans())
def test_what_comes_twice_is_found(texts: list[str], first: int, is_compiled: bool) -> None:
    ids = pa.array(["x"] * first + texts, pa.string())[first:]
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(strings, "library", lambda: None)
        hashes = strings.hashes_of(ids)
        suspects = strings.repeated(hashes.copy())
        assert len(suspects) == len({each for each in texts if texts.count(each) > 1})
        found = strings.first_repeated([ids[:7], ids[7:]], suspects)
    if len(set(texts)) == len(texts):
        assert found is None
    else:
        second = next(row for row, each in enumerate(texts) if each in texts[:row])
        assert found == (texts[second], texts.index(texts[second]), second)
