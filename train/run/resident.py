"""The whole graph on one device: only the files have partitions.

    device: the rows of each type, one partition after the other; their sums; all edges of the iteration, with
            rows counted from the first partition on, 12 bytes per edge, 16 with weights

The rest of the trainer sees a graph of one partition, whose only bucket is (0, 0).
"""

import copy
import itertools
from collections.abc import Mapping
from concurrent.futures import Future

import torch
from torch import Tensor

from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Side
from train.edges.batches import EdgeTensors
from train.edges.partitions import PartitionKey, all_buckets, key_of
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.plan.plan import Plan
from train.run.bucket import BucketTrainer, read_edges
from train.step.table import Table
from train.tables import memory
from train.tables.background import Background
from train.tables.partition_store import Store
from train.tables.run_context import CPU, RunContext


class WholeGraph(BucketTrainer):
    """Trains on all edges of an iteration as one bucket."""

    def __init__(self, context: RunContext, model: Model, adagrad: Adagrad, plan: Plan) -> None:
        super().__init__(_one_partition_per_type(context), model, adagrad, plan)
        self.partitioned = context
        self.rows_of_partitions = _rows_of_partitions(context)
        self._kept: dict[tuple[int, int], EdgeTensors] = {}  # where an epoch is one iteration

    def _read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """Read all edges of the iteration to the device, bucket by bucket."""
        place = iteration.edge_path_idx, iteration.edge_chunk_idx
        if place in self._kept:
            return self._kept[place]
        config, schedule, device = self.partitioned.config, self.partitioned.schedule, self.context.device
        parts = {each: schedule.rows(iteration, each) for each in all_buckets(config)}
        size = sum(stop - start for start, stop in parts.values())
        # room for all edges, so that one bucket is all the memory beside them
        lhs, rel, rhs = (torch.empty(size, dtype=torch.int32, device=device) for _ in range(3))
        weight: Tensor | None = None
        done = 0
        for each, rows_of_file in parts.items():
            part = self._read_bucket(each, iteration.edge_path, rows_of_file)
            own = slice(done, done + len(part))
            lhs[own], rel[own], rhs[own] = part.lhs, part.rel, part.rhs
            if part.weight is not None:
                weight = torch.ones(size, device=device) if weight is None else weight
                weight[own] = part.weight
            done += len(part)
        edges = EdgeTensors(lhs, rel, rhs, weight)
        if not config.dynamic_relations and len(config.relations) > 1:
            edges = edges[torch.sort(edges.rel, stable=True).indices]
        if self.context.schedule.per_epoch == 1:
            self._kept[place] = edges
        return edges

    def _read_bucket(self, bucket: Bucket, path: str, rows_of_file: tuple[int, int]) -> EdgeTensors:
        """Read a bucket's edges, with rows counted over all partitions."""
        config = self.partitioned.config
        edges = read_edges(self.partitioned, path, bucket, rows_of_file, self.staging)
        for side, rows_E in ((Side.LHS, edges.lhs), (Side.RHS, edges.rhs)):
            keys = [key_of(config, relation.entity_type(side), side, bucket) for relation in config.relations]
            starts = [self.rows_of_partitions[key].start for key in keys]
            if len(set(starts)) == 1:
                rows_E += starts[0]
            else:
                first = torch.tensor(starts, dtype=rows_E.dtype, device=rows_E.device)
                rows_E += first.index_select(0, edges.rel)
        return edges


class ResidentStore(Store):
    """All tables on the device; the files hold them partition by partition.

    The files of a version are written from a copy of the tables, on the device if it has room for it.
    """

    writes_beside = True

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.on_host())
        self.context = context
        self.rows = _rows_of_partitions(context)
        self._tables: dict[PartitionKey, Table] = {}
        self._copy_device = copy_device(context)

    def enter(
        self, bucket: Bucket, then: Bucket | None, iteration: Iteration
    ) -> Mapping[PartitionKey, Table]:
        """The table of every type, with all its rows."""
        if not self._tables:
            for name in self.context.config.entities:
                self._tables[name, 0] = self._load(name)
        return self._tables

    def write_all(self, iteration: Iteration, background: Background) -> list[Future[None]]:
        """Copy all tables, and begin to write the copies."""
        copies = {key: _copied(table, self._copy_device) for key, table in self._tables.items()}
        files = []
        for key, rows in self.rows.items():
            whole = copies[key[0], 0]
            part = Table(whole.embeddings_ND[rows], whole.sums[rows])
            files.append(background.submit(self.files.write, key, part, self.version + 1, iteration))
            self.num_written += 1
        return files

    def _load(self, name: str) -> Table:
        num_rows, device = sum(self.context.num_rows[name]), self.context.device
        table: Table | None = None
        for key, rows in self.rows.items():
            if key[0] == name:
                part = self.files.load(key, self.version)
                self.num_read += 1
                table = table or _room(part, num_rows, device)
                table.embeddings_ND[rows] = part.embeddings_ND.to(device)
                table.sums[rows] = part.sums.to(device)
        assert table is not None  # a type has a partition
        return table


def copy_device(context: RunContext) -> torch.device:
    """Choose the device for the copies of all tables: theirs, if it has room for them."""
    if context.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(context.device)
        if memory.resident_bytes(context) + memory.rows_bytes(context) > memory.SHARE * free:
            return CPU
    return context.device


def _room(part: Table, num_rows: int, device: torch.device) -> Table:
    """Make a table of `num_rows` rows like those of a partition."""
    like = part.embeddings_ND, part.sums
    return Table(*(torch.empty(num_rows, *each.shape[1:], device=device) for each in like))


def _copied(table: Table, device: torch.device) -> Table:
    copied = Table(table.embeddings_ND.to(device, copy=True), table.sums.to(device, copy=True))
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # another stream will read the copy
    return copied


def _one_partition_per_type(context: RunContext) -> RunContext:
    """The same run, with all rows of a type in one partition."""
    whole = copy.copy(context)
    entities = {
        name: entity.model_copy(update={"num_partitions": 1})
        for name, entity in context.config.entities.items()
    }
    whole.config = context.config.model_copy(update={"entities": entities})
    whole.num_rows = {name: [sum(counts)] for name, counts in context.num_rows.items()}
    return whole


def _rows_of_partitions(context: RunContext) -> dict[PartitionKey, slice]:
    """The rows of each partition among all rows of its type."""
    rows: dict[PartitionKey, slice] = {}
    for name, counts in context.num_rows.items():
        for partition, stop in enumerate(itertools.accumulate(counts)):
            rows[name, partition] = slice(stop - counts[partition], stop)
    return rows
