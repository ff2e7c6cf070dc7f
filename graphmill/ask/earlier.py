"""Embeddings of an earlier run, whose ids are those of a part of this run.

Shapes: N ids that both runs have, M rows of a part of the earlier run, D dimension.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.checkpoints import Floats
from graphmill.config import Config
from graphmill.errors import BadInputError, ConfigError
from graphmill.formats import remapped

Numbers = npt.NDArray[np.int64]
Batches = Callable[[], Iterable[tuple[pa.Array, Floats]]]  # ids (string) and vectors of a part of this run


class Pairs(NamedTuple):
    """Vectors of the same ids: rows of the part of this run [N], and both vectors, float32 [N, D]."""

    row_N: Numbers
    now_ND: Floats
    then_ND: Floats


def parts_of(embedding_path: str, entity_type: str) -> list[int]:
    """Numbers of the parts of a type; none if the folder has no such type."""
    folder = storage.join(embedding_path, entity_type)
    if not storage.is_dir(folder):
        return []
    return list(range(sum(remapped.is_part(entry.uri) for entry in storage.list_dir(folder))))


def parts_with(part: int, num_parts: int, earlier: Sequence[int]) -> Sequence[int]:
    """List the earlier parts that may have ids of a part: the same one, as etl places ids by hash.

    If the number of partitions changed, return all of them.
    """
    return [part] if num_parts == len(earlier) else earlier


def check_earlier(key: str, uri: str, config: Config, entity_types: Collection[str]) -> None:
    """Refuse a folder that is the run's own, or that has no embeddings of any of the types."""
    if storage.absolute(uri) == storage.absolute(config.embedding_path):
        raise ConfigError(f"{key}: {uri} is also embedding_path; name the run to replace")
    if not any(parts_of(uri, name) for name in entity_types):
        listed = ", ".join(entity_types)
        raise ConfigError(f"{key}: {uri} has no embeddings of {listed}; name the `embeddings` of another run")


def check_length(embedding_path: str, entity_type: str, dimension: int, key: str) -> None:
    """Refuse vectors of another length than `dimension`."""
    length = remapped.shape_of(embedding_path, entity_type, 0)[1]
    if length != dimension:
        raise BadInputError(
            f"{key}: {entity_type!r} has vectors of length {dimension} now, of {length} in {embedding_path}; "
            f"they cannot be compared: users of the vectors must replace all. Remove {key} for this run"
        )


def pairs(batches: Batches, embedding_path: str, entity_type: str, parts: Sequence[int]) -> Iterator[Pairs]:
    """Find the vectors that ids of this run had, one earlier part in memory; `batches` is called for each."""
    for part in parts:
        ids, vectors_MD = _read(embedding_path, entity_type, part)
        start = 0
        for own_ids, own_ND in batches():
            place_N = pc.index_in(own_ids, ids)
            row_N = np.flatnonzero(place_N.is_valid().to_numpy(zero_copy_only=False))
            yield Pairs(start + row_N, own_ND[row_N], vectors_MD[place_N.drop_null().to_numpy()])
            start += len(own_ids)


def _read(embedding_path: str, entity_type: str, part: int) -> tuple[pa.ChunkedArray, Floats]:
    vectors_MD = np.empty(remapped.shape_of(embedding_path, entity_type, part), np.float32)
    ids, start = [], 0
    for batch, batch_ND in remapped.iter_part(embedding_path, entity_type, part):
        ids.append(batch)
        vectors_MD[start : start + len(batch)] = batch_ND
        start += len(batch)
    return pa.chunked_array(ids, pa.string()), vectors_MD
