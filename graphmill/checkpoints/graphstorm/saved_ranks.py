"""Numbered `.pt` files, one set per rank, and JSON, of GraphStorm's saved embeddings and predictions.

Predictions are saved at `save_prediction_path`; a multi-task run has one such folder per task. All files:

    {folder}/{stem}-{rank:05d}.pt       one tensor each; 5 digits, 6 from rank 100000 on
    {folder}/embed_dict.hdf5            instead: a dataset [N, D] for each type, in the order of the ids

The files of a rank belong together row by row: values ([n, D] or [n]), and one or two files of integer ids
([n] int64). Sources: docs/formats/graphstorm_embeddings.md,
docs/formats/graphstorm_predictions.md.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.hdf5 import find_dataset, open_checked
from graphmill.formats.torch_files.stored import TensorRows
from graphmill.formats.torch_files.tensor import open_tensor

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

ID_ROWS = 1 << 20

_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<number>[0-9]{1,9})\.pt$")


@dataclass(frozen=True)
class RankRows:
    """One rank's rows, with `shape` and `dtype` of the values; without files of ids, the ids count up."""

    rank: int
    values_uri: str
    nids_uris: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    first_nid: int = 0
    dataset: str | None = None
    """Name of the values in an HDF5 file; None for a file of one tensor."""

    @property
    def num_rows(self) -> int:
        """Rows of each of the files."""
        return self.shape[0]

    @property
    def uris(self) -> tuple[str, ...]:
        """All files of the rank."""
        return (self.values_uri, *self.nids_uris)


def file_uri(folder: str, stem: str, rank: int) -> str:
    """One file of a rank."""
    return storage.join(folder, f"{stem}-{rank:05d}.pt")


def list_ranks(
    folder: str,
    values_stem: str,
    nids_stems: Sequence[str],
    world_size: int | None = None,
    *,
    optional: bool = False,
) -> list[RankRows]:
    """The files of all ranks, in their order, with the shapes of the values; reads no rows.

    `values_stem` and `nids_stems` begin the names of the files of values and of ids. With `optional`, the
    files of ids may be missing for all ranks. Without `world_size`, any number of ranks is accepted.
    """
    files_of = _numbered_files(folder, (values_stem, *nids_stems))
    if optional and not any(files_of[stem] for stem in nids_stems):
        nids_stems = ()
    stems = (values_stem, *nids_stems)
    found = sorted({rank for files in files_of.values() for rank in files})
    if not found:
        raise NotFoundError(f"{folder}: expected {values_stem}-*.pt files, found none: already remapped?")
    ranks: Sequence[int] = found if world_size is None else range(world_size)  # maybe far more than files
    for rank in ranks:
        if missing := next((stem for stem in stems if rank not in files_of[stem]), None):
            raise NotFoundError(f"{file_uri(folder, missing, rank)}: there is no such file; others are there")
    for rank in found:
        if rank not in ranks:
            uri = next(files[rank] for files in files_of.values() if rank in files)
            raise FormatError(
                f"{uri}: expected files of {world_size} ranks, as the JSON beside says; "
                "is this one left from another run?"
            )
    measured = [_measure(rank, *(files_of[stem][rank] for stem in stems)) for rank in ranks]
    filled = [rows for rows in measured if rows.num_rows]
    for rows in filled:
        if (rows.dtype, rows.shape[1:]) != (filled[0].dtype, filled[0].shape[1:]):
            raise FormatError(
                f"{rows.values_uri}: expected rows as {filled[0].values_uri} has, {filled[0].dtype} of shape "
                f"{filled[0].shape}, found {rows.dtype} of shape {rows.shape}"
            )
    return measured


def _numbered_files(folder: str, stems: Sequence[str]) -> dict[str, dict[int, str]]:
    uris: dict[str, dict[int, str]] = {stem: {} for stem in stems}
    for entry in storage.list_dir(folder):
        match = _NUMBERED.match(storage.name(entry.uri))
        if not match or entry.is_dir or match["stem"] not in uris:
            continue
        earlier = uris[match["stem"]].setdefault(int(match["number"]), entry.uri)
        if earlier != entry.uri:
            raise FormatError(f"{entry.uri}: expected one file of that number, found also {earlier}")
    return uris


def _measure(rank: int, values_uri: str, *nids_uris: str) -> RankRows:
    with open_tensor(values_uri) as values:
        dtype, shape = values.dtype, values.shape
    if len(shape) > 2 or (shape[0] and 0 in shape):
        raise FormatError(f"{values_uri}: expected a tensor [n, D] or [n], found shape {shape}")
    for uri in nids_uris:
        with open_tensor(uri) as nids:
            if nids.dtype not in ("int64", "int32") or nids.shape not in ((shape[0],), (shape[0], 1)):
                raise FormatError(
                    f"{uri}: expected {shape[0]} integers, as {values_uri} has {shape[0]} rows, found "
                    f"{nids.dtype} of shape {nids.shape}"
                )
    return RankRows(rank, values_uri, nids_uris, dtype, shape)


def iter_rows(
    ranked: RankRows, batch_rows: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[tuple[Numbers, ...], Array]]:
    """Ids (int64 [n], one for each file of ids, or one) and values ([n, D] or [n]) of rows start..stop.

    n is at most `batch_rows`; bfloat16 comes as float32, all else as it is stored.
    """
    end = ranked.num_rows if stop is None else min(stop, ranked.num_rows)
    with open_values(ranked) as read_values, open_nids(ranked) as nids:
        for first in range(start, end, batch_rows):
            last = min(first + batch_rows, end)
            yield tuple(read(first, last) for read in nids), read_values(first, last)


