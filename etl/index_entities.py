"""Step 2: the distinct ids of all chunks -> one index a partition, ordered by (hash, raw id).

A partition is a range of hashes. Where its ids are too many for the memory that a task may use, the task
takes them range by range, in order; the result is the same. Files, beside the entity index and counts:

    {type}-{partition}.rows.i32   for each range of slots, for each chunk: the index of each of its ids
    relations.rows.i32            for each chunk: the number of each of its relation names
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl import hashing, spill
from etl.blocks import cut
from etl.encode_edges import Chunk
from etl.hashing import Hashes
from etl.layout import SLOTS, Layout, Part
from etl.spill import Int64
from graphmill import storage
from graphmill.errors import RawTableError
from graphmill.formats import entity_counts, entity_index

ROW_GROUP_ROWS = 1 << 20
MAX_INDEX = np.iinfo(np.int32).max
# What ordering an id takes beside its bytes, which are there three times: read, distinct, in order.
_OVERHEAD_BYTES = 64


@dataclass(frozen=True)
class IndexedPart:
    """Counts of one partition."""

    num_entities: int
    num_outside_train: int


def slot_groups(num_ids: Int64, id_bytes: Int64, budget_bytes: int) -> list[range]:
    """Ranges of slots whose ids can be ordered within the budget, a slot each at least.

    Args:
        num_ids: [SLOTS] ids of all chunks, an id counted once a chunk.
        id_bytes: [SLOTS] their bytes.
        budget_bytes: memory for one range.
    """
    groups: list[range] = []
    start, used = 0, 0
    for slot, cost in enumerate((num_ids * _OVERHEAD_BYTES + id_bytes * 3).tolist()):
        if slot > start and used + cost > budget_bytes:
            groups.append(range(start, slot))
            start, used = slot, 0
        used += cost
    return [*groups, range(start, SLOTS)]


def rows_uri(layout: Layout, part: Part) -> str:
    """The file that says which index each chunk's ids have in `part`."""
    return storage.join(layout.work_uri, f"{part.entity_type}-{part.partition}.rows.i32")


def relation_rows_uri(layout: Layout) -> str:
    """The file that says which number each chunk's relation names have."""
    return storage.join(layout.work_uri, "relations.rows.i32")


def index_part(layout: Layout, part_number: int, chunk_uris: list[str], groups: list[range]) -> IndexedPart:
    """Write the entity index and the count of one partition, and its rows file."""
    part = layout.parts()[part_number]
    num_outside_train = 0

    def ordered() -> Iterator[pa.Table]:
        nonlocal num_outside_train
        num_earlier = 0
        for group in groups:
            batches = [part_number * SLOTS + slot for slot in group]
            chunks = [spill.read_batches(f"{uri}.ids.arrow", batches) for uri in chunk_uris]
            distinct, code_M = _distinct(chunks)
            in_train = np.zeros(len(distinct), bool)
            in_train[code_M[pa.concat_tables(chunks)["in_train"].to_numpy()]] = True
            num_outside_train += len(distinct) - int(in_train.sum())
            order = order_by_hash(distinct, hashing.hash_strings(distinct, layout.seed))
            if num_earlier + len(order) > MAX_INDEX:
                raise RawTableError(
                    f"{part.entity_type}: partition {part.partition} has more than {MAX_INDEX} ids; raise "
                    f"entities.{part.entity_type}.num_partitions"
                )
            index_of = np.empty(len(order), np.int32)
            index_of[order] = np.arange(num_earlier, num_earlier + len(order), dtype=np.int32)
            rows.write(index_of[code_M])
            num_earlier += len(order)
            yield pa.table({"id": distinct.take(pa.array(order))})

    num_entities = 0
    with (
        spill.new_file(rows_uri(layout, part)) as rows,
        entity_index.new_part(layout.entity_uri, *part) as writer,
    ):
        for block in cut(ordered(), ROW_GROUP_ROWS):
            writer.append(block["id"].combine_chunks())
            num_entities += block.num_rows
    entity_counts.write_count(layout.entity_uri, *part, num_entities)
    if layout.entity_names:
        batches = entity_index.iter_part(layout.entity_uri, *part)
        names = (name for batch in batches for name in batch.to_pylist())
        entity_counts.write_entity_names(layout.entity_uri, *part, names)
    return IndexedPart(num_entities, num_outside_train)


def index_relations(layout: Layout, chunks: list[str]) -> int:
    """Number all relation names in the order of their UTF-8 bytes; write them and their count."""
    found = [spill.read_batches(f"{uri}.relations.arrow").rename_columns(["id"]) for uri in chunks]
    distinct, code_M = _distinct(found)
    order = pc.sort_indices(distinct).to_numpy()
    number_of = np.empty(len(order), np.int32)
    number_of[order] = np.arange(len(order), dtype=np.int32)
    with spill.new_file(relation_rows_uri(layout)) as rows:
        rows.write(number_of[code_M])
    entity_counts.write_relation_count(layout.entity_uri, len(order))
    entity_counts.write_relation_names(layout.entity_uri, distinct.take(pa.array(order)).to_pylist())
    return len(order)


def order_by_hash(strings: pa.Array, hashes: Hashes) -> Int64:
    """The permutation that sorts distinct strings by (hash, UTF-8 bytes)."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    if equal.size:
        # The few that share their hash with a neighbour: by hash still, and then by string.
        shared = np.union1d(equal, equal + 1)
        keys = [(int(hashes[at]), strings[int(at)].as_py().encode(), int(at)) for at in order[shared]]
        order[shared] = [at for _, _, at in sorted(keys)]
    return order


def id_ranges(
    layout: Layout, chunks: list[Chunk], groups: list[list[range]]
) -> list[list[list[tuple[int, int]]]]:
    """For each chunk, for each part: the (offset, count) of the chunk's ids in the part's rows file."""
    by_chunk: list[list[list[tuple[int, int]]]] = [[] for _ in chunks]
    for part_number, part_groups in enumerate(groups):
        num_ids = np.array([chunk.num_ids[part_number] for chunk in chunks])
        counts = np.add.reduceat(num_ids, [group.start for group in part_groups], axis=1)
        # The file goes range by range, chunk by chunk.
        ends = np.cumsum(counts.T.ravel()).reshape(counts.T.shape).T
        for chunk_ranges, chunk_ends, chunk_counts in zip(by_chunk, ends, counts, strict=True):
            pairs = zip((chunk_ends - chunk_counts).tolist(), chunk_counts.tolist(), strict=True)
            chunk_ranges.append([(offset, count) for offset, count in pairs if count])
    return by_chunk


def _distinct(tables: list[pa.Table]) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The distinct values of the column `id` of all tables, and each row's position among them."""
    # large_string: the ids of a partition may pass the 2 GiB that string can address.
    column = pa.chunked_array(
        [chunk.cast(pa.large_string()) for table in tables for chunk in table["id"].chunks], pa.large_string()
    )
    if not len(column):
        return pa.array([], pa.large_string()), np.zeros(0, np.int32)
    chunks = column.dictionary_encode().chunks
    return chunks[0].dictionary, np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
