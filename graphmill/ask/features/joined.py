"""Rows of one piece of a table with the vectors of their ids, as one file: a Dask task.

    part-{number:05d}.parquet   the rows of the piece, in their order, with more columns:
        vector          list<float32>   the vector; with `as_columns` vector_0, vector_1, ...: float32
        components      list<float32>   its principal components; with `as_columns` component_0, ...
        similarity_ID   float32         its cosine with the vector of each of some ids
        has_vector      bool            false: the other columns are null

Shapes: N rows, U distinct ids of a slice, D dimension, K values of a vector, Q ids to compare with.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.entities import UNKNOWN, EntityTable, Numbers
from graphmill.ask.principal import Components, product
from graphmill.ask.relation import check_magnitude
from graphmill.checkpoints import Floats
from graphmill.display import progress
from graphmill.formats.parquet import iter_columns, new_file, open_parquet
from graphmill.sorted_arrays import distinct
from graphmill.storage import Checksums

ReadRows = Callable[[pa.Schema, Sequence[str], Any], Iterable[tuple[pa.Table, list[pa.Array]]]]
"""Reads a piece as etl/pieces.py does: blocks of rows, and the raw ids of some columns."""

HAS_VECTOR, CONFIDENCE = "has_vector", "confidence"
COUNTS = ("num_found", "num_folded_in", "num_missing", "num_without_id")
MOST_SIMILAR = 1000
MOST_ROWS = 1 << 20  # whose ids are looked up together
_ID_BYTES = 100  # a raw id and its place, roughly
_FOLDED_ROWS = 1 << 14
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Similar:
    """Ids that vectors are compared with, and their vectors [Q, D]."""

    ids: Sequence[str]
    vectors_QD: Floats

    def __call__(self, vectors_UD: Floats) -> Floats:
        """Compute the cosines, [U, Q]; those of a zero vector are 0."""
        return product(_unit(vectors_UD), _unit(self.vectors_QD).T.copy())


def _unit(vectors_ND: Floats) -> npt.NDArray[np.float64]:
    rows_ND = vectors_ND.astype(np.float64)
    length_N1 = np.sqrt(np.einsum("nd,nd->n", rows_ND, rows_ND))[:, None]
    return rows_ND / np.where(length_N1 > 0, length_N1, 1)


@dataclass(frozen=True, eq=False)
class Form:
    """Columns that are made of the vectors of one type.

    Attributes:
        stem: what the names of the columns begin with.
        dimension: length of the vectors.
        components: principal components, instead of the vectors.
        similar: ids to compare with, instead of the vectors.
        as_columns: a column for each number, instead of one of lists.
        tells_confidence: add the confidence of vectors that were folded in.
    """

    dimension: int
    stem: str = ""
    components: Components | None = None
    similar: Similar | None = None
    as_columns: bool = False
    tells_confidence: bool = False

    @property
    def fields(self) -> list[pa.Field]:
        """The columns."""
        values = [pa.field(name, self._kind) for name in self._names]
        more = [pa.field(f"{self.stem}{CONFIDENCE}", pa.float32())] if self.tells_confidence else []
        return [*values, pa.field(f"{self.stem}{HAS_VECTOR}", pa.bool_()), *more]

    def values(self, vectors_UD: Floats) -> Floats:
        """Compute the numbers of vectors, [U, K]."""
        made = self.similar or self.components
        return vectors_UD if made is None else made(vectors_UD)

    def columns(
        self, values_UK: Floats, place_N: Numbers, confidence_U: Floats | None = None
    ) -> list[pa.Array]:
        """Make the columns of rows from places [N] of `values`, -1: none; a NaN confidence becomes null."""
        is_missing_N = place_N < 0
        if len(values_UK):
            values_NK = values_UK[np.where(is_missing_N, 0, place_N)]
        else:
            values_NK = np.zeros((len(place_N), values_UK.shape[1]), np.float32)
        if self._kind == pa.float32():
            columns = [pa.array(np.ascontiguousarray(value_N), mask=is_missing_N) for value_N in values_NK.T]
        else:
            columns = [_lists(values_NK, is_missing_N)]
        columns.append(pa.array(~is_missing_N))
        if self.tells_confidence:
            confidence_N = np.full(len(place_N), np.nan, np.float32)
            if confidence_U is not None and len(confidence_U):
                confidence_N = np.where(is_missing_N, np.float32(np.nan), confidence_U[place_N])
            columns.append(pa.array(confidence_N, mask=np.isnan(confidence_N)))
        return columns

    @property
    def _kind(self) -> pa.DataType:
        return pa.float32() if self.as_columns or self.similar else pa.list_(pa.float32())

    @property
    def _names(self) -> list[str]:
        if self.similar is not None:
            return [f"{self.stem}similarity_{raw_id}" for raw_id in self.similar.ids]
        several, one = ("vector", "vector") if self.components is None else ("components", "component")
        if not self.as_columns:
            return [f"{self.stem}{several}"]
        num = self.dimension if self.components is None else self.components.axes_DK.shape[1]
        return [f"{self.stem}{one}_{number}" for number in range(num)]


def _lists(values_NK: Floats, is_missing_N: npt.NDArray[np.bool_]) -> pa.Array:
    """Lists of K numbers; null where missing."""
    size_N = np.where(is_missing_N, 0, values_NK.shape[1])
    start_N = np.concatenate([[0], np.cumsum(size_N)]).astype(np.int32)
    values = pa.array(values_NK[~is_missing_N].reshape(-1))
    return pa.ListArray.from_arrays(pa.array(start_N), values, mask=pa.array(is_missing_N))


@dataclass(frozen=True)
class IdColumn:
    """A column of ids, and what is added for it; small, because every task receives it.

    Attributes:
        folded: files of vectors of ids that the run does not know.
    """

    name: str
    table: EntityTable
    form: Form
    folded: tuple[str, ...]


@dataclass(frozen=True)
class Joining:
    """Inputs that every task needs: the columns of the table, and the columns of ids among them."""

    schema: pa.Schema
    columns: tuple[IdColumn, ...]
    memory_bytes: int

    @property
    def result(self) -> pa.Schema:
        """Columns of the result."""
        return pa.schema([*self.schema, *(field for column in self.columns for field in column.form.fields)])

    @property
    def slice_rows(self) -> int:
        """Rows whose vectors are in memory at a time: they take a quarter of the memory."""
        widest = max(max(column.table.dimension, len(column.form.fields)) for column in self.columns)
        return int(np.clip(self.memory_bytes // 4 // (32 * widest + _ID_BYTES), 1, 1 << 17))


def write_part(joining: Joining, read: ReadRows, group: Any, uri: str) -> dict[str, Any]:
    """Write the file of one piece; return counts by column, and its checksum."""
    counts: dict[str, Any] = {"num_rows": 0}
    counts["columns"] = [dict.fromkeys(COUNTS, 0) | {"missing": []} for _ in joining.columns]
    names = joining.schema.names
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": names, "write_statistics": names}
    checksums: Checksums = {}
    with new_file(uri, joining.result, checksums, is_large=True, **options) as parquet:
        blocks = read(joining.schema, [column.name for column in joining.columns], group)
        for rows, ids in _chunks(blocks, joining.memory_bytes // 4):
            added = [_LookedUpIds(column, own) for column, own in zip(joining.columns, ids, strict=True)]
            for start in range(0, len(rows), joining.slice_rows):
                progress.stop_if_cancelled()
                part = rows.slice(start, joining.slice_rows)
                more = [
                    column
                    for looked_up, count in zip(added, counts["columns"], strict=True)
                    for column in looked_up.columns(start, len(part), count)
                ]
                parquet.write_table(pa.table([*part.columns, *more], schema=joining.result))
            counts["num_rows"] += len(rows)
    counts["checksum"] = checksums[uri]
    return counts


def find_vectors(table: EntityTable, ids: pa.Array) -> tuple[Numbers, Floats]:
    """Find numbers and vectors of a few ids (string [Q]); a Dask task."""
    numbers = table.find(ids)
    vectors_QD = table.gather(numbers)
    check_magnitude(vectors_QD, f"{table.trained.checkpoint_path}: {table.entity_type!r}")
    return numbers, vectors_QD


def _chunks(
    blocks: Iterable[tuple[pa.Table, list[pa.Array]]], most_bytes: int
) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Join neighbouring blocks whose ids are looked up together."""
    pending: list[tuple[pa.Table, list[pa.Array]]] = []
    num_rows = num_bytes = 0

    def joined() -> tuple[pa.Table, list[pa.Array]]:
        tables, ids = zip(*pending, strict=True)
        return pa.concat_tables(tables), [
            pa.chunked_array(own, pa.string()).combine_chunks() for own in zip(*ids, strict=True)
        ]

    for rows, ids in blocks:
        pending.append((rows, ids))
        num_rows, num_bytes = num_rows + len(rows), num_bytes + rows.nbytes + _ID_BYTES * len(rows) * len(ids)
        if num_rows >= MOST_ROWS or num_bytes >= most_bytes:
            yield joined()
            pending, num_rows, num_bytes = [], 0, 0
    if pending:
        yield joined()


