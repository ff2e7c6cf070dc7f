"""The entities of one type, over all partitions: vectors and raw ids by number.

The number of an entity counts through all partitions: rows of the partitions before, plus its row. A
partition is measured before it is read: counts, raw ids and embeddings must agree.

Shapes: N rows of a block, Q wanted rows, D dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from distributed import Client

from graphmill import storage
from graphmill.ask.ids import IdSearch, first_repeated, hashes_of, repeated
from graphmill.ask.run import TrainedRun
from graphmill.checkpoints import Checkpoint, Floats
from graphmill.checkpoints.finite import check_finite, first_not_finite
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.display import progress
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.vocab import Side

ID_ROWS = 1 << 16
UNKNOWN = -1

Numbers = npt.NDArray[np.int64]

READ_BYTES = 8 << 20
FEW_BYTES = 256 << 10  # of unwanted rows that are read for each wanted one: one more reading takes as long


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


def check_partitions(trained: TrainedRun, num_partitions: Mapping[str, int]) -> None:
    """Check that checkpoint and entity index have the partitions of the configuration."""
    indexed = num_partitions
    if trained.id_source == "entity_index":
        indexed = entity_index.read_manifest(trained.entity_path).num_partitions
    checkpoint = trained.open_checkpoint(allow_non_finite=True)
    for entity_type, num in num_partitions.items():
        if trained.id_source == "entity_names" and storage.exists(uri := trained.ids_uri(entity_type, num)):
            raise FormatError(
                f"{uri}: expected raw ids of {num} partitions of {entity_type!r}, as the configuration or "
                "the checkpoint has, found more: is a file of the checkpoint missing?"
            )
        if indexed.get(entity_type) != num:
            raise FormatError(
                f"{trained.entity_path}: the configuration has {num} partitions of {entity_type!r}, "
                f"the entity index {indexed.get(entity_type, 'none')}"
            )
        saved = checkpoint.num_partitions.get(entity_type, 0)
        if saved != num:
            first = checkpoint.embeddings_uri(entity_type, min(num, saved))
            error = NotFoundError if saved < num else FormatError
            raise error(
                f"{first}: the configuration has {num} partitions of {entity_type!r}, the checkpoint {saved}"
            )


def measure_partition(
    trained: TrainedRun, entity_type: str, partition: int, dimension: int
) -> MeasuredPartition:
    """Read the size of one partition from its count, its ids and its embeddings, which must agree."""
    count = entity_counts.read_count(trained.entity_path, entity_type, partition)
    checkpoint = trained.open_checkpoint(allow_non_finite=True)
    with checkpoint.open_rows(entity_type, partition) as rows:
        num_rows, saved_dimension = rows.shape
    uri = checkpoint.embeddings_uri(entity_type, partition)
    if num_rows != count:
        raise FormatError(
            f"{uri} has {num_rows} rows, but "
            f"{entity_counts.count_uri(trained.entity_path, entity_type, partition)} says {count}: "
            "they are not from the same run"
        )
    if saved_dimension != dimension:
        raise FormatError(f"{uri}: expected dimension {dimension} as configured, found {saved_dimension}")
    ids_uri = trained.ids_uri(entity_type, partition)
    measured = MeasuredPartition(entity_type, partition, num_rows, dimension, uri, ids_uri)
    if trained.id_source == "entity_index":
        measured.check_num_ids(entity_index.count_part(trained.entity_path, entity_type, partition))
    elif not storage.exists(ids_uri):
        raise NotFoundError(f"{ids_uri}: there is no such file of raw ids")
    return measured


def iter_ids(trained: TrainedRun, part: MeasuredPartition, batch_rows: int) -> Iterator[pa.Array]:
    """Read raw ids of the partition in row order, string arrays of at most `batch_rows`.

    A JSON list of PyTorch-BigGraph is in memory as a whole: JSON has no parts.
    """
    trained.check_unchanged()
    if trained.id_source == "entity_index":
        yield from entity_index.iter_part(trained.entity_path, part.entity_type, part.partition, batch_rows)
        return
    names = entity_counts.read_entity_names(trained.entity_path, part.entity_type, part.partition)
    part.check_num_ids(len(names))
    for start in range(0, len(names), batch_rows):
        yield pa.array(names[start : start + batch_rows], pa.string())


def iter_vectors(trained: TrainedRun, part: MeasuredPartition, batch_rows: int) -> Iterator[Floats]:
    """Read vectors in row order, float32 [N <= `batch_rows`, D], with the type's global embedding added."""
    checkpoint = trained.open_checkpoint(allow_non_finite=True)  # the caller checks rows, to name raw ids
    global_D = _global_embedding(trained, part, checkpoint)
    for rows_ND in checkpoint.iter_embeddings(part.entity_type, part.partition, batch_rows):
        yield rows_ND if global_D is None else rows_ND + global_D


