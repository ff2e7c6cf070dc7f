"""Training on blocks of partitions (train/edges/blocks.py); with one block, on the whole graph.

    in memory    of each type the rows of two blocks, one partition after the other; their sums; the edges of
                 the visit, with rows counted from the first of the table, 12 bytes per edge, 16 with weights

The rest of the trainer sees a graph of one partition.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphmill.ask.model import Model
from graphmill.config.partitions import PartitionKey, key_of
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Side
from train.edges import batches
from train.edges.batches import EdgeTensors
from train.edges.blocks import Blocks
from train.edges.schedule import Share
from train.model.optimizer import Adagrad
from train.plan.plan import Plan
from train.run.bucket import BucketTrainer, read_trained
from train.tables.run_context import RunContext


class BlockTrainer(BucketTrainer):
    """Trains on one bucket of blocks after another."""

    def __init__(
        self, context: RunContext, blocks: Blocks, model: Model, adagrad: Adagrad, plan: Plan
    ) -> None:
        super().__init__(context.whole(), model, adagrad, plan)
        self.files, self.blocks = context, blocks
        self._kept: dict[tuple[int, int], EdgeTensors] = {}  # where an epoch is one visit

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """Read the edges of a visit from all its buckets."""
        place = iteration.edge_path_idx, iteration.edge_chunk_idx
        if place in self._kept:
            return self._kept[place]
        schedule = self.context.schedule
        shares = self.blocks.shares(bucket, iteration)
        starts = self.blocks.starts(bucket, iteration, self.files.num_rows)
        if self.files.delta is not None:
            read = [self._read_part(each, starts, iteration, share) for each, share in shares.items()]
            return self._sorted(batches.joined(self.files.delta.used(read)))
        rows = (schedule.rows(iteration, each, share) for each, share in shares.items())
        size = sum(stop - start for start, stop in rows)
        # room for all edges, so that one bucket is all the memory beside them
        lhs, rel, rhs = (torch.empty(size, dtype=torch.int32, device=self.context.device) for _ in range(3))
        weight: Tensor | None = None
        held_out = torch.zeros_like(lhs, dtype=torch.bool) if self.config.eval_fraction else None
        done = 0
        for each, share in shares.items():
            part = self._read_part(each, starts, iteration, share)
            own = slice(done, done + len(part))
            lhs[own], rel[own], rhs[own] = part.lhs, part.rel, part.rhs
            if part.weight is not None:
                weight = torch.ones(size, device=self.context.device) if weight is None else weight
                weight[own] = part.weight
            if held_out is not None and part.is_held_out is not None:
                held_out[own] = part.is_held_out
            done += len(part)
        edges = self._sorted(EdgeTensors(lhs, rel, rhs, weight, is_held_out=held_out))
        if schedule.per_epoch == self.blocks.num == 1:
            self._kept[place] = edges
        return edges

    def _sorted(self, edges: EdgeTensors) -> EdgeTensors:
        """The edges by relation, if relations are static."""
        if self.config.dynamic_relations or len(self.config.relations) == 1:
            return edges
        return edges[torch.sort(edges.rel, stable=True).indices]

    def _read_part(
        self,
        bucket: Bucket,
        starts: Mapping[PartitionKey, int],
        iteration: Iteration,
        share: Share,
    ) -> EdgeTensors:
        """Read a share of a bucket's edges; `starts` has each partition's first row in the visit's tables."""
        files = self.files
        edges = read_trained(files, iteration, bucket, share, self.staging)
        for side, rows_E in ((Side.LHS, edges.lhs), (Side.RHS, edges.rhs)):
            names = [relation.entity_type(side) for relation in files.config.relations]
            keys = [key_of(files.config, name, side, bucket) for name in names]
            first = [starts[key] for key in keys]
            if len(set(first)) == 1:
                rows_E += first[0]
            else:
                first_R = torch.tensor(first, dtype=rows_E.dtype, device=rows_E.device)
                rows_E += first_R.index_select(0, edges.rel)
        return edges
