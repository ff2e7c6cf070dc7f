"""Names of bucket files, and the edges of each: who plans a training run need not open them.

    edges/train/
        edges_0_0.h5        or removed_0_0.h5: edges that a delta no longer has
        num_edges.json      {"edges_0_0.h5": [edges, checksum of the file], ...}
        checksums.xxh128    the manifest of the folder

A count is believed if the manifest has the same checksum for the bucket. Whoever reads the bucket compares
that checksum, so that no file that was replaced is read with an old count.
"""

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter

from graphmill import storage
from graphmill.errors import NotFoundError
from graphmill.storage import Checksums
from graphmill.storage.as_json import read_as
from graphmill.vocab import Bucket

EDGES = "edges"
REMOVED = "removed"


def bucket_uri(edge_path: str, bucket: Bucket, kind: str = EDGES) -> str:
    """The file of `bucket` in the folder `edge_path`."""
    return storage.join(edge_path, f"{kind}_{bucket.lhs}_{bucket.rhs}.h5")


COUNTS = "num_edges.json"

_CONTENT = TypeAdapter(dict[str, tuple[Annotated[int, Field(ge=0)], str]])


def write_counts(edge_path: str, counts: Mapping[str, int], checksums: Checksums) -> None:
    """Write the edges of each bucket file, by URI; `checksums` has those of the files, and gets another."""
    content = {storage.name(uri): [count, checksums[uri]] for uri, count in counts.items()}
    storage.write_text(storage.join(edge_path, COUNTS), json.dumps(content), checksums)


def known_counts(edge_path: str) -> dict[str, int]:
    """Read the numbers of edges, by file name, of bucket files that are the same as when counted."""
    manifest = storage.manifest_of(edge_path)
    checksums = storage.read_checksums(manifest.uri)
    if COUNTS not in checksums:
        return {}
    uri = storage.join(edge_path, COUNTS)
    try:
        content = storage.read_compared(uri, manifest)
    except NotFoundError:
        return {}
    counts = read_as(_CONTENT, content, uri, "the edges and the checksum of each bucket")
    return {name: count for name, (count, checksum) in counts.items() if checksums.get(name) == checksum}
