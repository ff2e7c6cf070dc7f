"""Columns that vectors become beside the rows of a table.

    vector          list<float32>   the vector; with `as_columns` vector_0, vector_1, ...: float32
    components      list<float32>   its principal components; with `as_columns` component_0, ...
    similarity_ID   float32         its cosine with the vector of each of some ids
    has_vector      bool            false: the other columns are null

Shapes: U distinct ids, N rows, D dimension, K values of a vector, Q ids to compare with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.ask.principal import Components, product
from graphmill.checkpoints import Floats

Numbers = npt.NDArray[np.int64]

HAS_VECTOR = "has_vector"
CONFIDENCE = "confidence"
MOST_SIMILAR = 1000


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
