"""`python -m remap neighbors`: what lies near to an id, so that a person can judge the vectors.

Without a relation, near is the cosine of two vectors. With one, the question is the model's own: of all
entities that the relation leads to, which scores highest with this one. Up to `EXACT_ROWS` vectors every one
is looked at, a batch at a time. Beyond, cosines come from an index of faiss, made once and kept:

    {folder}.faiss/{type}.index     inverted lists of vectors of one byte a coordinate
    {folder}.faiss/{type}.json      what it was made from

Shapes: D dimension, N vectors of a batch.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from graphmill import storage
from graphmill.errors import ConfigError, NotFoundError
from graphmill.library.nearest import Neighbor, merged, unit
from graphmill.run import record
from remap.neighbors.vectors import Floats, VectorTable, find_types

EXACT_ROWS = 5_000_000
LISTS_SEARCHED = 64
TRAINING_ROWS_OF_LIST = 64

Score = Callable[[Floats], Floats]  # vectors [N, D] -> how near each is, [N]

log = logging.getLogger("graphmill")


class Found(NamedTuple):
    """Where an id was found, and its vector [D]."""

    entity_type: str
    vector_D: Floats


def find_id(tables: dict[str, list[VectorTable]], raw_id: str, entity_type: str | None) -> Found:
    """The vector of an id, in one type or in the first that has it.

    Raises:
        NotFoundError: there is no such type, or no such id.
    """
    if entity_type is not None and entity_type not in tables:
        raise NotFoundError(f"--type {entity_type}: expected one of {', '.join(tables)}")
    searched = [entity_type] if entity_type else list(tables)
    for name in searched:
        for table in tables[name]:
            if not any(pc.index(ids, raw_id).as_py() >= 0 for ids in table.iter_ids()):
                continue
            for ids, rows_ND in table.batches():
                if (row := pc.index(ids, raw_id).as_py()) >= 0:
                    return Found(name, rows_ND[row].copy())
    raise NotFoundError(f"--id {raw_id}: there is no such id among {', '.join(searched)}")


def nearest(tables: Iterable[VectorTable], score: Score, leave_out: str | None, k: int) -> list[Neighbor]:
    """The `k` best of all vectors, best first; of equal ones the earlier. Those with a NaN are left out."""
    best: list[Neighbor] = []
    for table in tables:
        for ids, rows_ND in table.batches():
            best = merged(best, ids, score(rows_ND), leave_out, k)
    return best


def by_cosine(vector_D: Floats) -> Score:
    """How near, by the cosine with one vector."""
    unit_D = unit(vector_D[None])[0]
    return lambda rows_ND: np.asarray(unit(rows_ND) @ unit_D)


def neighbors(
    folder: str, raw_id: str, k: int, entity_type: str | None, is_approximate: bool | None
) -> tuple[str, list[Neighbor]]:
    """The type of an id, and the `k` nearest of that type; `is_approximate` None: by an index if many.

    Raises:
        NotFoundError: there are no tables, or no such id.
        ConfigError: an index is needed, and faiss is not installed.
    """
    tables = find_types(folder)
    found = find_id(tables, raw_id, entity_type)
    mine = tables[found.entity_type]
    num_rows = sum(table.num_rows for table in mine)
    if is_approximate or (is_approximate is None and num_rows > EXACT_ROWS):
        index = _open_index(folder, found.entity_type, mine)
        return found.entity_type, _search(index, mine, found.vector_D, raw_id, k)
    return found.entity_type, nearest(mine, by_cosine(found.vector_D), raw_id, k)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            f"neighbors: beyond {EXACT_ROWS:,} vectors, or with --approximate, faiss is used, which is not "
            "installed: pip install 'graphmill[neighbors]', or say --exact"
        ) from error
    return faiss


def _open_index(folder: str, entity_type: str, tables: Sequence[VectorTable]) -> Any:
    faiss = _faiss()
    place = storage.join(folder.rstrip("/") + ".faiss", entity_type)
    made_from = {"vectors": record.describe_inputs([table.uri for table in tables])}
    if storage.exists(f"{place}.json") and storage.read_json(f"{place}.json") == made_from:
        stored = np.frombuffer(storage.read_bytes(f"{place}.index"), np.uint8)
        return faiss.deserialize_index(stored)
    log.info("neighbors: making an index of %s", entity_type)
    storage.delete(f"{place}.json")
    index = _make_index(faiss, tables)
    with storage.atomic_output(f"{place}.index") as stream:
        stream.write(faiss.serialize_index(index).tobytes())
    storage.write_text(f"{place}.json", json.dumps(made_from) + "\n")
    return index


def _make_index(faiss: Any, tables: Sequence[VectorTable]) -> Any:
    num_rows = sum(table.num_rows for table in tables)
    num_lists = max(1, min(int(4 * num_rows**0.5), num_rows // 39))
    sample_ND = _sample(tables, num_rows, num_lists * TRAINING_ROWS_OF_LIST)
    dimension = sample_ND.shape[1]
    index = faiss.index_factory(dimension, f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(unit(sample_ND))
    for table in tables:
        for _, rows_ND in table.batches():
            index.add(unit(rows_ND))
    return index


def _sample(tables: Sequence[VectorTable], num_rows: int, wanted: int) -> Floats:
    """Every n-th vector: some `wanted` of them."""
    step = max(1, num_rows // wanted)
    return np.concatenate([rows_ND[::step] for table in tables for _, rows_ND in table.batches()])


def _search(
    index: Any, tables: Sequence[VectorTable], vector_D: Floats, raw_id: str, k: int
) -> list[Neighbor]:
    index.nprobe = LISTS_SEARCHED
    score_1K, row_1K = index.search(unit(vector_D[None]), k + 1)
    names = dict(_ids_at(tables, sorted(row_1K[0][row_1K[0] >= 0].tolist())))
    found = [
        Neighbor(names[row], float(score))
        for row, score in zip(row_1K[0].tolist(), score_1K[0], strict=True)
        if row >= 0
    ]
    return [each for each in found if each.id != raw_id][:k]


def _ids_at(tables: Sequence[VectorTable], rows: list[int]) -> Iterator[tuple[int, str]]:
    """Ids of rows that are counted through all tables, in order."""
    first = 0
    for table in tables:
        if any(first <= row < first + table.num_rows for row in rows):
            start = first
            for ids in table.iter_ids():
                yield from (
                    (row, ids[row - start].as_py()) for row in rows if start <= row < start + len(ids)
                )
                start += len(ids)
        first += table.num_rows
