"""Remapping what lies on HDFS: the same tables as on local disks, and the inputs deleted there."""

import pyarrow.parquet as pq
import pytest

from graphmill import storage
from tests.remap.graph import upload
from tests.remap.saved import Cli, Tree, save

pytestmark = pytest.mark.hdfs


@pytest.mark.slow
def test_embeddings_and_predictions(tree: Tree, cli: Cli, hdfs_uri: str) -> None:
    tree.write_map("user", 300, 3)
    expected = tree.write_embeddings("user", [100, 0, 200])
    tree.write_emb_info(["user"], 3)
    folder = tree.pred / "user_knows_user"
    for stem, values in (("predict", [0.5, 1.5]), ("src_nids", [299, 0]), ("dst_nids", [7, 7])):
        save(folder / f"{stem}-00000.pt", values)
    upload(tree.root, hdfs_uri)
    arguments = [
        *("--node-id-mapping", f"{hdfs_uri}/raw_id_mappings"),
        *("--node-emb-dir", f"{hdfs_uri}/emb"),
        *("--prediction-dir", f"{hdfs_uri}/pred", "--pred-etypes", "user,knows,user"),
        *("--output-chunk-size", "64"),
    ]
    assert cli(*arguments) == 0
    left = [each.uri for each in storage.list_dir(hdfs_uri, recursive=True) if not each.is_dir]
    assert not [uri for uri in left if uri.endswith(".pt")]
    found = {}
    for uri in (uri for uri in left if "/emb/user/embed-" in uri):
        with storage.open_input(uri) as stream:
            table = pq.read_table(stream).to_pydict()
        found |= dict(zip(table["nid"], table["emb"], strict=True))
    assert found == expected
    with storage.open_input(f"{hdfs_uri}/pred/user_knows_user/pred.predict-00000_00000.parquet") as stream:
        assert pq.read_table(stream)["pred"].to_pylist() == [0.5, 1.5]
    assert storage.read_marker(f"{hdfs_uri}/emb") == storage.read_marker(f"{hdfs_uri}/pred") is not None
    assert cli(*arguments) == 2  # there is nothing left to remap


def test_a_fault_on_hdfs_loses_nothing(
    tree: Tree, cli: Cli, hdfs_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.write_map("user", 5)
    tree.write_embeddings("user", [5])
    tree.write_emb_info(["user"], 1)
    path = tree.emb / "user/embed-00000.pt"
    path.write_bytes(path.read_bytes()[:-100])
    upload(tree.root, hdfs_uri)
    arguments = ["--node-id-mapping", f"{hdfs_uri}/raw_id_mappings", "--node-emb-dir", f"{hdfs_uri}/emb"]
    assert cli(*arguments) == 2
    assert "embed-00000.pt: expected a file of one tensor, found damage" in capsys.readouterr().err
    assert storage.exists(f"{hdfs_uri}/emb/user/embed-00000.pt")
    assert storage.exists(f"{hdfs_uri}/emb/user/embed_nids-00000.pt")
