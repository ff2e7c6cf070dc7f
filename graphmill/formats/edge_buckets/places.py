"""Names of bucket files: those of edges, and those of edges that a delta no longer has (`REMOVED`)."""

from graphmill import storage
from graphmill.vocab import Bucket

EDGES = "edges"
REMOVED = "removed"


def bucket_uri(edge_path: str, bucket: Bucket, kind: str = EDGES) -> str:
    """The file of `bucket` in the folder `edge_path`."""
    return storage.join(edge_path, f"{kind}_{bucket.lhs}_{bucket.rhs}.h5")
