"""Sizes of a task's blocks, so that its memory stays below a limit, whatever the input."""

from dataclasses import dataclass

from graphmill.ask.scan import HEIGHT, WIDTH, TopK
from graphmill.errors import ConfigError

PRODUCTS = 1 << 38
"""Multiplications of a task, roughly: some seconds of work, so that all workers get some."""
GPU_PRODUCTS = 1 << 47
"""The same on a GPU."""
UNLIMITED = 1 << 62
"""No limit but memory."""
FEWEST_QUERIES = 8 * HEIGHT  # a task reads all candidates
MOST_PAIRS = 1 << 20
_ID_BYTES = 100  # a raw id and its place, roughly


@dataclass(frozen=True)
class Sizes:
    """Sizes of the blocks of a task.

    Attributes:
        queries: queries of a task, which are a file of the output.
        candidate_rows: candidates that are read at a time, a multiple of WIDTH.
        known_edges: known edges that are held at a time.
        pairs: pairs of a task, where pairs are scored.
    """

    queries: int
    candidate_rows: int
    known_edges: int
    pairs: int


def sizes_for(
    memory_bytes: int, dimension: int, num_candidates: int, k: int, products: int = PRODUCTS
) -> Sizes:
    """Divide the memory of a task: half for queries and answers, a quarter each for other data."""
    query_bytes = 8 * dimension + (TopK.HELD_BYTES + 2 * _ID_BYTES) * k
    tile_bytes = 12 * WIDTH * dimension
    needed = max(2 * query_bytes, 4 * tile_bytes)
    if needed > memory_bytes:
        raise ConfigError(
            f"--task-memory: expected {-(-needed >> 20)}MiB at least, for vectors of length {dimension} and "
            f"{k} answers for an id; or ask for fewer with --k"
        )
    useful_queries = products // max(num_candidates * dimension, 1)
    return Sizes(
        min(max(useful_queries, FEWEST_QUERIES), memory_bytes // 2 // query_bytes),
        memory_bytes // 4 // tile_bytes * WIDTH,
        memory_bytes // 4 // 32,
        min(MOST_PAIRS, memory_bytes // 2 // (16 * dimension + 4 * _ID_BYTES)),
    )
