"""Bounds of what a report reads of the embeddings, and a random sample within them.

Rows lie in the order of a hash of their ids, so the first rows of every partition are a random sample.

Shapes: N rows, D dimension.
"""

import numpy as np

from graphmill.ask.nearest import Floats
from graphmill.library.run import Run

SAMPLE_ROWS = 3000
"""Number of vectors, of all types together."""
MAX_FLOATS = 1 << 26
"""Numbers of a type that are read to find ids and their neighbours."""
MAX_TYPES = 8


def sampled(run: Run, entity_type: str, num_rows: int) -> tuple[list[str], Floats]:
    """Raw ids [N] and vectors [N, D] of about so many rows, from all partitions alike."""
    none = np.empty((0, run.dimension(entity_type)), np.float32)
    parts = list(run.iter_vectors(entity_type, max_rows=num_rows))
    ids = [each for names, _ in parts for each in names.to_pylist()]
    return ids[:num_rows], np.concatenate([none, *(each for _, each in parts)])[:num_rows]
