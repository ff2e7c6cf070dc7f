"""Counts behind docs/explanation/ten_billion.md: what a graph of a given size writes, reads and moves.

    python -m bench.plan --edges 10e9 --ids 1e9 --partitions 64

Distinct ids of a chunk are drawn as in bench/synthetic.py; moves of partitions are those of the real order of
buckets, for one worker. Bytes are those of the files' formats. Nothing is timed.
"""

from collections.abc import Iterator

import click
import numpy as np

from bench.synthetic import power_law
from train.edges.bucket_order import num_passes, ordered_pairs

ID_OVERHEAD_BYTES = 8  # of an id in a chunk's file: an offset and a count; its row in the index takes 4 more
CODES_BYTES, SORTED_BYTES, BUCKET_BYTES = 13, 12, 12  # per edge
NUM_TYPES = 2


def distinct_per_edge(num_ids: int, chunk_rows: int) -> float:
    """Distinct ids of a chunk per edge; both endpoints are drawn from the two types alike."""
    rng = np.random.default_rng(0)
    drawn = [power_law(rng, num_ids // NUM_TYPES, chunk_rows) for _ in range(NUM_TYPES)]
    return sum(len(np.unique(each)) for each in drawn) / chunk_rows


def moves(num_partitions: int, order: str = "affinity") -> int:
    """Partitions of a type that one worker reads in an epoch, and as many that it writes (two in memory)."""
    if num_partitions <= 2:
        return num_partitions  # all are in memory
    held: set[int] = set()
    read = 0
    for number in range(num_passes(num_partitions)):
        for pair in ordered_pairs(order, num_partitions, number, larger_first=False):
            read += len(set(pair) - held)
            held = set(pair)
    return read


def counts(
    num_edges: int, num_ids: int, num_partitions: int, chunk_rows: int, dimension: int, id_bytes: int
) -> Iterator[tuple[str, str]]:
    """Yield each count's name and text."""
    per_edge = distinct_per_edge(num_ids, chunk_rows)
    ids_bytes = per_edge * (id_bytes + ID_OVERHEAD_BYTES)
    rows_bytes = per_edge * 4
    yield "chunks", f"{-(-num_edges // chunk_rows):,}"
    yield "distinct ids of a chunk, per edge", f"{per_edge:.2f}"
    for moment, num_bytes in (
        ("encode", CODES_BYTES + ids_bytes),
        ("index", CODES_BYTES + ids_bytes + rows_bytes),
        ("translate", CODES_BYTES + rows_bytes + SORTED_BYTES),
        ("merge", SORTED_BYTES + BUCKET_BYTES),
    ):
        yield (
            f"work and output at the end of {moment}",
            f"{num_bytes:.1f} B/edge, {_size(num_bytes * num_edges)}",
        )
    rows = num_ids // NUM_TYPES // num_partitions
    partition = rows * (4 * dimension + 4)
    read = NUM_TYPES * moves(num_partitions)
    yield "rows and sums of all entities", _size(NUM_TYPES * num_partitions * partition)
    yield "partition of a type", _size(partition)
    yield "partitions of a bucket", _size(2 * NUM_TYPES * partition)
    yield "partitions that one worker reads in an epoch", f"{read:,}, {_size(read * partition)}"
    bucket_edges = num_edges // num_partitions**2
    yield "edges of a bucket", f"{bucket_edges:,}, {_size(28 * bucket_edges)} while they are trained on"


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


@click.command("python -m bench.plan")
@click.option("--edges", type=float, required=True)
@click.option("--ids", type=float, required=True)
@click.option("--partitions", type=int, required=True)
@click.option("--chunk-rows", type=int, default=2_000_000)
@click.option("--dimension", type=int, default=100)
@click.option("--id-bytes", type=int, default=16)
def command(
    edges: float, ids: float, partitions: int, chunk_rows: int, dimension: int, id_bytes: int
) -> None:
    """Count what a graph of this size takes."""
    for name, text in counts(int(edges), int(ids), partitions, chunk_rows, dimension, id_bytes):
        click.echo(f"{name}: {text}")


if __name__ == "__main__":
    command()
