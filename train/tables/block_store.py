"""Blocks of a run on one worker, two at a time: one table of each type, with outside rows behind."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from graphmill.checkpoints.pbg import Iteration
from graphmill.config.partitions import PartitionKey, is_shared
from graphmill.vocab import Bucket
from train.edges.blocks import Blocks
from train.step.table import Table, joined
from train.tables.background import Background
from train.tables.outside_rows import OutsideRows, outside_share
from train.tables.partition_store import PartitionStore
from train.tables.run_context import RunContext


class BlockStore(PartitionStore):
    """Holds the partitions of the current visit, and those that the next visit adds; files have the others.

    The rows of a type are in one table. A partition that stays is copied from the table of a visit to that of
    the next; one that leaves keeps its table in memory until its file is written. Without `train.prefetch`
    the table of the last visit is gone before partitions come.
    """

    def __init__(self, context: RunContext, blocks: Blocks, background: Background) -> None:
        super().__init__(context, background)
        self.blocks = blocks
        types = {name: context.num_rows[name] for name in blocks.types}
        share = outside_share(self.config, blocks.num) * 2 / max(1, blocks.num - 2)
        self._outside = OutsideRows(self.config.seed, types, share)

    @property
    def is_in_memory(self) -> bool:
        """Never: each iteration begins with outside rows from files."""
        return False

    def begin(self, order: Sequence[Bucket], iteration: Iteration) -> None:
        """Note the order of an iteration's visits, and read the outside rows that it begins with."""
        super().begin(order, iteration)
        self._outside.begin(self.version, lambda key: self.files.load(key, self.version))

    def needed(self, bucket: Bucket, iteration: Iteration) -> set[PartitionKey]:
        """Keys of the partitions that a visit needs."""
        return set(self.blocks.keys_of(bucket, iteration))

    def enter(
        self, bucket: Bucket, then: Bucket | None, iteration: Iteration
    ) -> Mapping[PartitionKey, Table]:
        """The table of each type, under its partition 0; reading of what `then` needs has begun."""
        self._settle(wait=True)  # what is being written keeps a whole table in memory
        self._outside.take_back()
        return super().enter(bucket, then, iteration)

    def write_all(self, iteration: Iteration, background: Background) -> list[Future[None]]:
        """Write the partitions in memory, and copy those that the iteration never needed."""
        self._outside.take_back()
        for key in sorted(self._tables):
            self._outside.take(key, self._tables[key], self.next_version)
        return super().write_all(iteration, background)

    def _given(self, bucket: Bucket, iteration: Iteration) -> Mapping[PartitionKey, Table]:
        """Join the partitions of each type; what the next visit needs is not in memory yet."""
        keys = self.blocks.keys_of(bucket, iteration)
        for key in keys:
            self._outside.put_back(key, self._tables[key])
        for key in self._tables.keys() - set(keys):  # waits for another visit: the last table must not
            self._tables[key] = self._tables[key].copied()
        own = {name: [key for key in keys if key[0] == name] for name in self.blocks.types}
        return {(name, 0): self._joined(partitions) for name, partitions in own.items()}

    def _make_room(self) -> None:
        """Free the table of the last visit: partitions that stay are copied from it."""
        for key, table in self._tables.items():
            if not is_shared(self.config, key):
                self._tables[key] = table.copied()
        super()._make_room()

    def _let_go(self, key: PartitionKey, iteration: Iteration) -> None:
        position = self.uses.position
        if not self.uses.is_left(key):
            self._outside.take(key, self._tables[key], self.next_version)
        elif self.uses.next_of(key)[0] > position + 1:  # what is needed next leaves only without prefetch
            self._outside.take(key, self._tables[key], self.version, position)
        super()._let_go(key, iteration)

    def _joined(self, keys: Sequence[PartitionKey]) -> Table:
        """Make one table of the partitions of a type, and copy outside rows behind them."""
        name = keys[0][0]
        if is_shared(self.config, keys[0]):
            return self._tables[keys[0]]
        return self._outside.lend(name, joined(self._tables, keys, self._outside.num_rows(name)))
