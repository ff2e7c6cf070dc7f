"""Edges of a bucket, or of a visit of blocks (train/edges/visits.py), from their files to the device.

Blocks take 12 bytes per edge, 16 with weights. Their rows are counted from the first of the visit's tables,
so that training sees a graph of one partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch

from graphmill import storage
from graphmill.checkpoints.pbg import Iteration
from graphmill.config.partitions import PartitionKey, key_of, rows_of
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets.files import EDGES, REMOVED
from graphmill.vocab import Bucket, Side
from train.edges import batches
from train.edges.batches import EdgeTensors, Role
from train.edges.schedule import ChunkShare
from train.edges.visits import Blocks
from train.gpu.copies import Staging, read_beside_steps
from train.tables import memory
from train.tables.run_context import RunContext


class BucketReader:
    """Reads the edges of one bucket after another."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.staging = Staging(memory.staging_bytes(context), context.device)
        self._num_visits = len(context.schedule.num_edges)  # read all edges
        self._kept: EdgeTensors | None = None  # where an epoch is one visit

    def read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """Read the bucket's edges of the iteration, and check them; may run in another thread."""
        if self._kept is not None:
            return self._kept
        edges = read_beside_steps(self.context.device, partial(self._read, bucket, iteration))
        if self.context.schedule.per_epoch == self._num_visits == 1 and self.context.delta is None:
            self._kept = edges
        return edges

    def read_rows(self, path: str, bucket: Bucket, edges: tuple[int, int], kind: str = EDGES) -> EdgeTensors:
        """Read the edges first..last of a bucket file in the folder `path` to the device, and check them."""
        context = self.context
        rows = rows_of(context.config, context.num_rows, bucket)
        of_run = rows, context.num_relations, context.device
        with self.staging.arrays() as new:
            return batches.read(context.config, path, bucket, edges, *of_run, new, kind)

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        edges = self._read_share(bucket, iteration, self.context.schedule.share(iteration))
        return edges if self.context.delta is None else self.context.delta.used([edges])[0]

    def _read_share(self, bucket: Bucket, iteration: Iteration, share: ChunkShare) -> EdgeTensors:
        context = self.context
        rows = context.schedule.rows(iteration, bucket, share)
        edges = self.read_rows(iteration.edge_path, bucket, rows)
        if context.delta is None:
            return edges
        chosen = context.delta.chosen(edges, iteration, bucket, rows)
        removed = self._read_removed(bucket, iteration, share)
        return chosen if removed is None else batches.joined([chosen, removed], len(chosen) + len(removed))

    def _read_removed(self, bucket: Bucket, iteration: Iteration, share: ChunkShare) -> EdgeTensors | None:
        """Read a share of the edges that a bucket has lost; None if it has lost none."""
        path, settings = iteration.edge_path, self.context.config.train
        if not settings.removed_weight or not storage.exists(edge_buckets.bucket_uri(path, bucket, REMOVED)):
            return None
        rows = share.rows(edge_buckets.count_edges(path, bucket, REMOVED))
        edges = self.read_rows(path, bucket, rows, REMOVED)
        return replace(edges, role=torch.full_like(edges.lhs, Role.REMOVED, dtype=torch.int8))


class BlockReader(BucketReader):
    """Reads the edges of one visit of blocks after another."""

    def __init__(self, context: RunContext, blocks: Blocks) -> None:
        super().__init__(context)
        self.blocks, self._num_visits = blocks, blocks.num

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        context, config = self.context, self.context.config
        shares = self.blocks.shares(bucket, iteration)
        starts = self.blocks.starts(bucket, iteration, context.num_rows)
        parts: Iterable[EdgeTensors] = (
            self._read_part(stored, starts, iteration, share) for stored, share in shares.items()
        )
        if context.delta is None:
            rows = (context.schedule.rows(iteration, stored, share) for stored, share in shares.items())
            num = sum(stop - start for start, stop in rows)
        else:
            parts = context.delta.used(list(parts))
            num = sum(map(len, parts))
        edges = batches.joined(parts, num)
        if config.dynamic_relations or len(config.relations) == 1:
            return edges
        return edges[torch.sort(edges.rel, stable=True).indices]  # by relation

    def _read_part(
        self, bucket: Bucket, starts: Mapping[PartitionKey, int], iteration: Iteration, share: ChunkShare
    ) -> EdgeTensors:
        """Read a share of a bucket's edges; `starts` has each partition's first row in the visit's tables."""
        config, edges = self.context.config, self._read_share(bucket, iteration, share)
        for side, rows_E in ((Side.LHS, edges.lhs), (Side.RHS, edges.rhs)):
            names = [relation.entity_type(side) for relation in config.relations]
            first = [starts[key_of(config, name, side, bucket)] for name in names]
            if len(set(first)) == 1:
                rows_E += first[0]
            else:
                first_R = torch.tensor(first, dtype=rows_E.dtype, device=rows_E.device)
                rows_E += first_R.index_select(0, edges.rel)
        return edges
