"""GraphStorm's node embeddings, saved at `save_embed_path`.

    {embed_path}/
        emb_info.json                       format, emb_name, world_size, emb_dim
        {type}/embed-{rank:05d}.pt          [n, D] float32; also other floats, integers, and [n]
        {type}/embed_nids-{rank:05d}.pt     [n] int64, the integer ids of its rows, in any order
        embed_dict.hdf5                     instead, with the format hdf5: {type} [N, D], rows in order

Older writers omit the ids: then rank r of W has the ids from r * (N // W) on, and the last rank has the
remainder. A multi-task run has one such folder per task.
As a `Checkpoint` the layout holds only embeddings by integer id.
Source: docs/formats/graphstorm_embeddings.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graphmill import storage
from graphmill.checkpoints.checkpoint import Checkpoint
from graphmill.checkpoints.graphstorm import saved_ranks
from graphmill.checkpoints.graphstorm.saved_ranks import Array, Numbers, RankRows, checked_name
from graphmill.checkpoints.whole_tables import OrderedPiece, OrderedTable, WholeTablesCheckpoint, open_joined
from graphmill.errors import FormatError
from graphmill.model.parameters import parse_global_key, parse_operator_key

EMB_INFO = "emb_info.json"
EMBED = "embed"
NIDS = "embed_nids"
HDF5 = "embed_dict.hdf5"

_RANK_BYTES = 32 << 20


@dataclass(frozen=True)
class EmbInfo:
    """Content of emb_info.json: the entity types, the number of ranks, the dimensions, where known."""

    entity_types: tuple[str, ...]
    world_size: int | None
    dimensions: Mapping[str, int]
    is_hdf5: bool = False


def emb_info_uri(embed_path: str) -> str:
    """Place of emb_info.json."""
    return storage.join(embed_path, EMB_INFO)


def read_emb_info(embed_path: str) -> EmbInfo:
    """Read emb_info.json."""
    uri = emb_info_uri(embed_path)
    content, world_size = saved_ranks.read_info(uri, ("pytorch", "hdf5"))
    is_hdf5 = content.get("format") == "hdf5"
    key = "emb_dim" if is_hdf5 else "emb_name"
    names = content.get(key)
    listed = [names] if isinstance(names, str) else [*names] if isinstance(names, dict | list) else []
    if not listed:
        raise FormatError(f"{uri}: {key}: expected a type's name or a list of them, found {names!r}")
    types = tuple(checked_name(name, f"{uri}: emb_name") for name in listed)
    if len(set(types)) < len(types):
        raise FormatError(f"{uri}: emb_name: expected each type once, found {', '.join(types)}")
    dimensions = content.get("emb_dim", {})
    if not isinstance(dimensions, dict) or not all(
        type(dimension) is int and dimension >= 0 for dimension in dimensions.values()
    ):
        raise FormatError(f"{uri}: emb_dim: expected the dimension of each type, found {dimensions!r}")
    return EmbInfo(types, None if is_hdf5 else world_size, dimensions, is_hdf5)


def write_emb_info(embed_path: str, emb_info: EmbInfo) -> None:
    """Write emb_info.json, the last file to be written."""
    content = {
        "format": "pytorch",
        "emb_name": list(emb_info.entity_types),
        "world_size": emb_info.world_size,
        "emb_dim": dict(emb_info.dimensions),
    }
    storage.write_json(emb_info_uri(embed_path), content, indent=4)


def list_ranks(
    embed_path: str,
    entity_type: str,
    world_size: int | None = None,
    dimension: int | None = None,
    *,
    is_hdf5: bool = False,
) -> list[RankRows]:
    """The files of a type in the order of their ranks, with their shapes; reads no rows."""
    folder = storage.join(embed_path, entity_type)
    if is_hdf5:
        ranks = [saved_ranks.measure_hdf5(storage.join(embed_path, HDF5), entity_type)]
    else:
        ranks = saved_ranks.list_ranks(folder, EMBED, [NIDS], world_size, optional=True)
    for rank in ranks:  # of [n], GraphStorm writes the length as emb_dim
        if rank.num_rows and len(rank.shape) == 2 and rank.shape[1] != (dimension or rank.shape[1]):
            raise FormatError(f"{rank.values_uri}: expected dimension {dimension}, found shape {rank.shape}")
    return ranks if ranks[0].nids_uris else _numbered_by_rank(ranks)


def write_rank(embed_path: str, entity_type: str, rank: int, nids: Numbers, embeddings: Array) -> None:
    """Write one rank's rows: ids int64 [n] and float32 [n, D], each as one plain tensor."""
    import torch

    columns: dict[str, Array] = {EMBED: np.asarray(embeddings, np.float32), NIDS: np.asarray(nids, np.int64)}
    for stem, rows in columns.items():
        uri = saved_ranks.file_uri(storage.join(embed_path, entity_type), stem, rank)
        with storage.atomic_output(uri) as stream:
            torch.save(torch.from_numpy(np.require(rows, requirements=["C", "W"])), stream)


