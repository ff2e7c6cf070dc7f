"""The whole graph on one device: partitions exist in the files alone.

    device: the rows of each type, one partition after the other; their sums; all edges of the iteration, with
            rows counted from the first partition on, 16 bytes an edge

To the rest of the trainer it is a graph of one partition, whose only bucket is (0, 0).
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Partition, Side
from train.edges.batches import EdgeTensors
from train.edges.schedule import Key, all_keys, key_of
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.run.bucket import BucketTrainer, Tables
from train.step.step import Table
from train.tables.partition_files import PartitionFiles
from train.tables.start import Start

WHOLE = Bucket(0, 0)


def whole(start: Start) -> Start:
    """The same run, of one partition a type."""
    other = copy.copy(start)
    entities = {
        name: entity.model_copy(update={"num_partitions": 1})
        for name, entity in start.config.entities.items()
    }
    other.config = start.config.model_copy(update={"entities": entities})
    other.num_rows = {name: [sum(counts)] for name, counts in start.num_rows.items()}
    return other


def offsets(start: Start) -> dict[Key, int]:
    """Where each partition's rows begin among all rows of its type."""
    return {
        (name, partition): sum(counts[:partition])
        for name, counts in start.num_rows.items()
        for partition in range(len(counts))
    }


class WholeGraph(BucketTrainer):
    """Trains on all edges of an iteration as one bucket."""

    def __init__(self, start: Start, model: Model, adagrad: Adagrad) -> None:
        super().__init__(whole(start), model, adagrad)
        self.parts = BucketTrainer(start.on_host(), model, adagrad)
        self.offsets = offsets(start)
        self._kept: dict[tuple[int, int], EdgeTensors] = {}  # where an epoch is one iteration

    def read(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """All edges of the iteration, on the device."""
        place = iteration.edge_path_idx, iteration.edge_chunk_idx
        if place in self._kept:
            return self._kept[place]
        config = self.parts.config
        grid = [range(config.num_side_partitions(side)) for side in Side]
        edges, done = self._room_for(iteration), 0
        for pair in product(*grid):
            part = self._moved(Bucket(*pair), iteration)
            for name in ("lhs", "rel", "rhs", "weight"):
                getattr(edges, name)[done : done + len(part)] = getattr(part, name)
            done += len(part)
        if not config.dynamic_relations and len(config.relations) > 1:
            edges = edges[torch.sort(edges.rel, stable=True).indices]
        if self.start.schedule.per_epoch == 1:
            self._kept[place] = edges
        return edges

    def _room_for(self, iteration: Iteration) -> EdgeTensors:
        """All edges of the iteration, not yet there: a part at a time is all the memory beside them."""
        plan, index = self.start.schedule, iteration.edge_path_idx
        rows = [plan.rows(iteration, bucket) for path, bucket in plan.num_edges if path == index]
        size, device = sum(stop - start for start, stop in rows), self.start.device
        columns = [torch.empty(size, dtype=torch.int32, device=device) for _ in range(3)]
        return EdgeTensors(columns[0], columns[1], columns[2], torch.empty(size, device=device))

    def _moved(self, bucket: Bucket, iteration: Iteration) -> EdgeTensors:
        """A bucket's edges, 32 bits a column, with rows counted over all partitions; on the host."""
        edges = self.parts.read(bucket, iteration)
        columns: list[Tensor] = []
        for side, rows in edges.index.items():
            first = torch.tensor(
                [
                    self.offsets[key_of(self.parts.config, relation.entity_type(side), side, bucket)]
                    for relation in self.parts.config.relations
                ]
            )
            shift = first[0] if self.config.dynamic_relations else first[edges.rel]
            columns.append((rows + shift).to(torch.int32))
        return EdgeTensors(columns[0], edges.rel.to(torch.int32), columns[1], edges.weight)

    def _rank(
        self, held: EdgeTensors, bucket: Bucket, tables: Tables, place: tuple[int, ...]
    ) -> dict[str, Any]:
        # torch's own indexing wants 64 bits
        wide = EdgeTensors(held.lhs.long(), held.rel.long(), held.rhs.long(), held.weight)
        return super()._rank(wide, bucket, tables, place)


class ResidentStore:
    """All tables on the device; the files hold them partition by partition.

    Attributes:
        num_read, num_written: partitions read or drawn, and written, so far.
    """

    def __init__(self, start: Start, version: int) -> None:
        self.start, self.version = start, version
        self.files = PartitionFiles(start.on_host())
        self.offsets = offsets(start)
        self.num_read = self.num_written = 0
        self._tables: dict[Key, Table] = {}

    def begin(self, order: Sequence[Bucket]) -> None:
        """Nothing: all is here."""

    def enter(self, bucket: Bucket, then: Bucket | None, iteration: Iteration) -> Mapping[Key, Table]:
        """Every type's table, all its rows."""
        if not self._tables:
            for name in self.start.config.entities:
                self._tables[name, 0] = self._load(name)
        return self._tables

    def write_all(self, iteration: Iteration) -> None:
        """Write the next version."""
        for key in all_keys(self.start.config):
            self.files.write(key, self._part(*key), self.version + 1, iteration)
            self.num_written += 1

    def committed(self) -> None:
        """The next version counts now."""
        self.version += 1

    def _load(self, name: str) -> Table:
        rows = sum(self.start.num_rows[name])
        dimension = self.start.config.entity_dimension(name)
        table = Table(
            torch.empty(rows, dimension, device=self.start.device),
            torch.empty(rows, device=self.start.device),
        )
        for partition, count in enumerate(self.start.num_rows[name]):
            part = self.files.load((name, partition), self.version)
            self.num_read += 1
            place = slice(self.offsets[name, partition], self.offsets[name, partition] + count)
            table.embeddings_ND[place] = part.embeddings_ND.to(self.start.device)
            table.sums[place] = part.sums.to(self.start.device)
        return table

    def _part(self, name: str, partition: Partition) -> Table:
        first = self.offsets[name, partition]
        place = slice(first, first + self.start.num_rows[name][partition])
        table = self._tables[name, 0]
        return Table(table.embeddings_ND[place].cpu(), table.sums[place].cpu())
