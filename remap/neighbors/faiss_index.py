"""An approximate index of faiss, made once and kept beside the tables.

    {folder}.faiss/{type}.index     inverted lists of vectors, one byte per coordinate
    {folder}.faiss/{type}.json      the tables that the index was made from, and its checksum

Shapes: D dimension, N vectors of a batch, K neighbours.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphmill import storage
from graphmill.errors import ConfigError
from graphmill.library.nearest import Floats, Neighbor, unit
from graphmill.run import record
from graphmill.storage.checksums import of_bytes
from remap.neighbors.vector_tables import VectorTable, batches

LISTS_SEARCHED = 64
TRAINING_ROWS_PER_LIST = 64

log = logging.getLogger("graphmill")


def open_index(folder: str, entity_type: str, tables: Sequence[VectorTable]) -> Any:
    """Read the index of a type's tables, or make the index if the tables have changed since."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "neighbors: many vectors, and --approximate, need faiss, which is not installed: "
            "pip install 'graphmill[neighbors]', or say --exact"
        ) from error
    stem = storage.join(folder.rstrip("/") + ".faiss", entity_type)
    made_from = {"vectors": record.describe_inputs([table.uri for table in tables])}
    if storage.exists(f"{stem}.json"):
        stored = storage.read_bytes(f"{stem}.index")
        if storage.read_json(f"{stem}.json") == made_from | {"checksum": of_bytes(stored)}:
            return faiss.deserialize_index(np.frombuffer(stored, np.uint8))
    log.info("neighbors: making an index of %s", entity_type)
    storage.delete(f"{stem}.json")
    index = _make_index(faiss, tables)
    stored = faiss.serialize_index(index).tobytes()
    with storage.atomic_output(f"{stem}.index") as stream:
        stream.write(stored)
    storage.write_text(f"{stem}.json", json.dumps(made_from | {"checksum": of_bytes(stored)}) + "\n")
    return index


def search(index: Any, tables: Sequence[VectorTable], vector_D: Floats, k: int) -> list[Neighbor]:
    """Find the `k` nearest to a vector, best first."""
    index.nprobe = LISTS_SEARCHED
    score_1K, row_1K = index.search(unit(vector_D[None]), k)
    names = dict(_ids_at(tables, row_1K[0].tolist()))
    pairs = zip(row_1K[0].tolist(), score_1K[0].tolist(), strict=True)
    return [Neighbor(names[row], score) for row, score in pairs if row >= 0]


def _make_index(faiss: Any, tables: Sequence[VectorTable]) -> Any:
    num_rows = sum(table.num_rows for table in tables)
    num_lists = max(1, min(int(4 * num_rows**0.5), num_rows // 39))
    step = max(1, num_rows // (num_lists * TRAINING_ROWS_PER_LIST))
    sample_ND = np.concatenate([rows_ND[::step] for _, rows_ND in batches(tables)])
    index = faiss.index_factory(sample_ND.shape[1], f"IVF{num_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(unit(sample_ND))
    for _, rows_ND in batches(tables):
        index.add(unit(rows_ND))
    return index


def _ids_at(tables: Sequence[VectorTable], rows: list[int]) -> Iterator[tuple[int, str]]:
    """Read the ids of rows; rows count through all tables."""
    start = 0
    for table in tables:
        if not any(start <= row < start + table.num_rows for row in rows):
            start += table.num_rows
            continue
        for ids in table.iter_ids():
            yield from ((row, ids[row - start].as_py()) for row in rows if start <= row < start + len(ids))
            start += len(ids)
