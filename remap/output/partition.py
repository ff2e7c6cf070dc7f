"""The raw ids and vectors of one partition, written row by row into one parquet file.

At most `batch_rows` rows are in memory; of PyTorch-BigGraph's JSON list of names, all raw ids.
"""

from graphmill.ask.checked_rows import checked_rows
from graphmill.ask.inputs import Inputs
from graphmill.ask.partition import MeasuredPartition
from graphmill.checkpoints import Floats
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import FormatError
from graphmill.formats import remapped
from graphmill.storage import Checksums
from remap.output.custom import write_custom


def write_partition(
    inputs: Inputs,
    part: MeasuredPartition,
    embedding_path: str,
    settings: RemapConfig,
    matrix_DD: Floats | None = None,
) -> tuple[dict[str, int], Checksums]:
    """Write one partition's files and count their rows; return the rows and the checksum of each file.

    With `matrix_DD`, vectors are multiplied by it: a vector x becomes x matrix_DD.

    Raises:
        FormatError: ids or embeddings have changed since the measurement, or are damaged or not finite.
    """
    rows = checked_rows(inputs, part, settings.batch_rows)
    if matrix_DD is not None:
        rows = ((ids, vectors_ND @ matrix_DD) for ids, vectors_ND in rows)
    if not settings.is_standard:
        return write_custom(rows, part, embedding_path, settings)
    place, checksums = (embedding_path, part.entity_type, part.partition), Checksums()
    with remapped.new_part(*place, part.dimension, settings.compression, checksums=checksums) as writer:
        for ids, vectors_ND in rows:
            writer.append(ids, vectors_ND)
    written, uri = remapped.shape_of(*place), remapped.part_uri(*place)
    if written != (part.num_rows, part.dimension):
        raise FormatError(f"{uri}: expected {(part.num_rows, part.dimension)} as written, found {written}")
    return {uri: part.num_rows}, checksums
