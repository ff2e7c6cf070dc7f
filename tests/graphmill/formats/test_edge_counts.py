"""Edges by bucket: believed where the manifest agrees, else counted in the bucket files."""

from pathlib import Path

import numpy as np
import pytest

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import Edges, bucket_uri
from graphmill.formats.edge_buckets.files import COUNTS, write_counts
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_file
from graphmill.vocab import Bucket

BUCKETS = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0)]


def edges_of(count: int) -> Edges:
    return Edges(*(np.arange(count),) * 3)


@pytest.fixture
def edge_path(tmp_path: Path) -> str:
    """Buckets of 3, 4 and 5 edges, with their counts and checksums."""
    checksums: Checksums = {}
    for bucket, count in zip(BUCKETS, (3, 4, 5), strict=True):
        with edge_buckets.new_bucket(str(tmp_path), bucket, count, checksums=checksums) as writer:
            writer.append(edges_of(count))
    write_counts(str(tmp_path), dict(zip(checksums, (3, 4, 5), strict=True)), checksums)
    storage.write_checksums(storage.manifest_of(str(tmp_path)).uri, checksums)
    return str(tmp_path)


def counts(edge_path: str) -> list[int]:
    return list(edge_buckets.count_all(edge_path, BUCKETS).values())


def test_no_bucket_is_opened(edge_path: str) -> None:
    for bucket in BUCKETS:
        Path(bucket_uri(edge_path, bucket)).write_bytes(b"no HDF5")
    assert counts(edge_path) == [3, 4, 5]


def test_a_replaced_bucket_is_never_read_with_an_old_count(edge_path: str) -> None:
    edge_buckets.write_bucket(edge_path, BUCKETS[1], edges_of(40))
    with pytest.raises(FormatError, match=r"edges_0_1\.h5: expected the checksum .* delete its line"):
        edge_buckets.read_bucket(edge_path, BUCKETS[1])
    manifest = Path(storage.manifest_of(edge_path).uri)
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if "edges_0_1.h5" not in line))
    assert counts(edge_path) == [3, 40, 5]
    assert len(edge_buckets.read_bucket(edge_path, BUCKETS[1])) == 40


def test_a_new_manifest_of_another_tool(edge_path: str) -> None:
    """`xxhsum` has written the checksums of all files again, after a bucket was replaced."""
    edge_buckets.write_bucket(edge_path, BUCKETS[1], edges_of(40))
    found = {str(path): of_file(str(path)) for path in Path(edge_path).glob("*.*")}
    storage.write_checksums(storage.manifest_of(edge_path).uri, found)
    assert counts(edge_path) == [3, 40, 5]


@pytest.mark.parametrize("missing", [COUNTS, storage.CHECKSUMS])
def test_without_counts_the_files_are_opened(edge_path: str, missing: str) -> None:
    (Path(edge_path) / missing).unlink()
    edge_buckets.write_bucket(edge_path, BUCKETS[2], edges_of(50))
    assert counts(edge_path) == [3, 4, 50]


def test_a_missing_bucket_is_an_error(edge_path: str) -> None:
    Path(bucket_uri(edge_path, BUCKETS[0])).unlink()
    with pytest.raises(FormatError, match=r"edges_0_0\.h5: there is no such bucket"):
        counts(edge_path)


@pytest.mark.parametrize("content", ["[]", '{"edges_0_0.h5": [-1, ""]}', '{"edges_0_0.h5": 3}', "no JSON"])
def test_counts_of_another_form(edge_path: str, content: str) -> None:
    uri = storage.join(edge_path, COUNTS)
    checksums = storage.read_checksums(storage.manifest_of(edge_path).uri)
    storage.write_text(uri, content, found := {})
    storage.write_checksums(storage.manifest_of(edge_path).uri, checksums | {COUNTS: found[uri]})
    with pytest.raises(FormatError, match=r"num_edges\.json: expected the edges and the checksum"):
        counts(edge_path)