def _numbered_by_rank(ranks: list[RankRows]) -> list[RankRows]:
    total, last = sum(rank.num_rows for rank in ranks), len(ranks) - 1
    share = total // len(ranks)
    for position, rank in enumerate(ranks):
        expected = share if position < last else total - share * last
        if rank.rank != position or rank.num_rows != expected:
            raise FormatError(
                f"{rank.values_uri}: there are no {NIDS}-*.pt, so {total} rows should lie in {len(ranks)} "
                f"ranks by {share}, the last with the rest; expected {expected} rows, found {rank.num_rows}"
            )
    return [replace(rank, first_nid=position * share) for position, rank in enumerate(ranks)]


class GraphStormCheckpoint(WholeTablesCheckpoint):
    """Embeddings in GraphStorm's layout."""

    def __init__(self, uri: str, entity_path: str | None = None, **_: object) -> None:
        """Counts of partitions are in `entity_path`; by default one. Raises FormatError on damage."""
        info = read_emb_info(uri)
        tables = {}
        for name in info.entity_types:
            dimension = info.dimensions.get(name)
            ranks = list_ranks(uri, name, info.world_size, dimension, is_hdf5=info.is_hdf5)
            if wrong := next((rank for rank in ranks if "float" not in rank.dtype), None):
                raise FormatError(f"{wrong.values_uri}: expected floats, found {wrong.dtype}")
            widths = [rank.shape[1] if len(rank.shape) == 2 else 1 for rank in ranks if rank.num_rows]
            shape = sum(rank.num_rows for rank in ranks), widths[0] if widths else dimension or 0
            tables[name] = OrderedTable(partial(open_pieces, ranks), shape, f"{uri}: {name}")
        super().__init__(uri, 0, tables, None, entity_path)


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write the embeddings of `source`, and return the names of the lost content: all else."""
    rank_rows = {name: max(1, _RANK_BYTES // (4 * max(size, 1))) for name, size in source.dimensions.items()}
    totals = {name: sum(counts) for name, counts in source.counts.items()}
    world_size = max(1, *(-(-total // rank_rows[name]) for name, total in totals.items()))
    for name, total in totals.items():
        with open_joined(source, name) as rows:
            for rank in range(world_size):
                first = min(rank * rank_rows[name], total)
                last = min(first + rank_rows[name], total)
                write_rank(target_uri, name, rank, np.arange(first, last), rows.read(first, last))
    write_emb_info(target_uri, EmbInfo(tuple(totals), world_size, source.dimensions))
    model = _allowing_all(source).read_model()
    parameters = list(model.parameters) if model else []
    lost = lost_operators(parameters)
    if added := [key for key in parameters if parse_global_key(key)]:
        lost.append(f"{', '.join(added)}, which is not added to the rows either")
    return not_kept(source, lost)


def lost_operators(keys: Iterable[str]) -> list[str]:
    """The parameters of relations among `keys`, in words."""
    operators = [key for key in keys if parse_operator_key(key)]
    return [f"{len(operators)} parameters of relations: {', '.join(operators[:4])}"] if operators else []


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
def open_pieces(ranks: Sequence[RankRows], ids: Numbers | None = None) -> Iterator[list[OrderedPiece]]:
    """Open the rows of all ranks; `ids` are those of all their rows, where files of ids do not say them."""
    with ExitStack() as stack:
        pieces, first = [], 0
        for rank in ranks:
            if rank.num_rows:
                (own,) = stack.enter_context(saved_ranks.open_nids(rank))
                own_ids = own if ids is None else ids[first : first + rank.num_rows]
                values = stack.enter_context(saved_ranks.open_values(rank))
                pieces.append(OrderedPiece(rank.num_rows, own_ids, values))
            first += rank.num_rows
        yield pieces
