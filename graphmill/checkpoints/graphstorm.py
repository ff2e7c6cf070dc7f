"""GraphStorm's saved embeddings as `Checkpoint`: the layout holds only embeddings by integer id."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial

import numpy as np

from graphmill.checkpoints.checkpoint import Checkpoint, Floats
from graphmill.checkpoints.ordered import Numbers, OrderedTable
from graphmill.checkpoints.whole_tables import JoinedRows, WholeTablesCheckpoint
from graphmill.formats.graphstorm import saved_embeddings
from graphmill.formats.graphstorm.saved_embeddings import EmbInfo
from graphmill.formats.graphstorm.saved_ranks import RankRows
from graphmill.formats.torch_files.tensor import open_tensor
from graphmill.model.parameters import parse_global_key, parse_operator_key

_RANK_BYTES = 32 << 20


class GraphStormCheckpoint(WholeTablesCheckpoint):
    """Embeddings in GraphStorm's layout."""

    format = "graphstorm"

    def __init__(self, uri: str, entity_path: str | None = None, **_: object) -> None:
        """Counts of partitions are in `entity_path`; by default one. Raises FormatError on damage."""
        info = saved_embeddings.read_emb_info(uri)
        tables = {}
        for name in info.entity_types:
            dimension = info.dimensions.get(name)
            ranks = saved_embeddings.list_ranks(uri, name, info.world_size, dimension)
            tables[name] = OrderedTable(
                partial(_open_pieces, ranks), _shape(ranks, dimension or 0), f"{uri}: {name}"
            )
        super().__init__(uri, 0, tables, None, entity_path)


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write the embeddings of `source`, and return the names of the lost content: all else."""
    rank_rows = {name: max(1, _RANK_BYTES // (4 * max(size, 1))) for name, size in source.dimensions.items()}
    totals = {name: sum(counts) for name, counts in source.counts.items()}
    world_size = max(1, *(-(-total // rank_rows[name]) for name, total in totals.items()))
    for name, total in totals.items():
        with JoinedRows(source, name) as rows:
            for rank in range(world_size):
                first = min(rank * rank_rows[name], total)
                last = min(first + rank_rows[name], total)
                ids = np.arange(first, last)
                # torch warns about read-only buffers.
                writable = np.require(rows.read(first, last), requirements="W")
                saved_embeddings.write_rank(target_uri, name, rank, ids, writable)
    info = EmbInfo(tuple(totals), world_size, dict(source.dimensions))
    saved_embeddings.write_emb_info(target_uri, info)
    return _not_kept(source)


def _not_kept(source: Checkpoint) -> list[str]:
    lost = []
    source = copy(source)
    source.allow_non_finite = True  # the target has none of these numbers
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


@contextmanager
def _open_pieces(ranks: Sequence[RankRows]) -> Iterator[list["_RankPiece"]]:
    with ExitStack() as stack:
        yield [_RankPiece(rank, stack) for rank in ranks if rank.num_rows]


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


def _shape(ranks: Sequence[RankRows], known_dimension: int) -> tuple[int, int]:
    widths = [rank.shape[1] if len(rank.shape) == 2 else 1 for rank in ranks if rank.num_rows]
    return sum(rank.num_rows for rank in ranks), widths[0] if widths else known_dimension
