"""Reading of one partition of the inputs: size, raw ids and vectors."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.ask.inputs import Inputs
from graphmill.checkpoints import Checkpoint, Floats
from graphmill.checkpoints.finite import check_finite
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index

READ_BYTES = 8 << 20
FEW_BYTES = 256 << 10  # of unwanted rows that are read for each wanted one: one more reading takes as long

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredPartition:
    """One partition of one entity type: `num_rows` embeddings of `dimension` coordinates."""

    entity_type: str
    partition: int
    num_rows: int
    dimension: int
    embeddings_uri: str
    """The file with the embeddings, or the checkpoint if a partition has no file."""
    ids_uri: str

    def check_num_ids(self, num_ids: int) -> None:
        """Refuse a partition without exactly one raw id per row."""
        if num_ids != self.num_rows:
            raise FormatError(
                f"{self.ids_uri} has {num_ids} raw ids, but {self.embeddings_uri} has {self.num_rows} rows: "
                "they are not from the same run"
            )


def check_partitions(inputs: Inputs, num_partitions: dict[str, int]) -> None:
    """Check that checkpoint and entity index have the partitions of the configuration.

    Raises:
        NotFoundError: the checkpoint has fewer.
        FormatError: the checkpoint has more, or the entity index has others.
    """
    indexed = num_partitions
    if inputs.id_source == "entity_index":
        indexed = entity_index.read_manifest(inputs.entity_path).num_partitions
    checkpoint = inputs.open_checkpoint(allow_non_finite=True)
    for entity_type, num in num_partitions.items():
        if indexed.get(entity_type) != num:
            raise FormatError(
                f"{inputs.entity_path}: the configuration has {num} partitions of {entity_type!r}, "
                f"the entity index {indexed.get(entity_type, 'none')}"
            )
        found = checkpoint.num_partitions.get(entity_type, 0)
        if found != num:
            first = checkpoint.embeddings_uri(entity_type, min(num, found))
            error = NotFoundError if found < num else FormatError
            raise error(
                f"{first}: the configuration has {num} partitions of {entity_type!r}, the checkpoint {found}"
            )


def measure_partition(inputs: Inputs, entity_type: str, partition: int, dimension: int) -> MeasuredPartition:
    """Read the size of one partition from its count, its ids and its embeddings, which must agree.

    Raises:
        NotFoundError: one of them is missing.
        FormatError: they differ, or the embeddings have another length than `dimension`.
    """
    count = entity_counts.read_count(inputs.entity_path, entity_type, partition)
    checkpoint = inputs.open_checkpoint(allow_non_finite=True)
    with checkpoint.open_rows(entity_type, partition) as rows:
        num_rows, found_dimension = rows.shape
    uri = checkpoint.embeddings_uri(entity_type, partition)
    if num_rows != count:
        raise FormatError(
            f"{uri} has {num_rows} rows, but "
            f"{entity_counts.count_uri(inputs.entity_path, entity_type, partition)} says {count}: "
            "they are not from the same run"
        )
    if found_dimension != dimension:
        raise FormatError(f"{uri}: expected dimension {dimension} as configured, found {found_dimension}")
    ids_uri = inputs.ids_uri(entity_type, partition)
    measured = MeasuredPartition(entity_type, partition, num_rows, dimension, uri, ids_uri)
    if inputs.id_source == "entity_index":
        measured.check_num_ids(entity_index.count_part(inputs.entity_path, entity_type, partition))
    elif not storage.exists(ids_uri):
        raise NotFoundError(f"{ids_uri}: there is no such file of raw ids")
    return measured


def iter_ids(inputs: Inputs, part: MeasuredPartition, batch_rows: int) -> Iterator[pa.Array]:
    """Read raw ids of the partition in row order, string arrays of at most `batch_rows`.

    A JSON list of PyTorch-BigGraph is in memory as a whole: JSON has no parts.
    """
    inputs.check_unchanged()
    if inputs.id_source == "entity_index":
        yield from entity_index.iter_part(inputs.entity_path, part.entity_type, part.partition, batch_rows)
        return
    names = entity_counts.read_entity_names(inputs.entity_path, part.entity_type, part.partition)
    part.check_num_ids(len(names))
    for start in range(0, len(names), batch_rows):
        yield pa.array(names[start : start + batch_rows], pa.string())


def iter_vectors(inputs: Inputs, part: MeasuredPartition, batch_rows: int) -> Iterator[Floats]:
    """Read vectors of the partition in row order, float32 [N, D] with N at most `batch_rows`.

    As in PyTorch-BigGraph's export, a vector includes the global embedding of its type: the model compares
    the sum.

    Raises:
        FormatError: the global embedding has another dimension, or is not finite.
    """
    checkpoint = inputs.open_checkpoint(allow_non_finite=True)  # the caller checks rows, to name raw ids
    global_D = _global_embedding(inputs, part, checkpoint)
    for rows_ND in checkpoint.iter_embeddings(part.entity_type, part.partition, batch_rows):
        yield rows_ND if global_D is None else rows_ND + global_D


def gather_vectors(inputs: Inputs, part: MeasuredPartition, rows: Numbers) -> Floats:
    """Read the vectors of some rows, which ascend, float32 [n, D], as `iter_vectors`.

    A local file is compared with its checksum, once in a process. HDFS compares what it reads itself.
    """
    checkpoint = inputs.open_checkpoint(allow_non_finite=True)
    global_D = _global_embedding(inputs, part, checkpoint)
    gathered = np.empty((len(rows), part.dimension), np.float32)
    most = max(1, READ_BYTES // (4 * part.dimension))
    is_local = storage.is_local(part.embeddings_uri)
    with checkpoint.open_rows(part.entity_type, part.partition, whole=is_local) as stored:
        start = 0
        while start < len(rows):  # neighbours are read together
            stop = int(np.searchsorted(rows, rows[start] + most))
            first, last = int(rows[start]), int(rows[stop - 1])
            if (last - first) * 4 * part.dimension > FEW_BYTES * (stop - start):
                stop, last = start + 1, first
            gathered[start:stop] = stored.read(first, last + 1)[rows[start:stop] - first]
            start = stop
    return gathered if global_D is None else gathered + global_D


def _global_embedding(inputs: Inputs, part: MeasuredPartition, checkpoint: Checkpoint) -> Floats | None:
    global_D = checkpoint.global_embedding(part.entity_type)
    if global_D is not None:
        name = f"global embedding of {part.entity_type!r}"
        if global_D.shape != (part.dimension,):
            found = global_D.shape[0]
            raise FormatError(
                f"{checkpoint.model_uri}: {name}: expected dimension {part.dimension}, found {found}"
            )
        if not inputs.allow_non_finite:
            check_finite(global_D, f"{inputs.checkpoint_path}: {name}")
    return global_D
