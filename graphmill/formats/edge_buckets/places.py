"""Names of bucket files."""

from graphmill import storage
from graphmill.vocab import Bucket


def bucket_uri(edge_path: str, bucket: Bucket) -> str:
    """The file of `bucket` in the folder `edge_path`."""
    return storage.join(edge_path, f"edges_{bucket.lhs}_{bucket.rhs}.h5")
