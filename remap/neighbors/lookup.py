"""`python -m remap neighbors`: the nearest neighbours of an id, by the cosine of their vectors.

Up to `EXACT_ROWS` vectors, the search compares all, one batch at a time. More vectors need an index of faiss.

Shapes: D dimension.
"""

import pyarrow.compute as pc

from graphmill.errors import NotFoundError, suggestion
from graphmill.library.nearest import Floats, Neighbor, by_cosine, close_id, nearest
from remap.neighbors import faiss_index
from remap.neighbors.vector_tables import VectorTable, batches, find_types

EXACT_ROWS = 5_000_000


def find_id(tables: dict[str, list[VectorTable]], raw_id: str, entity_type: str | None) -> tuple[str, Floats]:
    """Find the type and the vector [D] of an id, in `entity_type` or in the first type that has the id."""
    if entity_type is not None and entity_type not in tables:
        raise NotFoundError(f"--type {entity_type}: {suggestion(entity_type, tables, 'expected one of')}")
    searched = [entity_type] if entity_type else list(tables)
    for name in searched:
        for table in tables[name]:
            if not any(pc.index(ids, raw_id).as_py() >= 0 for ids in table.iter_ids()):
                continue
            for ids, rows_ND in table.batches():  # to the end, where its checksum is compared
                if (row := pc.index(ids, raw_id).as_py()) >= 0:
                    vector_D = rows_ND[row].copy()
            return name, vector_D
    close = close_id(raw_id, (ids for name in searched for table in tables[name] for ids in table.iter_ids()))
    raise NotFoundError(f"--id {raw_id}: there is no such id among {', '.join(searched)}{close}")


def neighbors(
    folder: str, raw_id: str, k: int, entity_type: str | None, is_approximate: bool | None
) -> tuple[str, list[Neighbor]]:
    """Find the type of an id, and the `k` nearest of that type.

    With `is_approximate` None, an index serves types of more than `EXACT_ROWS` vectors.

    Raises:
        NotFoundError: there are no tables, or no such id.
        ConfigError: an index is needed, and faiss is not installed.
    """
    tables = find_types(folder)
    entity_type, vector_D = find_id(tables, raw_id, entity_type)
    searched = tables[entity_type]
    if is_approximate is None:
        is_approximate = sum(table.num_rows for table in searched) > EXACT_ROWS
    if not is_approximate:
        return entity_type, nearest(batches(searched), by_cosine(vector_D[None]), [raw_id], k)[0]
    index = faiss_index.open_index(folder, entity_type, searched)
    best = faiss_index.search(index, searched, vector_D, k + 1)
    return entity_type, [each for each in best if each.id != raw_id][:k]
