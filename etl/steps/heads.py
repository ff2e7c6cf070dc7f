"""Records that precede the edges of a bucket from one chunk, and say from which raw files the edges come.

A head is as wide as an edge, so that both are in one section of one file:

    rel     minus the number of heads of the section: an edge has 0 or more there
    lhs     number of the file
    rhs     its edges in the section
"""

from collections.abc import Sequence

import numpy as np

from etl.strings.native import NOWHERE, count
from graphmill.storage.as_json import Int32, Int64


def heads_of(files: Sequence[tuple[int, int]], bucket_N: Int32, num_buckets: int, width: int) -> Int32:
    """Return heads for the edges of a chunk, bucket by bucket: int32 [H, 1 + width], the bucket first.

    `files` has number and edges of each file, in the order of the edges; `bucket_N` is each edge's bucket.
    """
    buckets, numbers, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    start = 0
    for number, num_edges in files:
        of_file, num_found = _count_buckets(bucket_N[start : start + num_edges], num_buckets)
        buckets.append(of_file)
        numbers.append(np.full(len(of_file), number, np.int64))
        counts.append(num_found)
        start += num_edges
    bucket_H = np.concatenate(buckets)
    order = np.argsort(bucket_H, kind="stable")
    heads = np.zeros((len(order), 1 + width), np.int32)
    heads[:, 0] = bucket_H[order]
    heads[:, 1] = -np.bincount(bucket_H, minlength=num_buckets)[heads[:, 0]]
    heads[:, 2] = np.concatenate(numbers)[order]
    heads[:, 3] = np.concatenate(counts)[order]
    return heads


def _count_buckets(bucket_N: Int32, num_buckets: int) -> tuple[Int64, Int64]:
    """Return the buckets of some edges, ascending, and the edges of each."""
    if len(bucket_N) < num_buckets:
        there, counts = np.unique(bucket_N[bucket_N != NOWHERE], return_counts=True)
        return there.astype(np.int64), counts.astype(np.int64)
    all_counts = count(bucket_N, num_buckets)
    some = np.flatnonzero(all_counts)
    return some, all_counts[some]


def split_heads(records: Int32) -> tuple[Int32, Int64, Int32]:
    """Cut the section of a chunk: numbers of files [F], edges of each [F], and the edges [N, W]."""
    num_heads = -int(records[0, 0]) if len(records) and records[0, 0] < 0 else 0
    heads = records[:num_heads]
    return heads[:, 1], heads[:, 2].astype(np.int64), records[num_heads:]
