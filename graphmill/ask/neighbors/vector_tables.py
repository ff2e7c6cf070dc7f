"""Tables of vectors by raw id: ours, those of GraphStorm, or tables with renamed columns.

{folder}/{type}/*.parquet       a column of ids (strings or integers) and a column of lists of floats; or
                                the columns id, type and vector of remap
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.nearest import Floats
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.parquet import iter_columns, open_parquet

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class VectorTable:
    """One file, and the names of its columns."""

    uri: str
    ids: str
    vectors: str
    num_rows: int

    def batches(self) -> Iterator[tuple[pa.Array, Floats]]:
        """Read ids (string [N]) and vectors [N, D]."""
        with open_parquet(self.uri, storage.manifest_of_table(self.uri)) as parquet:
            for _, (ids, lists) in iter_columns(parquet, self.uri, [self.ids, self.vectors], BATCH_ROWS):
                if not len(ids):
                    continue
                values = lists.flatten()
                if values.null_count or len(pc.unique(pc.list_value_length(lists))) > 1:
                    raise FormatError(f"{self.uri}: expected vectors of one length, and no nulls")
                rows_ND = values.to_numpy(zero_copy_only=False).reshape(len(ids), -1)
                yield ids.cast(pa.string()), rows_ND.astype(np.float32, copy=False)

    def iter_ids(self) -> Iterator[pa.Array]:
        """Read ids alone, string [N] at a time."""
        with open_parquet(self.uri) as parquet:
            for _, (ids,) in iter_columns(parquet, self.uri, [self.ids], BATCH_ROWS):
                yield ids.cast(pa.string())


def batches(tables: Iterable[VectorTable]) -> Iterator[tuple[pa.Array, Floats]]:
    """Read ids (string [N]) and vectors [N, D] of all tables, one after the other."""
    for table in tables:
        yield from table.batches()


def find_types(folder: str) -> dict[str, list[VectorTable]]:
    """Find the tables of each type, in the order of their names."""
    found = {
        storage.name(entry.uri): [
            _open(each.uri) for each in storage.list_dir(entry.uri) if each.uri.endswith(".parquet")
        ]
        for entry in storage.list_dir(folder)
        if entry.is_dir
    }
    tables = {entity_type: each for entity_type, each in found.items() if each}
    if not tables:
        raise NotFoundError(f"{folder}: expected a folder with tables of vectors for each type, found none")
    return tables


def _open(uri: str) -> VectorTable:
    with open_parquet(uri) as parquet:
        fields = list(parquet.schema_arrow)
        if [field.name for field in fields[:3]] == ["id", "type", "embedding"]:
            fields = fields[:3]  # those behind, such as num_edges, are neither ids nor vectors
        num_rows = parquet.metadata.num_rows
    vectors = [field.name for field in fields if _is_vector(field.type)]
    ids = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_integer(f.type)]
    if [pa.types.is_string(f.type) for f in fields] == [True, True, False]:  # id, type, vector: ours
        ids = ids[:1]
    if len(vectors) != 1 or len(ids) != 1:
        raise FormatError(
            f"{uri}: expected one column of ids and one of lists of floats, found "
            f"{', '.join(f'{field.name} ({field.type})' for field in fields)}"
        )
    return VectorTable(uri, ids[0], vectors[0], num_rows)


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))
