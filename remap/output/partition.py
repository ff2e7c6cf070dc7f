"""One partition: its raw ids and its embeddings, side by side, to one parquet file.

With the entity index no more than `batch_rows` rows are in memory; PyTorch-BigGraph's JSON list of names
can only be read as a whole, so there all raw ids of the partition are.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill.checkpoints.finite import check_finite, first_not_finite
from graphmill.display import progress
from graphmill.errors import FormatError
from graphmill.formats import entity_counts, entity_index, pbg_checkpoint, remapped
from remap.config import RemapConfig
from remap.output.shaped import write_shaped
from remap.sources.discover import IdSource, Part, Source, check_num_ids, global_embedding
from remap.strings.distinct import Hashes, first_repeated, hashes_of, repeated

Floats = npt.NDArray[np.float32]


def write_part(source: Source, part: Part, embedding_path: str, settings: RemapConfig) -> dict[str, int]:
    """Write one partition's files and count their rows again; the rows of each file.

    Raises:
        FormatError: ids or embeddings are not what they were when they were measured, or damaged, or a
            vector is not finite.
    """
    if not settings.is_standard:
        return write_shaped(_batches(source, part, settings), part, embedding_path, settings)
    with remapped.new_part(
        embedding_path, part.entity_type, part.partition, part.dimension, settings.compression
    ) as writer:
        for ids, embeddings_ND in _batches(source, part, settings):
            writer.append(ids, embeddings_ND)
    written = remapped.shape_of(embedding_path, part.entity_type, part.partition)
    uri = remapped.part_uri(embedding_path, part.entity_type, part.partition)
    if written != (part.num_rows, part.dimension):
        raise FormatError(f"{uri}: expected {(part.num_rows, part.dimension)} as written, found {written}")
    return {uri: part.num_rows}


def _batches(source: Source, part: Part, settings: RemapConfig) -> Iterator[tuple[pa.Array, Floats]]:
    """Raw ids and vectors of the partition, side by side: (string [N], [N, D])."""
    num_read, hashes = 0, [np.empty(0, np.uint64)]
    # Both are cut alike, at every `batch_rows`; the shorter one ends it, and counting shows it.
    batches = zip(
        iter_ids(source, part, settings.batch_rows),
        iter_rows(source, part, settings.batch_rows),
        strict=False,
    )
    for ids, embeddings_ND in batches:
        if not source.allow_non_finite:
            _check_finite(source, part, ids, embeddings_ND, num_read)
        yield ids, embeddings_ND
        num_read += len(ids)
        hashes.append(hashes_of(ids))
        # Ends the task here if it has been cancelled.
        progress.tell(f"remapping {part.entity_type} {part.partition}", num_read, part.num_rows, "rows")
    check_num_ids(source, part.entity_type, part.partition, num_read, part.num_rows)
    _check_distinct(source, part, settings.batch_rows, np.concatenate(hashes))


def _check_distinct(source: Source, part: Part, batch_rows: int, hashes: Hashes) -> None:
    suspects = repeated(hashes)
    found = first_repeated(iter_ids(source, part, batch_rows), suspects) if len(suspects) else None
    if found is not None:
        raw_id, first, second = found
        uri = source.ids_uri(part.entity_type, part.partition)
        raise FormatError(
            f"{uri}: raw id {raw_id!r} stands in row {first} and in row {second}; expected each once"
        )


def _check_finite(source: Source, part: Part, ids: pa.Array, rows_ND: Floats, first_row: int) -> None:
    """Refuse vectors of which one is not finite, naming the entity; the first is in row `first_row`."""
    row = first_not_finite(rows_ND)
    if row is not None:
        raise FormatError(
            f"{source.embeddings_uri(part.entity_type, part.partition)}: {part.entity_type!r}, partition "
            f"{part.partition}, row {first_row + row}: the vector of the raw id {ids[row].as_py()!r} is not "
            "finite; go back to a preserved epoch, or train again; remap.allow_non_finite: true writes it "
            "as it is"
        )


def iter_ids(source: Source, part: Part, batch_rows: int) -> Iterator[pa.Array]:
    """Raw ids of the partition in row order, string arrays of at most `batch_rows`.

    From PyTorch-BigGraph's JSON the whole list is in memory at once: JSON has no parts.
    """
    if source.id_source is IdSource.ENTITY_INDEX:
        yield from entity_index.iter_part(source.entity_path, part.entity_type, part.partition, batch_rows)
        return
    names = entity_counts.read_entity_names(source.entity_path, part.entity_type, part.partition)
    check_num_ids(source, part.entity_type, part.partition, len(names), part.num_rows)
    for start in range(0, len(names), batch_rows):
        yield pa.array(names[start : start + batch_rows], pa.string())


def iter_rows(source: Source, part: Part, batch_rows: int) -> Iterator[Floats]:
    """Vectors of the partition in row order, float32 [N, D] with N at most `batch_rows`.

    As in PyTorch-BigGraph's export, the type's global embedding, where the model has one, is added: it is
    what the model compares.
    """
    if not source.is_pbg:
        checkpoint = source.open()
        added = global_embedding(checkpoint, part.entity_type)
        _check_global(source, part, added)
        for rows_ND in checkpoint.iter_embeddings(part.entity_type, part.partition, batch_rows):
            yield rows_ND if added is None else rows_ND + added
        return
    global_D = pbg_checkpoint.read_global_embedding(source.checkpoint_path, part.entity_type, source.version)
    if global_D is not None and global_D.shape != (part.dimension,):
        uri = pbg_checkpoint.model_uri(source.checkpoint_path, source.version)
        raise FormatError(
            f"{uri}: global embedding of {part.entity_type!r}: expected dimension {part.dimension}, "
            f"found {global_D.shape[0]}"
        )
    _check_global(source, part, global_D)
    for embeddings_ND in pbg_checkpoint.iter_embeddings(
        source.checkpoint_path, part.entity_type, part.partition, source.version, batch_rows
    ):
        yield embeddings_ND if global_D is None else embeddings_ND + global_D


def _check_global(source: Source, part: Part, global_D: Floats | None) -> None:
    if global_D is not None and not source.allow_non_finite:
        check_finite(global_D, f"{source.checkpoint_path}: global embedding of {part.entity_type!r}")
