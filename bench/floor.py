"""The limits of the machine: only the work that no such program can avoid.

As a program, it does one kind of work in one process per share, all at once, and prints the seconds:

    python -m bench.floor encode|copy|rewrite|product SHARES
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench import measure
from bench.pbg import REPOSITORY

CHUNK_ROWS = 2_000_000
BLOCK_BYTES = 8 << 20
BLOCK_ROWS, BLOCK_COLUMNS = 512, 4096  # scores of 8 MiB


def encode(paths: Sequence[str]) -> float:
    """Read edge tables and dictionary-encode both endpoints, chunk by chunk; seconds."""
    pa.set_cpu_count(1)
    start = time.perf_counter()
    held: list[pa.Table] = []
    for path in paths:
        with closing(pq.ParquetFile(path, read_dictionary=["rel"])) as parquet:
            for group in range(parquet.num_row_groups):
                held.append(parquet.read_row_group(group, use_threads=False))
                if sum(map(len, held)) >= CHUNK_ROWS:
                    _encode_chunk(held)
    _encode_chunk(held)
    return time.perf_counter() - start


def _encode_chunk(held: list[pa.Table]) -> None:
    if held:
        table = pa.concat_tables(held)
        held.clear()
        ids = pa.chunked_array([*table["lhs"].chunks, *table["rhs"].chunks])
        ids.dictionary_encode()


def copy(paths: Sequence[str]) -> float:
    """Read files and write a file of a given size; seconds.

    The last two of `paths` are the written file and its size.
    """
    *sources, target, size = paths
    block = b"\x55" * BLOCK_BYTES
    start = time.perf_counter()
    for source in sources:
        with pa.OSFile(source) as reader:
            while reader.read_buffer(BLOCK_BYTES).size:
                pass
    with pa.OSFile(target, "wb") as writer:
        for written in range(0, int(size), BLOCK_BYTES):
            writer.write(block[: int(size) - written])
    return time.perf_counter() - start


def rewrite(paths: Sequence[str]) -> float:
    """Read tables with pyarrow and write them again, one row group at a time; seconds."""
    pa.set_cpu_count(1)
    start = time.perf_counter()
    for path in paths:
        with closing(pq.ParquetFile(path)) as parquet:
            options = {"use_dictionary": False, "write_statistics": False}
            column = parquet.metadata.row_group(0).column
            codecs = {
                column(n).path_in_schema: column(n).compression.replace("UNCOMPRESSED", "NONE")
                for n in range(parquet.metadata.num_columns)
            }
            with closing(
                pq.ParquetWriter(f"{path}.again", parquet.schema_arrow, compression=codecs, **options)
            ) as writer:
                for group in range(parquet.num_row_groups):
                    writer.write_table(parquet.read_row_group(group, use_threads=False))
    return time.perf_counter() - start


def product(sizes: Sequence[str]) -> float:
    """Multiply queries by candidates, block by block; seconds.

    `sizes` are the numbers of queries, candidates, dimensions and threads.
    """
    import torch

    num_queries, num_candidates, dimension, num_threads = map(int, sizes)
    torch.set_num_threads(num_threads)
    width = min(num_candidates, BLOCK_COLUMNS)
    queries = torch.randn(num_queries, dimension)
    candidates = torch.randn(num_candidates, dimension)
    scores = torch.empty(BLOCK_ROWS, width)
    torch.mm(queries[:BLOCK_ROWS], candidates[:width].t())  # the first product starts threads
    start = time.perf_counter()
    for first in range(0, len(queries), BLOCK_ROWS):
        part = queries[first : first + BLOCK_ROWS]
        for start_column in range(0, len(candidates), width):
            block = candidates[start_column : start_column + width]
            torch.mm(part, block.t(), out=scores[: len(part), : len(block)])
    return time.perf_counter() - start


def run(work: str, shares: Sequence[Sequence[str | Path | int]]) -> measure.Measured:
    """Do `work` on all shares at once; `wall_s` is of the slowest share, without start-up."""
    arguments = json.dumps([[str(word) for word in share] for share in shares])
    measured = measure.run([sys.executable, "-m", "bench.floor", work, arguments], cwd=REPOSITORY)
    return replace(measured, wall_s=float(measured.stdout))


def deal(items: Sequence[Path], num_shares: int) -> list[Sequence[Path]]:
    """Split items into shares of about equal number, none empty."""
    return [share for share in (items[first::num_shares] for first in range(num_shares)) if share]


WORKS = {work.__name__: work for work in (encode, copy, rewrite, product)}


if __name__ == "__main__":
    work, arguments = sys.argv[1:]
    shares = json.loads(arguments)
    with multiprocessing.get_context("spawn").Pool(len(shares)) as pool:
        print(max(pool.map(WORKS[work], shares, chunksize=1)))
