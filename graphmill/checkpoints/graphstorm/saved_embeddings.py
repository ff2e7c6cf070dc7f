"""GraphStorm's node embeddings, saved at `save_embed_path`.

    {embed_path}/
        emb_info.json                       format, emb_name, world_size, emb_dim
        {type}/embed-{rank:05d}.pt          [n, D] float32; also other floats, integers, and [n]
        {type}/embed_nids-{rank:05d}.pt     [n] int64, the integer ids of its rows, in any order
        embed_dict.hdf5                     instead, with the format hdf5: {type} [N, D], rows in order

Older writers omit the ids: then rank r of W has the ids from r * (N // W) on, and the last rank has the
remainder. A multi-task run has one such folder per task.
Source: docs/formats/graphstorm_embeddings.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.checkpoints.graphstorm import saved_ranks
from graphmill.checkpoints.graphstorm.saved_ranks import Array, Numbers, RankRows, checked_name
from graphmill.errors import FormatError

EMB_INFO = "emb_info.json"
EMBED = "embed"
NIDS = "embed_nids"
HDF5 = "embed_dict.hdf5"

Floats = npt.NDArray[np.floating]


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
    if is_hdf5 and isinstance(names, dict):
        names = [*names]
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not listed:
        raise FormatError(f"{uri}: {key}: expected a type's name or a list of them, found {names!r}")
    types = tuple(checked_name(each, f"{uri}: emb_name") for each in listed)
    if len(set(types)) < len(types):
        raise FormatError(f"{uri}: emb_name: expected each type once, found {', '.join(types)}")
    dimensions = content.get("emb_dim", {})
    if not isinstance(dimensions, dict) or not all(
        isinstance(dimension, int) for dimension in dimensions.values()
    ):
        raise FormatError(f"{uri}: emb_dim: expected the dimension of each type, found {dimensions!r}")
    return EmbInfo(types, None if is_hdf5 else world_size, dimensions, is_hdf5)


def write_emb_info(embed_path: str, emb_info: EmbInfo) -> None:
    """Write emb_info.json, the last file to be written."""
    content = {
        "emb_name": list(emb_info.entity_types),
        "world_size": emb_info.world_size,
        "emb_dim": dict(emb_info.dimensions),
    }
    saved_ranks.write_info(emb_info_uri(embed_path), content)


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
        found = [saved_ranks.measure_hdf5(storage.join(embed_path, HDF5), entity_type)]
    else:
        found = saved_ranks.list_ranks(folder, EMBED, [NIDS], world_size, optional=True)
    filled = [each for each in found if each.num_rows]
    if filled and len(filled[0].shape) == 1:
        dimension = None  # of [n], GraphStorm writes the length as emb_dim
    for each in filled:
        width = each.shape[1] if len(each.shape) == 2 else 1
        dimension = dimension or width
        if width != dimension or len(each.shape) != len(filled[0].shape):
            raise FormatError(f"{each.values_uri}: expected dimension {dimension}, found shape {each.shape}")
    return found if found[0].nids_uris else _numbered_by_rank(found)


def write_rank(embed_path: str, entity_type: str, rank: int, nids: Numbers, embeddings: Floats) -> None:
    """Write one rank's rows: ids int64 [n] and float32 [n, D], each as one plain tensor."""
    columns: dict[str, Array] = {EMBED: np.asarray(embeddings, np.float32), NIDS: np.asarray(nids, np.int64)}
    saved_ranks.write_rank(storage.join(embed_path, entity_type), rank, columns)


def _numbered_by_rank(found: list[RankRows]) -> list[RankRows]:
    total, last = sum(each.num_rows for each in found), len(found) - 1
    share = total // len(found)
    for position, each in enumerate(found):
        expected = share if position < last else total - share * last
        if each.rank != position or each.num_rows != expected:
            raise FormatError(
                f"{each.values_uri}: there are no {NIDS}-*.pt, so {total} rows should lie in {len(found)} "
                f"ranks by {share}, the last with the rest; expected {expected} rows, found {each.num_rows}"
            )
    return [replace(each, first_nid=position * share) for position, each in enumerate(found)]