def iter_ids(ranked: RankRows) -> Iterator[tuple[int, Numbers]]:
    """The first row and the ids, int64 [n], of rows of a rank with one file of ids or none."""
    with open_nids(ranked) as (read,):
        for first in range(0, ranked.num_rows, ID_ROWS):
            yield first, read(first, min(first + ID_ROWS, ranked.num_rows))


@contextmanager
def open_nids(ranked: RankRows) -> Iterator[list[Callable[[int, int], Numbers]]]:
    """Functions that read ids of rows [start, stop), int64 [n]: one for each file, or one that counts."""
    with ExitStack() as stack:
        files = [stack.enter_context(open_tensor(uri)) for uri in ranked.nids_uris]
        yield [partial(_read_nids, file) for file in files] or [
            lambda start, stop: np.arange(start, stop) + ranked.first_nid
        ]


def _read_nids(file: TensorRows, start: int, stop: int) -> Numbers:
    return np.asarray(file.read(start, stop).reshape(-1), np.int64)


@contextmanager
def open_values(ranked: RankRows) -> Iterator[Callable[[int, int], Array]]:
    """A function that reads the values of rows [start, stop), within the block."""
    if ranked.dataset is None:
        with open_tensor(ranked.values_uri) as values:
            yield values.read
        return
    with open_checked(ranked.values_uri, versioned=False) as hdf5:
        dataset = find_dataset(hdf5, ranked.dataset, ranked.values_uri)
        if dataset is None or dataset.shape != ranked.shape:
            raise FormatError(f"{ranked.values_uri}: expected {ranked.dataset!r} of shape {ranked.shape}")
        yield lambda start, stop: np.asarray(dataset[start:stop])


def measure_hdf5(uri: str, entity_type: str) -> RankRows:
    """The rows of a type in an HDF5 file, by their shape."""
    with open_checked(uri, versioned=False) as hdf5:
        dataset = find_dataset(hdf5, entity_type, uri)
        if dataset is None or dataset.dtype.kind not in "iuf" or dataset.ndim not in (1, 2):
            raise FormatError(f"{uri}: expected a dataset {entity_type!r} of numbers [N, D], found none")
        return RankRows(0, uri, (), str(dataset.dtype), tuple(dataset.shape), dataset=entity_type)


def checked_name(name: Any, where: str) -> str:
    """Check that `name` can be the name of a folder: a name in JSON must not lead out of its folder."""
    if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\\0"):
        raise FormatError(f"{where}: expected a name that can be a folder's, found {name!r}")
    return name


def read_info(uri: str, formats: Sequence[str] = ("pytorch",)) -> tuple[dict[str, Any], int | None]:
    """The JSON object in a file, and its `world_size`: the number of ranks that wrote, or None."""
    content: dict[str, Any] = storage.read_json(uri)
    kind, world_size = content.get("format", "pytorch"), content.get("world_size")
    if kind not in formats:
        known = " or ".join(map(repr, formats))
        raise FormatError(f"{uri}: expected the format {known}, found {kind!r}, which cannot be read")
    if kind != "hdf5" and world_size is not None and not (type(world_size) is int and world_size >= 1):
        raise FormatError(f"{uri}: world_size: expected an integer from 1 on, found {world_size!r}")
    return content, world_size


RESULT_INFO = "result_info.json"
PREDICT = "predict"
NODE_STEMS = ("predict_nids",)
EDGE_STEMS = ("src_nids", "dst_nids")

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class ResultInfo:
    """Content of result_info.json: node types and edge types with predictions, and the number of ranks."""

    entity_types: tuple[str, ...] = ()
    edge_types: tuple[EdgeType, ...] = ()
    world_size: int | None = None


def result_info_uri(prediction_path: str) -> str:
    """Place of result_info.json."""
    return storage.join(prediction_path, RESULT_INFO)


def edge_folder(prediction_path: str, edge_type: EdgeType) -> str:
    """The folder of an edge type; types may contain underscores, so no folder's name is split."""
    return storage.join(prediction_path, "_".join(edge_type))


def read_result_info(prediction_path: str) -> ResultInfo:
    """Read result_info.json; GraphStorm's page calls `ntypes` `emb_name`."""
    uri = result_info_uri(prediction_path)
    content, world_size = read_info(uri)
    types = content.get("ntypes", content.get("emb_name", []))
    listed = [types] if isinstance(types, str) else types
    edges = content.get("etypes", [])
    if not isinstance(listed, list) or not isinstance(edges, list) or not (listed or edges):
        raise FormatError(f"{uri}: expected lists ntypes or etypes, found {types!r} and {edges!r}")
    return ResultInfo(
        tuple(checked_name(name, f"{uri}: ntypes") for name in listed),
        tuple(checked_edge_type(edge, f"{uri}: etypes") for edge in edges),
        world_size,
    )


def checked_edge_type(edge_type: Any, where: str) -> EdgeType:
    """Check that `edge_type` has three names."""
    if not isinstance(edge_type, list | tuple) or len(edge_type) != 3:
        raise FormatError(f"{where}: expected [source type, relation, target type], found {edge_type!r}")
    src, rel, dst = (checked_name(name, where) for name in edge_type)
    return src, rel, dst
