"""GraphStorm's saved embeddings as `Checkpoint`: embeddings by integer id, and nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from graphmill.checkpoints.checkpoint import Checkpoint, Floats, ModelState, Rows
from graphmill.checkpoints.joined import JoinedRows
from graphmill.checkpoints.ordered import Numbers, OrderedTable, Part
from graphmill.checkpoints.partitions import partition_counts
from graphmill.formats._torch_tensor import open_tensor
from graphmill.formats.graphstorm import saved_embeddings
from graphmill.formats.graphstorm.saved_embeddings import EmbInfo, RankRows
from graphmill.formats.pbg_checkpoint import Iteration
from graphmill.model.parameters import parse_global_key, parse_operator_key
from graphmill.vocab import Partition

_RANK_BYTES = 32 << 20


class GraphStormCheckpoint(Checkpoint):
    """Embeddings that GraphStorm, or something for it, has saved."""

    format = "graphstorm"

    def __init__(self, uri: str, entity_path: str | None = None) -> None:
        """`entity_path` tells the partitions; without it a type has one. Raises FormatError on damage."""
        super().__init__(uri, version=0)
        self._entity_path = entity_path
        info = saved_embeddings.read_emb_info(uri)
        self._ranks = {
            name: saved_embeddings.list_ranks(uri, name, info.world_size, info.dimensions.get(name))
            for name in info.entity_types
        }
        self._tables = {
            name: OrderedTable(_Opener(ranks), _shape(ranks, info.dimensions.get(name, 0)), f"{uri}: {name}")
            for name, ranks in self._ranks.items()
        }

    @cached_property
    def counts(self) -> Mapping[str, Sequence[int]]:
        """As `entity_path` says, else one partition a type."""
        totals = {name: table.shape[0] for name, table in self._tables.items()}
        return partition_counts(totals, None, self._entity_path, self.uri)

    @property
    def dimensions(self) -> Mapping[str, int]:
        """As the tensors say."""
        return {name: table.shape[1] for name, table in self._tables.items()}

    @contextmanager
    def open_rows(self, entity_type: str, partition: Partition) -> Iterator[Rows]:
        """The embeddings of one partition."""
        counts = self.counts[entity_type]
        with self._tables[entity_type].open() as rows:
            yield Part(rows, sum(counts[:partition]), counts[partition])

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        """None: the format has no place for it."""
        return None

    def _read_model(self) -> ModelState | None:
        """None: the format has no place for it."""
        return None

    @property
    def config(self) -> dict[str, Any] | None:
        """None: the format has no place for it."""
        return None

    @property
    def iteration(self) -> Iteration | None:
        """None: the format has no place for it."""
        return None


def write(source: Checkpoint, target_uri: str) -> list[str]:
    """Write the embeddings of `source`; says what else it holds, for which the format has no place."""
    rank_rows = {name: max(1, _RANK_BYTES // (4 * max(size, 1))) for name, size in source.dimensions.items()}
    totals = {name: sum(counts) for name, counts in source.counts.items()}
    world_size = max(1, *(-(-total // rank_rows[name]) for name, total in totals.items()))
    for name, total in totals.items():
        with JoinedRows(source, name) as rows:
            for rank in range(world_size):
                first = min(rank * rank_rows[name], total)
                last = min(first + rank_rows[name], total)
                ids = np.arange(first, last)
                # Rows may lie in a buffer that nobody may write to, which torch warns of.
                writable = np.require(rows.read(first, last), requirements="W")
                saved_embeddings.write_rank(target_uri, name, rank, ids, writable)
    info = EmbInfo(tuple(totals), world_size, dict(source.dimensions))
    saved_embeddings.write_emb_info(target_uri, info)
    return _not_kept(source)


def _not_kept(source: Checkpoint) -> list[str]:
    lost = []
    if any(source.read_optimizer_state(name, partition) for name, partition, _ in source.partitions()):
        lost.append("optimizer state of the embeddings")
    model = source.read_model()
    parameters = list(model.parameters) if model else []
    if operators := [key for key in parameters if parse_operator_key(key)]:
        lost.append(f"{len(operators)} parameters of relations: {', '.join(operators[:4])}")
    if added := [key for key in parameters if parse_global_key(key)]:
        lost.append(f"{', '.join(added)}, which is not added to the rows either")
    if model and model.optimizer_state:
        lost.append("optimizer state of those parameters")
    if source.config is not None:
        lost.append("configuration")
    if source.iteration is not None:
        lost.append("iteration and version")
    if any(len(counts) > 1 for counts in source.counts.values()):
        lost.append("sizes of partitions; --entity-path brings them back")
    return lost


class _Opener:
    """Opens the files of all ranks of a type."""

    def __init__(self, ranks: Sequence[RankRows]) -> None:
        self._ranks = ranks

    @contextmanager
    def __call__(self) -> Iterator[list["_RankPiece"]]:
        with ExitStack() as stack:
            yield [_RankPiece(rank, stack) for rank in self._ranks if rank.num_rows]


class _RankPiece:
    """The rows of one rank."""

    def __init__(self, rank: RankRows, stack: ExitStack) -> None:
        self._rank = rank
        self._rows = stack.enter_context(open_tensor(rank.values_uri))
        self._ids = stack.enter_context(open_tensor(rank.nids_uris[0])) if rank.nids_uris else None

    @property
    def num_rows(self) -> int:
        return self._rank.num_rows

    def read_ids(self, start: int, stop: int) -> Numbers:
        if self._ids is None:
            return np.arange(self._rank.first_nid + start, self._rank.first_nid + stop)
        return np.asarray(self._ids.read(start, stop).reshape(-1), np.int64)

    def read(self, start: int, stop: int) -> Floats:
        return np.asarray(self._rows.read(start, stop).reshape(stop - start, -1), np.float32)


def _shape(ranks: Sequence[RankRows], told_dimension: int) -> tuple[int, int]:
    widths = [rank.shape[1] if len(rank.shape) == 2 else 1 for rank in ranks if rank.num_rows]
    return sum(rank.num_rows for rank in ranks), widths[0] if widths else told_dimension
