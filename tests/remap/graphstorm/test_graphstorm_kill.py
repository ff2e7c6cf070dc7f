"""Killed commands and workers, full disks, HDFS: whatever was there is still there, and the next run ends."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from graphmill import storage
from graphmill.cli import remap
from remap.graphstorm import commit, job
from tests.commands import on_cluster
from tests.contents import contents
from tests.forked import Forks, Kill
from tests.hadoop.files import upload
from tests.processes import full_disk
from tests.remap.saved import Cli, Refused, Rows, Tree, save
from tests.workers import workers

pytestmark = pytest.mark.slow

really_write_table = job.write_table


def write_or_die(output: Any, *arguments: Any) -> int:
    """Write a table; before the third one a worker dies, once for each byte of the file `deaths`."""
    deaths = Path(output.root).parent / "deaths"
    if output.path.endswith("_00002") and (left := deaths.read_bytes()):
        deaths.write_bytes(left[1:])
        os.kill(os.getpid(), signal.SIGKILL)
    return really_write_table(output, *arguments)


@pytest.fixture
def expected(tree: Tree) -> Rows:
    """Embeddings to be remapped into many tables; what they should be."""
    return tree.write_users([50, 50])


def words(tree: Tree) -> list[Any]:
    return tree.arguments("--output-chunk-size", 10)


def check_next_run(tree: Tree, cli: Cli, expected: Rows) -> None:
    assert cli(*words(tree)) == 0
    assert tree.embeddings() == expected
    assert tree.inputs() == {}
    assert not (tree.emb / commit.WORK).exists()


@pytest.mark.parametrize("number", [0, 2, 9])
def test_killed_while_writing(tree: Tree, cli: Cli, expected: Rows, forked: Forks, number: int) -> None:
    before = tree.inputs()
    forked("graphmill", "remap", *words(tree), kill=Kill(number, "embed-*.parquet", is_after=True))
    assert tree.inputs() == before
    assert tree.embeddings() == {}
    check_next_run(tree, cli, expected)


def test_a_killed_worker(tree: Tree, monkeypatch: pytest.MonkeyPatch, expected: Rows, capsys: Any) -> None:
    """One death is made good; after a hundred the input is as it was."""
    monkeypatch.setattr(job, "write_table", write_or_die)
    (tree.root / "deaths").write_bytes(bytes(1))
    with workers(2) as client:
        cli = on_cluster(client, monkeypatch, remap.command)
        check_next_run(tree, cli, expected)
        tree.write_embeddings("user", [50, 50])
        before, tables = tree.inputs(), tree.tables()
        (tree.root / "deaths").write_bytes(bytes(100))
        assert cli(*words(tree)) == 1
        # One that dies while it is started anew is lost to Dask for good.
        died = r"^error: remapping: (the task's worker died \d times|all workers died)"
        assert re.search(died, capsys.readouterr().err, re.MULTILINE)
        assert (tree.inputs(), tree.tables()) == (before, tables)


def test_disk_full(tree: Tree, cli: Cli, expected: Rows, refused: Refused) -> None:
    before = contents(tree.emb)
    with full_disk(900):  # less than one table takes
        refused("File too large", *words(tree), code=1)
    assert contents(tree.emb) == before
    check_next_run(tree, cli, expected)


@pytest.mark.hdfs
def test_embeddings_and_predictions(tree: Tree, cli: Cli, hdfs_uri: str) -> None:
    expected = tree.write_users([100, 0, 200], num_files=3)
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
