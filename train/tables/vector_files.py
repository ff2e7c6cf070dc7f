"""Parquet files with vectors by raw id, which users bring: found by path, read in batches, checked.

    id          string or integer       raw id
    embedding   list of floats          all of one length; list, large list or fixed-size list

Other columns are left alone: the stage remap's own files are such files. Files may be larger than memory: a
batch has at most `BATCH_BYTES`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from graphmill import storage
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.parquet import are_vectors, bounds, column_type, open_parquet
from graphmill.formats.raw_ids import may_be_ids, strings_of

ID, VALUES = "id", "embedding"
BATCH_BYTES = 32 << 20
"""Numbers of a batch, as float32."""

_REMEDY = "correct the file, or leave the row out: ids without a vector are drawn"
_BATCH_ROWS = 1 << 16

Floats = npt.NDArray[np.float32]


class VectorBatch(NamedTuple):
    """Rows of a file: n raw ids (string), and their vectors [n, L]."""

    file: int
    first_row: int
    ids: pa.Array
    vectors_nL: Floats


class VectorFiles:
    """The files at a path, in the order of their names."""

    def __init__(self, path: str) -> None:
        """Expand `path`, a file, a folder or a glob pattern, and read the footers."""
        self.path = path
        self.uris = [file.uri for file in storage.files_at(*storage.split_pattern(path))[0]]
        if not self.uris:
            raise NotFoundError(f"{path}: no parquet file there to read vectors from (train.init_embeddings)")
        self.num_rows = [_checked_rows(uri) for uri in self.uris]
        self._length: int | None = None

    @property
    def length(self) -> int:
        """Length of the vectors, L; 0 where there is none."""
        if self._length is None:
            next(self.batches(), None)
        return self._length or 0

    def batches(self) -> Iterator[VectorBatch]:
        """Read all rows, file by file."""
        for number, uri in enumerate(self.uris):
            with open_parquet(uri, storage.manifest_of_table(uri)) as parquet:
                yield from self._batches_of(number, uri, parquet)

    def place(self, number: int) -> str:
        """Describe a row, by its number among the rows of all files."""
        file = int(np.searchsorted(np.cumsum(self.num_rows), number, side="right"))
        return f"{self.uris[file]}: row {number - sum(self.num_rows[:file])}"

    def _batches_of(self, number: int, uri: str, parquet: pq.ParquetFile) -> Iterator[VectorBatch]:
        most = max(1, min(_BATCH_ROWS, BATCH_BYTES // max(_row_bytes(parquet), 1)))
        rows = bounds.batch_rows(parquet, uri, [ID, VALUES], most)
        first = 0
        for batch in parquet.iter_batches(rows, columns=[ID, VALUES]):
            if len(batch):
                ids, lists = batch.column(ID), batch.column(VALUES)
                _refuse(uri, first, pc.is_null(ids), f"column {ID!r}: expected a raw id, found null")
                yield VectorBatch(number, first, strings_of(ids), self._checked(uri, first, lists))
            first += len(batch)

    def _checked(self, uri: str, first: int, lists: pa.Array) -> Floats:
        column = f"column {VALUES!r}"
        _refuse(uri, first, pc.is_null(lists), f"{column}: expected a vector, found null")
        lengths = pc.list_value_length(lists)
        if self._length is None:
            self._length = lengths[0].as_py()
        expected = f"{column}: expected {self._length or 'one or more'} numbers, as in the first row of all"
        is_other = pc.or_(pc.not_equal(lengths, self._length), pc.equal(lengths, 0))
        _refuse(uri, first, is_other, f"{expected}, found a vector of another length")
        flat = lists.flatten()
        if flat.null_count:
            is_null = pc.is_null(flat).to_numpy(zero_copy_only=False).reshape(len(lists), -1).any(axis=1)
            _refuse(uri, first, is_null, f"{column}: expected numbers, found null")
        with np.errstate(over="ignore"):
            vectors_nL: Floats = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        vectors_nL = vectors_nL.reshape(len(lists), -1)
        is_wrong = ~np.isfinite(vectors_nL).all(axis=1)
        _refuse(uri, first, is_wrong, f"{column}: expected finite numbers of float32, found NaN or infinity")
        return vectors_nL


def paths_of(path: str) -> list[str]:
    """List what `path` names: itself, or the files and folders that match it as a glob pattern."""
    uri, patterns = storage.split_pattern(path)
    if not patterns:
        return [path] if storage.exists(uri) else []
    return sorted(entry.uri for entry in storage.matches(uri, patterns)[0])


def _checked_rows(uri: str) -> int:
    with open_parquet(uri) as parquet:
        bounds.check_rows(parquet, uri)
        for name, is_accepted, wanted in (
            (ID, may_be_ids, "string or integer"),
            (VALUES, are_vectors, "a list of floats"),
        ):
            kind = column_type(parquet.schema_arrow, name, uri)
            if kind is None or not is_accepted(kind):
                raise FormatError(
                    f"{uri}: column {name!r}: expected {wanted}, found {kind or 'no such column'}; vectors "
                    f"(train.init_embeddings) have the columns {ID!r} and {VALUES!r}"
                )
        num_rows: int = parquet.metadata.num_rows
        return num_rows


def _row_bytes(parquet: pq.ParquetFile) -> int:
    """Mean bytes of a vector as float32, from the footer."""
    metadata = parquet.metadata
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(metadata.num_columns))
    num_values = sum(column.num_values for column in columns if column.path_in_schema.split(".")[0] == VALUES)
    return int(4 * num_values // max(metadata.num_rows, 1))


def _refuse(uri: str, first: int, is_wrong: pa.Array | npt.NDArray[np.bool_], problem: str) -> None:
    wrong = np.flatnonzero(np.asarray(is_wrong))
    if len(wrong):
        raise FormatError(f"{uri}: row {first + int(wrong[0])}: {problem}; {_REMEDY}")
