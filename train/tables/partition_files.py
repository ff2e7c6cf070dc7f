"""Partitions in checkpoint files: read, drawn where there is none yet, written.

A partition comes from a version of the run's own checkpoint, else from `init_path`, else it is drawn;
rows that `init_path` lacks are drawn too.

Shapes: R rows in the checkpoint of `init_path`, N rows of the partition, D dimension.
"""

import torch
from torch import Tensor

from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError, TrainingError
from graphmill.formats import pbg_checkpoint
from graphmill.formats.pbg_checkpoint import Iteration
from train.config import TrainConfig
from train.edges import seeds
from train.edges.schedule import Key
from train.model import optimizer
from train.step.table import Table
from train.tables.start import Start
from train.tables.warm_start import WarmStart

_ROUNDING = 1e-5  # rows that training shortened may be longer by this; loading must give what was written


class PartitionFiles:
    """Reads and writes the tables of a run; holds none of them.

    Attributes:
        checksums: of the files that were written, by URI; the run's.
    """

    def __init__(self, start: Start) -> None:
        self.checksums = start.checksums
        self.config = start.config
        self.num_rows = start.num_rows
        self.device = start.device
        self.optimizer = self.config.section("train", TrainConfig).optimizer
        self._warm_start = start.warm_start
        self._pbg = self.config.pbg()
        self._claim = start.claim

    def load(self, key: Key, version: int, path: str | None = None) -> Table:
        """The table as the files of `version` at `path` have it; with version 0, as it begins."""
        if version:
            return self._resume(key, version, path or self.config.checkpoint_path)
        if self._warm_start is not None and self._warm_start.has_type(key[0]):
            return self._take_over(key, self._warm_start)
        embeddings_ND = self._draw(key)
        return self._table(embeddings_ND, optimizer.fresh_sums(self.optimizer, embeddings_ND))

    def write(
        self, key: Key, table: Table, version: int, iteration: Iteration, path: str | None = None
    ) -> None:
        """Write the table as of `version`, of the checkpoint or of a folder like it.

        Raises:
            TrainingError: training has made it infinite.
            LockedError: the checkpoint is another run's by now.
        """
        rows_ND = table.embeddings_ND
        # a finite sum needs no memory, and hardly ever is anything else asked
        if not torch.isfinite(rows_ND.sum()) and not torch.isfinite(rows_ND).all():
            raise TrainingError(
                f"embeddings of {key[0]!r}, partition {key[1]}: not finite after training on epoch "
                f"{iteration.epoch_idx + 1}; lower lr (now {self.config.lr}), or set max_norm"
            )
        self._claim.check()
        pbg_checkpoint.write_embeddings(
            path or self.config.checkpoint_path,
            *key,
            version,
            table.embeddings_ND.cpu().numpy(),
            optimizer.table_state(table.sums.cpu(), self.config.lr),
            self._pbg,
            iteration,
            self.checksums,
        )

    def _take_over(self, key: Key, warm_start: WarmStart) -> Table:
        saved_RD, saved_sums = self._read(warm_start.path, key, warm_start.version)
        num_saved, shape = len(saved_RD), self._shape(key)
        warm_start.check_entities(*key, (num_saved, saved_RD.shape[1]), shape)
        if num_saved == shape[0]:
            return self._table(saved_RD, saved_sums)
        embeddings_ND = self._draw(key)
        embeddings_ND[:num_saved] = saved_RD
        sums = optimizer.fresh_sums(self.optimizer, embeddings_ND)
        sums[:num_saved] = saved_sums
        return self._table(embeddings_ND, sums)

    def _resume(self, key: Key, version: int, path: str) -> Table:
        shape = self._shape(key)
        embeddings_ND, sums = self._read(path, key, version)
        if embeddings_ND.shape != shape:
            raise FormatError(
                f"{pbg_checkpoint.embeddings_uri(path, *key, version)}: embeddings have shape "
                f"{tuple(embeddings_ND.shape)}; entity_count and dimension ask for {shape}: the checkpoint "
                "belongs to other entities or another configuration. If entities were added, train into "
                "another checkpoint_path, with this one as init_path"
            )
        return self._table(embeddings_ND, sums)

    def _read(self, checkpoint_path: str, key: Key, version: int) -> tuple[Tensor, Tensor]:
        saved, state = pbg_checkpoint.read_embeddings(checkpoint_path, *key, version)
        uri = pbg_checkpoint.embeddings_uri(checkpoint_path, *key, version)
        where = f"{uri}: {key[0]!r}, partition {key[1]}"
        check_finite(saved, where)
        saved_RD = torch.from_numpy(saved)
        if state is None:
            return saved_RD, optimizer.fresh_sums(self.optimizer, saved_RD)
        shape = (saved.shape[0], saved.shape[1])
        sums = optimizer.sums_of_table_state(state, self.optimizer, shape, uri)
        check_finite(sums.numpy(), f"{where}: optimizer sums")
        return saved_RD, sums

    def _draw(self, key: Key) -> Tensor:
        generator = seeds.generator(self.config.seed, "embeddings", *key)
        # in place: a partition may fill most of the memory
        return torch.randn(self._shape(key), generator=generator).mul_(self.config.init_scale)

    def _table(self, embeddings_ND: Tensor, sums: Tensor) -> Table:
        max_norm = self.config.max_norm
        if max_norm is not None and (embeddings_ND.norm(dim=1) > max_norm * (1 + _ROUNDING)).any():
            embeddings_ND = optimizer.shortened(embeddings_ND, max_norm)
        return Table(embeddings_ND.to(self.device), sums.to(self.device))

    def _shape(self, key: Key) -> tuple[int, int]:
        entity_type, partition = key
        return self.num_rows[entity_type][partition], self.config.entity_dimension(entity_type)
