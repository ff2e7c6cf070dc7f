"""One partition: its raw ids and its vectors, row by row, into one parquet file.

At most `batch_rows` rows are in memory. PyTorch-BigGraph's JSON list of names is an exception: its raw ids
are all in memory.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from graphmill.checkpoints import Floats
from graphmill.checkpoints.finite import first_not_finite
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.formats import remapped
from remap.config import RemapConfig
from remap.output.custom import write_custom
from remap.sources.inputs import Inputs
from remap.sources.partition import MeasuredPartition, iter_ids, iter_vectors
from remap.strings.distinct import Hashes, first_repeated, hashes_of, repeated


def write_partition(
    inputs: Inputs, part: MeasuredPartition, embedding_path: str, settings: RemapConfig
) -> dict[str, int]:
    """Write one partition's files and count their rows again; the rows of each file.

    Raises:
        FormatError: ids or embeddings have changed since they were measured, or are damaged, or a vector is
            not finite.
    """
    rows = _checked_rows(inputs, part, settings.batch_rows)
    if not settings.is_standard:
        return write_custom(rows, part, embedding_path, settings)
    with remapped.new_part(
        embedding_path, part.entity_type, part.partition, part.dimension, settings.compression
    ) as writer:
        for ids, vectors_ND in rows:
            writer.append(ids, vectors_ND)
    written = remapped.shape_of(embedding_path, part.entity_type, part.partition)
    uri = remapped.part_uri(embedding_path, part.entity_type, part.partition)
    if written != (part.num_rows, part.dimension):
        raise FormatError(f"{uri}: expected {(part.num_rows, part.dimension)} as written, found {written}")
    return {uri: part.num_rows}


def _checked_rows(
    inputs: Inputs, part: MeasuredPartition, batch_rows: int
) -> Iterator[tuple[pa.Array, Floats]]:
    """Raw ids and vectors of the partition: (string [N], [N, D])."""
    num_read, hashes = 0, [np.empty(0, np.uint64)]
    # Ids and vectors have batches of the same size. The shorter side ends the loop, and the count shows it.
    for ids, vectors_ND in zip(
        iter_ids(inputs, part, batch_rows), iter_vectors(inputs, part, batch_rows), strict=False
    ):
        if not inputs.allow_non_finite:
            _check_finite(part, ids, vectors_ND, num_read)
        yield ids, vectors_ND
        num_read += len(ids)
        hashes.append(hashes_of(ids))
        # Ends the task here if it has been cancelled.
        progress.tell(f"remapping {part.entity_type} {part.partition}", num_read, part.num_rows, "rows")
    part.check_num_ids(num_read)
    _check_distinct(inputs, part, batch_rows, np.concatenate(hashes))


def _check_distinct(inputs: Inputs, part: MeasuredPartition, batch_rows: int, hashes: Hashes) -> None:
    suspects = repeated(hashes)
    found = first_repeated(iter_ids(inputs, part, batch_rows), suspects) if len(suspects) else None
    if found is not None:
        raw_id, first, second = found
        raise FormatError(
            f"{part.ids_uri}: raw id {raw_id!r} stands in row {first} and in row {second}; expected each once"
        )


def _check_finite(part: MeasuredPartition, ids: pa.Array, vectors_ND: Floats, first_row: int) -> None:
    """Refuse vectors that are not finite, with the raw id; the first vector is in row `first_row`."""
    row = first_not_finite(vectors_ND)
    if row is not None:
        raise FormatError(
            f"{part.embeddings_uri}: {part.entity_type!r}, partition {part.partition}, row "
            f"{first_row + row}: the vector of the raw id {ids[row].as_py()!r} is not finite; go back to a "
            "preserved epoch, or train again; remap.allow_non_finite: true writes it as it is"
        )
