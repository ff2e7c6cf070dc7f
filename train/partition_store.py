"""The partitions in memory: those of the current bucket, and the types that are not partitioned.

A partition that is no longer needed goes to the file of the checkpoint's next version; one that is needed
comes from there if this iteration has written it, else from the committed version, else from `init_path`,
else it is drawn anew; rows that `init_path` lacks are drawn too. The next version counts only when the
whole iteration is committed.

Shapes: R rows in the checkpoint of `init_path`, N rows of the partition, D dimension.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmill.config import Config
from graphmill.errors import FormatError, TrainingError
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.vocab import Bucket, Partition, Side
from train import optimizer, seeds
from train.step import Table
from train.warm_start import WarmStart

Key = tuple[str, Partition]


class PartitionStore:
    """Holds the tables that the current bucket needs."""

    def __init__(
        self,
        config: Config,
        num_rows: Mapping[str, list[int]],
        version: int,
        device: torch.device,
        warm_start: WarmStart | None,
    ) -> None:
        self.config = config
        self.num_rows = num_rows
        self.version = version
        self.device = device
        self._tables: dict[Key, Table] = {}
        self._written: set[Key] = set()  # in the next version, by the current iteration
        self._warm_start = warm_start

    def table(self, entity_type: str, side: Side, bucket: Bucket) -> Table:
        """The table of the type on one side of the current bucket."""
        return self._tables[self._key(entity_type, side, bucket)]

    def num_rows_of(self, entity_type: str, side: Side, bucket: Bucket) -> int:
        """Its number of rows."""
        _, partition = self._key(entity_type, side, bucket)
        return self.num_rows[entity_type][partition]

    def enter(self, bucket: Bucket, iteration: Iteration) -> None:
        """Write the partitions that `bucket` does not need, then load those that it lacks."""
        needed = {
            self._key(relation.entity_type(side), side, bucket)
            for relation in self.config.relations
            for side in Side
        }
        needed |= {key for key in self._tables if self.config.entities[key[0]].num_partitions == 1}
        for key in sorted(self._tables.keys() - needed):
            self._write(key, iteration)
            del self._tables[key]
        for key in sorted(needed - self._tables.keys()):
            self._tables[key] = self._load(key)

    def write_all(self, iteration: Iteration) -> None:
        """Complete the next version: what is in memory, and what the iteration never needed."""
        for key in sorted(self._tables):
            self._write(key, iteration)
        for key in sorted(set(self._all_keys()) - self._written):
            self._tables[key] = self._load(key)
            self._write(key, iteration)
            del self._tables[key]

    def committed(self) -> None:
        """The next version counts now."""
        self.version += 1
        self._written.clear()

    def _key(self, entity_type: str, side: Side, bucket: Bucket) -> Key:
        partitioned = self.config.entities[entity_type].num_partitions > 1
        return entity_type, getattr(bucket, side) if partitioned else 0

    def _all_keys(self) -> Iterator[Key]:
        for entity_type, counts in self.num_rows.items():
            for partition in range(len(counts)):
                yield entity_type, partition

    def _write(self, key: Key, iteration: Iteration) -> None:
        table = self._tables[key]
        if not torch.isfinite(table.embeddings_ND).all():
            raise TrainingError(
                f"embeddings of {key[0]!r}, partition {key[1]}: not finite after training on epoch "
                f"{iteration.epoch_idx + 1}; lower lr (now {self.config.lr}), or set max_norm"
            )
        pbg_checkpoint.write_embeddings(
            self.config.checkpoint_path,
            *key,
            self.version + 1,
            table.embeddings_ND.cpu().numpy(),
            optimizer.row_state(table.sum_N.cpu(), self.config.lr),
            self.config.pbg(),
            iteration,
        )
        self._written.add(key)

    def _load(self, key: Key) -> Table:
        if self.version or key in self._written:
            return self._resume(key, self.version + (key in self._written))
        if self._warm_start is not None:
            return self._take_over(key, self._warm_start)
        embeddings_ND = self._draw(key)
        return self._table(embeddings_ND, torch.zeros(len(embeddings_ND)))

    def _take_over(self, key: Key, warm_start: WarmStart) -> Table:
        saved_RD, sum_R = self._read(warm_start.path, key, warm_start.version)
        num_saved, shape = len(saved_RD), self._shape(key)
        warm_start.check_entities(*key, (num_saved, saved_RD.shape[1]), shape)
        if num_saved == shape[0]:
            return self._table(saved_RD, sum_R)
        embeddings_ND = self._draw(key)
        embeddings_ND[:num_saved] = saved_RD
        return self._table(embeddings_ND, F.pad(sum_R, (0, shape[0] - num_saved)))

    def _resume(self, key: Key, version: int) -> Table:
        path, shape = self.config.checkpoint_path, self._shape(key)
        embeddings_ND, sum_N = self._read(path, key, version)
        if embeddings_ND.shape != shape:
            raise FormatError(
                f"{pbg_checkpoint.embeddings_uri(path, *key, version)}: embeddings have shape "
                f"{tuple(embeddings_ND.shape)}; entity_count and dimension ask for {shape}: the checkpoint "
                "belongs to other entities or another configuration. If entities were added, train into "
                "another checkpoint_path, with this one as init_path"
            )
        return self._table(embeddings_ND, sum_N)

    def _read(self, checkpoint_path: str, key: Key, version: int) -> tuple[Tensor, Tensor]:
        saved, state = pbg_checkpoint.read_embeddings(checkpoint_path, *key, version)
        uri = pbg_checkpoint.embeddings_uri(checkpoint_path, *key, version)
        count = len(saved)
        sum_N = torch.zeros(count) if state is None else optimizer.sum_of_row_state(state, count, uri)
        return torch.from_numpy(saved), sum_N

    def _draw(self, key: Key) -> Tensor:
        generator = seeds.generator(self.config.seed, "embeddings", *key)
        return torch.randn(self._shape(key), generator=generator) * self.config.init_scale

    def _table(self, embeddings_ND: Tensor, sum_N: Tensor) -> Table:
        if self.config.max_norm is not None:
            embeddings_ND = optimizer.shortened(embeddings_ND, self.config.max_norm)
        return Table(embeddings_ND.to(self.device), sum_N.to(self.device))

    def _shape(self, key: Key) -> tuple[int, int]:
        entity_type, partition = key
        return self.num_rows[entity_type][partition], self.config.entity_dimension(entity_type)