class _LookedUpIds:
    """The ids (string, or null) of a chunk's column, looked up."""

    def __init__(self, column: IdColumn, ids: pa.Array) -> None:
        self._column = column
        encoded = ids.dictionary_encode()
        self._names = encoded.dictionary
        self._code_N: Numbers = encoded.indices.fill_null(UNKNOWN).to_numpy().astype(np.int64)
        self._number_of: Numbers = column.table.find(self._names)

    def columns(self, start: int, num: int, counts: dict[str, Any]) -> list[pa.Array]:
        """Make the columns of some rows; add to the counts."""
        table, form = self._column.table, self._column.form
        code_N = self._code_N[start : start + num]
        code_U = distinct(code_N[code_N >= 0])
        number_U = self._number_of[code_U]
        is_known_U = number_U != UNKNOWN
        vectors_UD = table.gather(number_U)
        confidence_U = np.full(len(code_U), np.nan, np.float32)
        missing = np.flatnonzero(~is_known_U)
        if len(missing):
            for place, vectors_MD, confidence_M in _folded(self._column, self._names, code_U[missing]):
                vectors_UD[missing[place]] = vectors_MD
                confidence_U[missing[place]] = confidence_M
        is_folded_U = ~np.isnan(confidence_U)
        check_magnitude(vectors_UD, f"{table.trained.checkpoint_path}: {table.entity_type!r}")
        at_N = np.searchsorted(code_U, code_N)
        at_N[code_N < 0] = UNKNOWN
        has_vector_U = is_known_U | is_folded_U
        place_N = np.where((at_N >= 0) & np.append(has_vector_U, False)[at_N], at_N, UNKNOWN)
        rows_U = np.bincount(at_N[at_N >= 0], minlength=len(code_U))
        counts["num_without_id"] += int((at_N < 0).sum())
        counts["num_found"] += int(rows_U[is_known_U].sum())
        counts["num_folded_in"] += int(rows_U[is_folded_U].sum())
        counts["num_missing"] += int(rows_U[~has_vector_U].sum())
        if len(counts["missing"]) < _SHOWN:
            unknown = self._names.take(pa.array(code_U[~has_vector_U])).to_pylist()
            counts["missing"] = [*dict.fromkeys([*counts["missing"], *unknown])][:_SHOWN]
        return form.columns(form.values(vectors_UD), place_N, confidence_U)


def _folded(column: IdColumn, names: pa.Array, code_M: Numbers) -> Iterator[tuple[Numbers, Floats, Floats]]:
    """Find ids among the folded ones: their places in `code_M`, vectors and confidences."""
    wanted = names.take(pa.array(code_M))
    for uri in column.folded:
        with open_parquet(uri, storage.manifest_of_table(uri)) as parquet:
            columns = ["id", "embedding", "confidence"]
            for _, (ids, vectors, confidence) in iter_columns(parquet, uri, columns, _FOLDED_ROWS):
                at = pc.index_in(wanted, value_set=ids)
                place = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
                if len(place):
                    row = at.drop_null().to_numpy()
                    vectors_RD = vectors.flatten().to_numpy().reshape(len(ids), -1)
                    yield place, vectors_RD[row], confidence.to_numpy()[row]