def gather_vectors(trained: TrainedRun, part: MeasuredPartition, rows: Numbers) -> Floats:
    """Read the vectors of some rows, which ascend, float32 [n, D], as `iter_vectors`.

    A local file is compared with its checksum, once in a process. HDFS compares what it reads itself.
    """
    checkpoint = trained.open_checkpoint(allow_non_finite=True)
    global_D = _global_embedding(trained, part, checkpoint)
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


def _global_embedding(trained: TrainedRun, part: MeasuredPartition, checkpoint: Checkpoint) -> Floats | None:
    global_D = checkpoint.global_embedding(part.entity_type)
    if global_D is not None:
        name = f"global embedding of {part.entity_type!r}"
        if global_D.shape != (part.dimension,):
            raise FormatError(
                f"{checkpoint.model_uri}: {name}: expected dimension {part.dimension}, found {global_D.shape}"
            )
        if not trained.allow_non_finite:
            check_finite(global_D, f"{trained.checkpoint_path}: {name}")
    return global_D


def measured(
    trained: TrainedRun, num_partitions: Mapping[str, int], client: Client | None = None
) -> list[MeasuredPartition]:
    """Measure all partitions of some types; tasks of a `client` measure several at a time."""
    check_partitions(trained, num_partitions)
    keys = [
        (trained, name, partition, trained.config.entity_dimension(name))
        for name, num in num_partitions.items()
        for partition in range(num)
    ]
    if client is None:
        return [measure_partition(*key) for key in keys]
    return run_tasks(client, measure_partition, keys, description="measuring", unit="partitions")


def read_tables(
    trained: TrainedRun, types: Sequence[str], client: Client | None = None
) -> dict[str, "EntityTable"]:
    """Measure the tables of some types."""
    parts = measured(trained, {name: trained.config.entities[name].num_partitions for name in types}, client)
    return {
        name: EntityTable(trained, tuple(part for part in parts if part.entity_type == name))
        for name in types
    }


