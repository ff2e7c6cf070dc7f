"""The raw ids and vectors of one partition, checked row by row."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from graphmill.ask.entities import MeasuredPartition, iter_ids, iter_vectors
from graphmill.ask.run import TrainedRun
from graphmill.ask.strings.ids import Hashes, first_repeated, hashes_of, repeated
from graphmill.checkpoints import Floats
from graphmill.checkpoints.finite import first_not_finite
from graphmill.display import progress
from graphmill.errors import FormatError


def checked_rows(
    trained: TrainedRun, part: MeasuredPartition, batch_rows: int, *, doing: str = "remapping"
) -> Iterator[tuple[pa.Array, Floats]]:
    """Read raw ids and vectors of the partition, (string [N], [N, D]), and check them.

    Raises:
        FormatError: ids or vectors are damaged, a vector is not finite, or an id stands there twice.
    """
    num_read, hashes = 0, [np.empty(0, np.uint64)]
    # Batches of ids and of vectors have the same sizes. If one side is shorter, the count is wrong.
    for ids, vectors_ND in zip(
        iter_ids(trained, part, batch_rows), iter_vectors(trained, part, batch_rows), strict=False
    ):
        if not trained.allow_non_finite:
            _check_finite(part, ids, vectors_ND, num_read)
        yield ids, vectors_ND
        num_read += len(ids)
        hashes.append(hashes_of(ids))
        # A cancelled task ends here.
        progress.report(f"{doing} {part.entity_type} {part.partition}", num_read, part.num_rows, "rows")
    part.check_num_ids(num_read)
    _check_distinct(trained, part, batch_rows, np.concatenate(hashes))


def _check_distinct(trained: TrainedRun, part: MeasuredPartition, batch_rows: int, hashes: Hashes) -> None:
    suspects = repeated(hashes)
    duplicate = first_repeated(iter_ids(trained, part, batch_rows), suspects) if len(suspects) else None
    if duplicate is not None:
        raw_id, first, second = duplicate
        raise FormatError(
            f"{part.ids_uri}: raw id {raw_id!r} stands in row {first} and in row {second}; expected each once"
        )


def _check_finite(part: MeasuredPartition, ids: pa.Array, vectors_ND: Floats, first_row: int) -> None:
    """Refuse vectors that are not finite; rows count from `first_row`."""
    row = first_not_finite(vectors_ND)
    if row is not None:
        raise FormatError(
            f"{part.embeddings_uri}: {part.entity_type!r}, partition {part.partition}, row "
            f"{first_row + row}: the vector of the raw id {ids[row].as_py()!r} is not finite; go back to a "
            "preserved epoch, or train again; remap.allow_non_finite: true writes it as it is"
        )
