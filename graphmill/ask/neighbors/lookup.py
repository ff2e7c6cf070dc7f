"""`python -m remap neighbors`: the nearest neighbours of an id, by the cosine of their vectors.

The search compares all vectors of the type, one batch at a time.

Shapes: D dimension.
"""

import pyarrow.compute as pc

from graphmill.ask.nearest import Floats, Neighbor, by_cosine, close_id, nearest
from graphmill.ask.neighbors.vector_tables import VectorTable, batches, find_types
from graphmill.errors import NotFoundError, suggestion


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


def neighbors(folder: str, raw_id: str, k: int, entity_type: str | None = None) -> tuple[str, list[Neighbor]]:
    """Find the type of an id, and the `k` nearest of that type.

    Raises:
        NotFoundError: there are no tables, or no such id.
    """
    tables = find_types(folder)
    entity_type, vector_D = find_id(tables, raw_id, entity_type)
    return entity_type, nearest(batches(tables[entity_type]), by_cosine(vector_D[None]), [raw_id], k)[0]
