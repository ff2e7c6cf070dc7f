"""Partitions in checkpoint files: reading, drawing where there is none yet, writing.

A partition comes from a version of the run's own checkpoint, else from `init_path`, else its rows are drawn.
Rows that `init_path` lacks are drawn too. Rows of `train.init_embeddings` take the place of drawn ones.

Shapes: R rows in the checkpoint of `init_path`, N rows of the partition, D dimension.
"""

import torch
from torch import Tensor

from graphmill.ask.run import check_shape, read_finite
from graphmill.checkpoints import pbg
from graphmill.checkpoints.finite import check_finite, first_not_finite
from graphmill.config.partitions import PartitionKey
from graphmill.errors import DivergenceError
from graphmill.run import seeds
from train.gpu.copies import on_device
from train.model import optimizer
from train.model.frozen import Frozen
from train.step.step import Table
from train.tables import folded_rows, given_rows
from train.tables.given_rows import GivenRows
from train.tables.run_context import CPU, RunContext
from train.tables.warm_start import WarmStart

_ROUNDING = 1e-5  # loading must not shorten a row again that training has shortened to max_norm


class PartitionFiles:
    """Reads and writes the tables of a run; holds none of them."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.config = context, context.config
        self.optimizer = self.config.train.optimizer
        self.frozen = Frozen.of(context.config).types
        self.given = GivenRows(given_rows.folder_of(context.config), given_rows.given_paths(context.config))
        self.folded = GivenRows(
            folded_rows.folder_of(context.config), context.delta.first_new if context.delta else ()
        )

    def load(self, key: PartitionKey, version: int, path: str | None = None) -> Table:
        """The table in the files of `version` in the folder `path`; with version 0 a new table."""
        if version:
            folder = path or self.config.checkpoint_path
            embeddings_ND, sums = self._read(key, version, folder)
            advice = "set entity_path and dimension as in its training"
            if self.context.trains:
                advice = "if entities were added, train into a new checkpoint_path with this one as init_path"
            uri = pbg.embeddings_uri(folder, *key, version)
            check_shape(embeddings_ND.numpy(), self._shape(key), uri, advice)
        elif (warm := self.context.warm_start) is not None and warm.has_type(key[0]):
            embeddings_ND, sums = self._take_over(key, warm)
        else:
            embeddings_ND = self._draw(key)
            sums = optimizer.fresh_sums(self.optimizer, embeddings_ND)
        max_norm = None if key[0] in self.frozen else self.config.max_norm
        if max_norm is not None and (embeddings_ND.norm(dim=1) > max_norm * (1 + _ROUNDING)).any():
            embeddings_ND = optimizer.shortened(embeddings_ND, max_norm)
        return on_device(Table(embeddings_ND, sums), self.context.device)

    def write(
        self,
        key: PartitionKey,
        table: Table,
        version: int,
        path: str | None = None,
        *,
        replication: int | None = None,
    ) -> None:
        """Write the table as of `version`; `replication` counts the copies on HDFS (None: its default)."""
        table, iteration = on_device(table, CPU), self.context.schedule.iteration(version - 1)
        rows = table.embeddings_ND.numpy()
        if first_not_finite(rows) is not None:
            raise DivergenceError(
                f"embeddings of {key[0]!r}, partition {key[1]}: not finite after training on epoch "
                f"{iteration.epoch_idx + 1}; lower lr (now {self.config.lr}), or set max_norm"
            )
        self.context.claim.check()
        pbg.write_embeddings(
            path or self.config.checkpoint_path,
            *key,
            version,
            rows,
            optimizer.table_state(table.sums, self.config.lr),
            self.config.pbg(),
            iteration,
            self.context.checksums,
            replication=replication,
        )

    def _take_over(self, key: PartitionKey, warm_start: WarmStart) -> tuple[Tensor, Tensor]:
        """Embeddings and sums: the first rows are from `init_path`, the others are drawn."""
        saved_RD, saved_sums = self._read(key, warm_start.version, warm_start.path)
        kept = warm_start.kept_rows(*key, (len(saved_RD), saved_RD.shape[1]), self._shape(key))
        num_kept, is_all = len(kept), len(kept) == len(saved_RD)
        if is_all and num_kept == self._shape(key)[0]:
            return saved_RD, saved_sums
        embeddings_ND = self._draw(key)
        sums = optimizer.fresh_sums(self.optimizer, embeddings_ND)
        rows_K = slice(None) if is_all else torch.from_numpy(kept)
        embeddings_ND[:num_kept] = saved_RD[rows_K]
        sums[:num_kept] = saved_sums[rows_K]
        delta = self.context.delta
        if delta is not None and key[0] in delta.first_new and num_kept < len(embeddings_ND):
            for index, _, rows_ND in self.folded.of(*key):
                embeddings_ND.numpy()[index] = rows_ND
            if len(saved_sums):  # as if they had been trained as long as others
                sums[num_kept:] = saved_sums.mean(0)
        return embeddings_ND, sums

    def _read(self, key: PartitionKey, version: int, path: str) -> tuple[Tensor, Tensor]:
        rows_RD, state = read_finite(path, key, version)
        embeddings_RD = torch.from_numpy(rows_RD)
        if state is None:
            return embeddings_RD, optimizer.fresh_sums(self.optimizer, embeddings_RD)
        uri = pbg.embeddings_uri(path, *key, version)
        shape = embeddings_RD.shape[0], embeddings_RD.shape[1]
        sums = optimizer.sums_of_table_state(state, self.optimizer, shape, uri)
        check_finite(sums.numpy(), f"{uri}: {key[0]!r}, partition {key[1]}: optimizer sums")
        return embeddings_RD, sums

    def _draw(self, key: PartitionKey) -> Tensor:
        generator = seeds.generator(self.config.seed, "embeddings", *key)
        rows = torch.empty(self._shape(key))
        # in place: a partition may fill most of the memory
        rows.normal_(generator=generator).mul_(self.config.init_scale)
        if self.config.train.popularity:
            rows[:, 0] = 1
        for index, where, given_nW in self.given.of(*key):
            rows.numpy()[index, where] = given_nW
        return rows

    def _shape(self, key: PartitionKey) -> tuple[int, int]:
        return self.context.num_rows[key[0]][key[1]], self.config.entity_dimension(key[0])
