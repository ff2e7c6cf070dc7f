"""Everything on a real HDFS: raw tables, intermediate files, outputs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from distributed import Client

from etl import job
from etl.steps import spill
from etl.tables.files import TableFiles, find_all
from graphmill import storage
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import NotFoundError, RawTableError
from graphmill.storage import checksums
from tests.etl.graphs import config_of, files_under, read_raw_edges, same_bytes, write_parquet
from tests.hadoop.cluster import MiniHdfs
from tests.hadoop.files import files_at, upload
from tests.workers import workers

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def hdfs_client(hdfs: MiniHdfs) -> object:
    """Workers that know the test's HDFS: they are started after it."""
    with workers(2) as client:
        yield client


@pytest.mark.slow
def test_the_same_bytes_as_on_local_disk(hdfs_client, hdfs_uri, tmp_path, rng):
    """Twice, and a day later, without a file, from the edges of the first; a damaged bucket is refused."""
    ids = rng.integers(0, 300, (2, 5_000))
    write_parquet(tmp_path / "raw/a.parquet", 1_000, l=[f"u{n}" for n in ids[0]], t=[f"i{n}" for n in ids[1]])
    write_parquet(tmp_path / "raw/c.parquet", l=["u1", "u9"], t=["i7", "new"])
    (tmp_path / "raw/b.tsv").write_text("".join(f"u{n}\tseen\ti{n + 1}\n" for n in range(500)))
    upload(tmp_path / "raw", f"{hdfs_uri}/raw")

    def run(root: str, name: str, paths: list[str], **etl: object) -> dict[str, Any]:
        config = config_of(
            f"{root}/{name}",
            [
                {"path": paths, "relation": "bought"},
                {"path": "b.tsv", "header": False, "lhs": 0, "relation_column": 1, "rhs": 2},
            ],
            entities={"user": 2, "item": 2},
            relations=[("bought", "user", "item"), ("seen", "user", "item")],
            top={"input": f"{root}/raw"},
            holdout={"test": 0.2},
            chunk_rows=1_500,
            entity_names=True,
            **etl,
        )
        return job.run(config, hdfs_client)

    for root in (str(tmp_path), hdfs_uri):
        for _ in range(2):  # the second run replaces what the first has made
            run(root, "out", ["*.parquet"])
        earlier = {name: f"{root}/out/{name}" for name in ("entities", "edges")}
        day = {"previous_entity_path": earlier["entities"], "previous_edge_path": earlier["edges"]}
        assert run(root, "later", ["a.parquet"], **day)["delta"]["files_gone"] == 1
    on_hdfs = same_bytes(files_at(f"{hdfs_uri}/out"))
    assert on_hdfs == files_under(tmp_path / "out")
    assert len(on_hdfs) == 2 * 4 + 3 * 4 + 1 + 1 + 3 + 2  # the last: names of relations, checksums, counts
    later = same_bytes(files_at(f"{hdfs_uri}/later"))
    assert later == files_under(tmp_path / "later")
    uri = f"{hdfs_uri}/out/edges/train/edges_1_1.h5"
    content = bytearray(storage.read_bytes(uri))
    content[-9] ^= 1
    with storage.atomic_output(uri) as stream:
        stream.write(bytes(content))
    with pytest.raises(Exception, match=r"edges_1_1\.h5: expected the checksum"):
        run(hdfs_uri, "later", ["a.parquet"], **day)
    assert same_bytes(files_at(f"{hdfs_uri}/later")) == later


def test_names_on_hdfs(hdfs_uri: str, tmp_path: Path) -> None:
    """A file that is being copied is left out, a name with brackets is no pattern, content is compared."""
    names = ["run[1]/000000_0", "run[1]/000001_0._COPYING_", "run1/000000_0"]
    for name in [*names, "orders/delta_0000001_0000001/x"]:
        storage.write_text(f"{hdfs_uri}/{name}", "a,b\n")
    table = {"path": "*", "lhs": 0, "rhs": 1, "relation": "to", "header": False, "format": "csv"}

    def found(**top: str) -> TableFiles:
        tables = [table | {"path": top.pop("path", "*")}]
        config = config_of(tmp_path / "out", tables, top=top, compare_files="content")
        return find_all(config)[0]

    listing = found(input=f"{hdfs_uri}/run[1]")
    assert [each.uri for each in listing.files()] == [f"{hdfs_uri}/run[1]/000000_0"]
    assert listing.files()[0].checksum == checksums.of_bytes(b"a,b\n")
    assert listing.unfinished == (f"{hdfs_uri}/run[1]/000001_0._COPYING_",)
    assert found(path=f"{hdfs_uri}/run[1]").files() == listing.files()
    with pytest.raises(RawTableError, match=r"orders: .*a table of Hive"):
        found(path=f"{hdfs_uri}/orders")


def test_beside_files_of_the_user(hdfs_client: Client, hdfs_uri: str) -> None:
    """Edges in a folder of the entities, then in the same folder, as PBG's examples have them."""
    for name in ("graph/t.tsv", "graph/train/notes.txt"):
        storage.write_text(f"{hdfs_uri}/{name}", "l\tt\na\tb\n")
    for entity_path in ("graph", "graph/train"):
        places = {"entity_path": f"{hdfs_uri}/{entity_path}", "edge_root": f"{hdfs_uri}/graph"}
        config = config_of(f"{hdfs_uri}/out", f"{hdfs_uri}/graph/t.tsv", top=places)
        for _ in range(2):
            job.run(config, hdfs_client)
        files = files_at(f"{hdfs_uri}/graph")
        assert files["t.tsv"] == files["train/notes.txt"] == b"l\tt\na\tb\n"
        assert sum(map(len, read_raw_edges(config, "train").values())) == 1
        assert "train/edges_0_0.h5" in files
        assert not [name for name in files if "/." in f"/{name}"]


def test_intermediate_files_are_compressed_and_replicated(hdfs_uri: str) -> None:
    schema = pa.schema([("id", pa.string())])
    batch = pa.record_batch({"id": [f"an id that is long {n}" for n in range(10_000)]})
    uri = f"{hdfs_uri}/spill/ids.arrow"
    storage.make_dir(f"{hdfs_uri}/spill")
    spill.write_batches(
        uri, schema, [batch], EtlConfig.model_construct(spill_compression="lz4", work_replication=3)
    )
    assert spill.read_batches(uri).to_batches()[0].equals(batch)
    status = storage.status(uri)
    assert status.size_bytes < batch.nbytes / 2
    file_system, path = storage.filesystem(uri)
    found = file_system.handler.fs.client.get_file_info(path)
    assert found.replication == 3


def test_errors_name_the_file_on_hdfs(hdfs_client: Client, hdfs_uri: str) -> None:
    storage.write_text(f"{hdfs_uri}/raw/t.tsv", "l\tt\na\t\n")
    for path, error, message in (
        ("t.tsv", RawTableError, r"raw/t\.tsv: row 1 .*'t' \(rhs\): empty"),
        ("u.tsv", NotFoundError, r"raw/u\.tsv: no file there"),
    ):
        config = config_of(f"{hdfs_uri}/out", path, top={"input": f"{hdfs_uri}/raw"})
        with pytest.raises(error, match=message):
            job.run(config, hdfs_client)
