"""The table of bad rows, which cannot become edges.

quarantine/
    part-{source:06d}-{block:06d}.parquet
        file: string, start: int64, row: int64     `row` counts from 1 at `start`: a byte of a text file, a
                                                   stripe of an ORC file, else 0, the beginning of the file
        reason: string                             field and problem, and the name of an unknown relation
        lhs, rhs, relation, weight, id: string     the row as it was read; null: no such column
        text: string                               a line with too few or too many fields
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from etl.tables.check_rows import UNKNOWN_RELATION, BadRows
from graphmill import storage
from graphmill.display.readable import shortened

FIELDS = ("lhs", "rhs", "relation", "weight", "id", "text")
MAX_RELATIONS = 1000
MAX_NAME = 80
SCHEMA = pa.schema(
    [("file", pa.string()), ("start", pa.int64()), ("row", pa.int64()), ("reason", pa.string())]
    + [(field, pa.string()) for field in FIELDS]
)


def write_file(folder: str, source: int, block: int, bad: Sequence[BadRows]) -> None:
    """Write the bad rows of one chunk."""
    uri = storage.join(folder, f"part-{source:06d}-{block:06d}.parquet")
    with storage.atomic_output(uri) as stream:
        pq.write_table(pa.concat_tables(map(_table, bad)), stream)


def count_unknown_relations(bad: Iterable[BadRows], counts: Counter[str]) -> None:
    """Count bad rows by unknown relation; of more than MAX_RELATIONS names, the last are left out."""
    for rows in bad:
        for name, count in Counter(_unknown_relations(rows)).items():
            if name in counts or len(counts) < MAX_RELATIONS:
                counts[name] += count


def _unknown_relations(bad: BadRows) -> list[str]:
    if bad.reason != UNKNOWN_RELATION:
        return []
    return [shortened(_as_text(name) or "", MAX_NAME) for name in bad.block["relation"].to_pylist()]


def _table(bad: BadRows) -> pa.Table:
    num_rows = len(bad.rows)
    reasons = [f"{bad.reason} {name!r}" for name in _unknown_relations(bad)] or [bad.reason] * num_rows
    columns = {
        "file": pa.repeat(pa.scalar(bad.at.uri), num_rows),
        "start": pa.repeat(pa.scalar(bad.at.start, pa.int64()), num_rows),
        "row": pa.array(bad.rows, pa.int64()),
        "reason": pa.array(reasons, pa.string()),
    }
    for field in FIELDS:
        cells = bad.block[field].to_pylist() if field in bad.block.column_names else [None] * num_rows
        columns[field] = pa.array([_as_text(value) for value in cells], pa.string())
    return pa.table(columns, schema=SCHEMA)


def _as_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if value is None else str(value)
