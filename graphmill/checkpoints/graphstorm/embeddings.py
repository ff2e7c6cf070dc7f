"""GraphStorm's saved embeddings as `Checkpoint`: the layout holds only embeddings by integer id."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from graphmill.checkpoints.checkpoint import Checkpoint
from graphmill.checkpoints.graphstorm import saved_embeddings
from graphmill.checkpoints.graphstorm.saved_embeddings import EmbInfo
from graphmill.checkpoints.graphstorm.saved_ranks import RankRows, open_values
from graphmill.checkpoints.ordered import Numbers, OrderedPiece, OrderedTable
from graphmill.checkpoints.whole_tables import JoinedRows, WholeTablesCheckpoint
from graphmill.errors import FormatError
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
            ranks = saved_embeddings.list_ranks(uri, name, info.world_size, dimension, is_hdf5=info.is_hdf5)
            if wrong := next((rank for rank in ranks if "float" not in rank.dtype), None):
                raise FormatError(f"{wrong.values_uri}: expected floats, found {wrong.dtype}")
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
    model = _allowing_all(source).read_model()
    parameters = list(model.parameters) if model else []
    lost = lost_operators(parameters)
    if added := [key for key in parameters if parse_global_key(key)]:
        lost.append(f"{', '.join(added)}, which is not added to the rows either")
    return not_kept(source, lost)


def lost_operators(keys: Iterable[str]) -> list[str]:
    """The parameters of relations among `keys`, in words."""
    found = [key for key in keys if parse_operator_key(key)]
    return [f"{len(found)} parameters of relations: {', '.join(found[:4])}"] if found else []


def not_kept(source: Checkpoint, lost_parameters: list[str]) -> list[str]:
    """Name the content without a place in GraphStorm's files, which keep no state of embeddings."""
    source, lost = _allowing_all(source), []
    if any(source.read_optimizer_state(name, partition) for name, partition, _ in source.partitions()):
        lost.append("optimizer state of the embeddings")
    lost += lost_parameters
    model = source.read_model()
    if model and model.optimizer_state:
        lost.append("optimizer state of those parameters")
    if source.config is not None:
        lost.append("configuration")
    if source.iteration is not None:
        lost.append("iteration and version")
    if any(len(counts) > 1 for counts in source.counts.values()):
        lost.append("sizes of partitions; --entity-path brings them back")
    return lost


def _allowing_all(source: Checkpoint) -> Checkpoint:
    source = copy(source)
    source.allow_non_finite = True  # the target has none of these numbers
    return source


@contextmanager
def _open_pieces(ranks: Sequence[RankRows]) -> Iterator[list[OrderedPiece]]:
    with ExitStack() as stack:
        pieces = []
        for rank in ranks:
            if rank.num_rows:
                values = stack.enter_context(open_values(rank)).read
                ids: Callable[[int, int], Any] = partial(_count, rank.first_nid)
                if rank.nids_uris:
                    ids = stack.enter_context(open_tensor(rank.nids_uris[0])).read
                pieces.append(OrderedPiece(rank.num_rows, ids, values))
        yield pieces


def _count(first_id: int, start: int, stop: int) -> Numbers:
    return np.arange(first_id + start, first_id + stop)


def _shape(ranks: Sequence[RankRows], known_dimension: int) -> tuple[int, int]:
    widths = [rank.shape[1] if len(rank.shape) == 2 else 1 for rank in ranks if rank.num_rows]
    return sum(rank.num_rows for rank in ranks), widths[0] if widths else known_dimension