@dataclass(frozen=True)
class EntityTable:
    """Vectors and raw ids of a type; small, because every task receives it."""

    trained: TrainedRun
    parts: tuple[MeasuredPartition, ...]

    @property
    def entity_type(self) -> str:
        """The type."""
        return self.parts[0].entity_type

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self.parts[0].dimension

    @cached_property
    def first(self) -> Numbers:
        """Number of the first entity of each partition, and the number of all entities."""
        return np.cumsum([0, *self.num_rows])

    @property
    def num_rows(self) -> list[int]:
        """Rows of each partition."""
        return [part.num_rows for part in self.parts]

    @property
    def num_entities(self) -> int:
        """Entities of the type."""
        return int(self.first[-1])

    def blocks(self, partition: int, rows: int) -> Iterator[tuple[int, Floats]]:
        """Read a partition: the first row and the vectors [N, D] of each block of at most `rows`."""
        first = 0
        for vectors_ND in iter_vectors(self.trained, self.parts[partition], rows):
            yield first, vectors_ND
            first += len(vectors_ND)

    def gather(self, numbers: Numbers) -> Floats:
        """Read the vectors [Q, D] of some entities, in any order; those of UNKNOWN are zero."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        vectors = np.zeros((len(distinct), self.dimension), np.float32)
        start = int(np.searchsorted(distinct, 0))
        for (_, partition), rows in self.rows_of(distinct).items():
            stop = start + len(rows)
            vectors[start:stop] = gather_vectors(self.trained, self.parts[partition], rows)
            start = stop
        return vectors[inverse]

    def names(self, numbers: Numbers) -> pa.ChunkedArray:
        """Read the raw ids of some entities, whose numbers ascend."""
        chunks: list[pa.Array] = []
        for (_, partition), rows in self.rows_of(numbers).items():
            first = 0
            for ids in iter_ids(self.trained, self.parts[partition], ID_ROWS):
                start, stop = np.searchsorted(rows, [first, first + len(ids)])
                chunks.append(ids.take(pa.array(rows[start:stop] - first)))
                first += len(ids)
                if stop == len(rows):
                    break
        return pa.chunked_array(chunks, pa.string())

    def find(self, ids: pa.Array) -> Numbers:
        """Find the numbers of raw ids (string [Q]); UNKNOWN for an id that the type does not have."""
        numbers = np.full(len(ids), UNKNOWN, np.int64)
        search = IdSearch(ids)
        for part, first in zip(self.parts, self.first.tolist(), strict=False):
            for batch in iter_ids(self.trained, part, ID_ROWS):
                places, rows = search.among(batch)
                numbers[places] = rows + first
                first += len(batch)
        return numbers

    def rows_of(self, numbers: Numbers) -> dict[PartitionKey, Numbers]:
        """The rows of entities, whose numbers ascend, in each partition that has any."""
        bounds = np.searchsorted(numbers, self.first).tolist()
        rows = {
            (self.entity_type, part): numbers[start:stop] - self.first[part]
            for part, (start, stop) in enumerate(pairwise(bounds))
        }
        return {key: own for key, own in rows.items() if len(own)}


EntityTables = Mapping[str, EntityTable]  # by type


def find_ends(
    config: Config, tables: EntityTables, relation_E: Numbers, edges: pa.Table
) -> dict[Side, Numbers]:
    """Find the raw ids in the columns lhs and rhs of edges of any relations, in one search of each type."""
    numbers = {side: np.full(len(edges), UNKNOWN, np.int64) for side in Side}
    for name, table in tables.items():
        here = {side: np.flatnonzero(are_of_type(config, relation_E, side, name)) for side in Side}
        ids = [edges[side].combine_chunks().take(pa.array(here[side])) for side in Side]
        number_K = table.find(pa.concat_arrays(ids)) if any(map(len, ids)) else np.empty(0, np.int64)
        for side, own in zip(Side, np.split(number_K, [len(ids[0])]), strict=True):
            numbers[side][here[side]] = own
    return numbers


def are_of_type(config: Config, relation_E: Numbers, side: Side, entity_type: str) -> npt.NDArray[np.bool_]:
    """Tell whether the ends on a side of relations, by number, are of a type: [E]."""
    is_of_R = np.array([entry.entity_type(side) == entity_type for entry in config.relations])
    is_of_E: npt.NDArray[np.bool_] = is_of_R[0 if config.dynamic_relations else relation_E]
    return np.broadcast_to(is_of_E, len(relation_E))


def checked_rows(
    trained: TrainedRun, part: MeasuredPartition, batch_rows: int, *, doing: str = "remapping"
) -> Iterator[tuple[pa.Array, Floats]]:
    """Read raw ids and vectors of the partition, (string [N], [N, D]): finite ones, each id once."""
    num_read, hashes = 0, [np.empty(0, np.uint64)]
    # Batches of ids and of vectors have the same sizes. If one side is shorter, the count is wrong.
    for ids, vectors_ND in zip(
        iter_ids(trained, part, batch_rows), iter_vectors(trained, part, batch_rows), strict=False
    ):
        if not trained.allow_non_finite and (row := first_not_finite(vectors_ND)) is not None:
            raise FormatError(
                f"{part.embeddings_uri}: {part.entity_type!r}, partition {part.partition}, row "
                f"{num_read + row}: the vector of the raw id {ids[row].as_py()!r} is not finite; go back to "
                "a preserved epoch, or train again; remap.allow_non_finite: true writes it as it is"
            )
        yield ids, vectors_ND
        num_read += len(ids)
        hashes.append(hashes_of(ids))
        # A cancelled task ends here.
        progress.report(f"{doing} {part.entity_type} {part.partition}", num_read, part.num_rows, "rows")
    part.check_num_ids(num_read)
    suspects = repeated(np.concatenate(hashes))
    duplicate = first_repeated(iter_ids(trained, part, batch_rows), suspects) if len(suspects) else None
    if duplicate is not None:
        raw_id, first, second = duplicate
        raise FormatError(
            f"{part.ids_uri}: raw id {raw_id!r} stands in row {first} and in row {second}; expected each once"
        )
