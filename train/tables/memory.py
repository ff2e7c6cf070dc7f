"""Memory that training takes on a device and on its host.

rows       4 D bytes, and the sums of the optimizer: 4 bytes per row, or 4 D element-wise
edges      16 bytes each while they are trained on; more while they are sorted, some are held out, or they are
           grouped by query (all_negs)
steps      gradients, operands and queries of a batch: about 16 D bytes per touched row; on a GPU twice, for
           captured steps have memory of their own
"""

import psutil  # type: ignore[import-untyped]
from distributed import get_worker, system

from graphmill.config import Config
from graphmill.config.partitions import PartitionKey, all_keys, is_shared, keys_of
from graphmill.vocab import Side
from train.edges.candidates import MOST_ELEMENTS
from train.edges.negative_sampling import Sampling, in_batch_negatives
from train.edges.one_vs_all import has_queries
from train.step.queries import SCORE_BYTES
from train.tables.run_context import RunContext

EDGE_BYTES = 16  # 12 where all weights are 1, which files tell only when they are read
_QUERY_BYTES = 136  # the two queries of an edge, if no other edge has the same, while they are sorted
_ODDS_BYTES = 2 * 16  # of a row, as a candidate for both sides
_STILL_ROW_BYTES = 9  # its number, and whether an added edge has it
_ALIGNED_EDGES = 16  # a column begins at a multiple of 64 bytes
SHARE = 0.9  # of the free memory that the plan may use; the rest is for uncounted buffers
WORKER_SHARE = 0.5  # of a worker's memory for all rows, without counting what others leave free
HOST_SHARE = 0.7  # pinned memory cannot be swapped
SPARE_SLOTS = 2  # of a buffer: for a partition that comes, and for one that goes


def partition_bytes(context: RunContext, key: PartitionKey) -> int:
    """Rows and sums of a partition; in a delta also the sums of rows that stay, and which rows these are."""
    name, partition = key
    dimension = context.config.entity_dimension(name)
    states = dimension if context.config.train.optimizer == "adagrad" else 1
    still = 4 * states + _STILL_ROW_BYTES if context.delta is not None else 0
    return context.num_rows[name][partition] * (4 * (dimension + states) + still)


def rows_bytes(context: RunContext) -> int:
    """Rows and sums of all partitions."""
    return sum(partition_bytes(context, key) for key in all_keys(context.config))


def shared_bytes(context: RunContext) -> int:
    """Rows and sums of types with one partition, which stay in memory."""
    config = context.config
    return sum(partition_bytes(context, key) for key in all_keys(config) if is_shared(config, key))


def edges_bytes(config: Config, num_edges: int) -> int:
    """Edges while they are trained on, and their copies while they are sorted and some are held out."""
    is_sorted = not config.dynamic_relations and len(config.relations) > 1
    held_out = 9 + EDGE_BYTES if config.eval_fraction else 0  # a mark, an order, and the edges in it
    edge_bytes = EDGE_BYTES + held_out + (8 + 4 + EDGE_BYTES if is_sorted else 0)
    return num_edges * (edge_bytes + (_QUERY_BYTES if has_queries(config) else 0))


def queries_bytes(context: RunContext) -> int:
    """Memory of a step on queries (all_negs): scores, gradient of all candidates, odds of drawing them.

    With a sample, some queries are compared with all rows of tables that are not too large.
    """
    config = context.config
    names = {
        relation.entity_type(side) for relation in config.relations if relation.all_negs for side in Side
    }
    if not names:
        return 0
    is_sample = config.train.candidates is not None
    elements = 0
    for name in names:
        rows, dimension = sum(context.num_rows[name]), config.entity_dimension(name)
        exact = min(rows * dimension, MOST_ELEMENTS) if is_sample else 0
        elements = max(elements, config.num_compared(rows) * dimension, exact)
    odds = sum(_ODDS_BYTES * sum(context.num_rows[name]) for name in names) if is_sample else 0
    return 2 * SCORE_BYTES[context.device.type] + 2 * 4 * elements + odds


def step_bytes(config: Config) -> int:
    """Memory that steps take and free: one launch by launch, and one captured."""
    chunk = Sampling.of_training(config).chunk_size(config.batch_size)
    again = in_batch_negatives(config.num_batch_negs, chunk)[1]
    rows = 2 * chunk + again + config.num_uniform_negs
    dimension = max(config.entity_dimension(name) for name in config.entities)
    return 2 * 2 * -(-config.batch_size // chunk) * rows * 16 * dimension


def resident_bytes(context: RunContext) -> int:
    """The graph on a device, with the edges of the largest iteration, or of all for a delta."""
    schedule = context.schedule
    num_edges = max((schedule.num_read(number) for number in range(schedule.per_epoch)), default=0)
    steps = step_bytes(context.config) + queries_bytes(context)
    return rows_bytes(context) + edges_bytes(context.config, num_edges) + steps


def whole_bytes(context: RunContext, *, writes_beside: bool) -> int:
    """Memory of a run whose rows are all in memory: with the copy of a version, or a partition that comes."""
    largest = max(partition_bytes(context, key) for key in all_keys(context.config))
    return resident_bytes(context) + (rows_bytes(context) if writes_beside else largest)


def blocks_bytes(context: RunContext, num_blocks: int, *, prefetch: bool) -> int:
    """Memory of a run on blocks of partitions: of each type, the two blocks of a visit.

    With `prefetch` as much again for the table of the visit before, until its partitions are written; and as
    much again for partitions that come. Without it, one block is there twice while the next table is made.
    """
    config, schedule = context.config, context.schedule
    joined = max(_of_blocks(config, num_blocks).values())
    edges = (2 * joined) ** 2 * max(schedule.num_edges.values()) // (2 * schedule.num_edge_chunks)
    steps = step_bytes(config) + queries_bytes(context)
    rows = (6 if prefetch else 3) * block_bytes(context, num_blocks) + shared_bytes(context)
    return rows + (2 if prefetch else 1) * edges_bytes(config, edges) + steps


def block_bytes(context: RunContext, num_blocks: int) -> int:
    """Rows and sums of a block of each type."""
    return sum(
        size * max(partition_bytes(context, (name, part)) for part in range(num_partitions))
        for (name, num_partitions), size in _of_blocks(context.config, num_blocks).items()
    )


def _of_blocks(config: Config, num_blocks: int) -> dict[tuple[str, int], int]:
    """Count the partitions of a block, by type and its partitions."""
    counts = config.num_partitions.items()
    return {(name, count): -(-count // num_blocks) for name, count in counts if count > 1}


def staying_bytes(context: RunContext) -> int:
    """Memory beside the partitions that move: rows that stay on a device, a step, edges of two buckets."""
    config = context.config
    largest = max(context.schedule.num_edges.values(), default=0)
    return shared_bytes(context) + step_bytes(config) + 2 * edges_bytes(config, largest)


def staging_bytes(context: RunContext) -> int:
    """Pinned memory of the host for the edges of the largest bucket of an iteration."""
    schedule = context.schedule
    largest = max(schedule.num_edges.values(), default=0)
    return EDGE_BYTES * (-(-largest // schedule.num_edge_chunks) + _ALIGNED_EDGES)


def host_bytes(context: RunContext) -> int:
    """Memory of the host for a buffer: all rows, one partition that is loaded, and edges in transfer."""
    largest = max(partition_bytes(context, key) for key in all_keys(context.config))
    return rows_bytes(context) + largest + staging_bytes(context)


def resting_bytes(context: RunContext, limit_bytes: int, num_blocks: int) -> int:
    """Memory of a worker for partitions that no bucket needs now: half of its limit, without what stays.

    That is the partitions of a bucket, one that comes, and of rows that all workers share a copy and a shard;
    with blocks, the two of a visit twice, as partitions and as tables.
    """
    config = context.config
    if num_blocks:
        stays = 4 * block_bytes(context, num_blocks) + 2 * shared_bytes(context)
        return max(0, limit_bytes // 2 - stays)
    sizes = {key: partition_bytes(context, key) for key in all_keys(config)}
    largest = max((size for key, size in sizes.items() if not is_shared(config, key)), default=0)
    return max(0, limit_bytes // 2 - (bucket_partitions(context) + 1) * largest - 2 * shared_bytes(context))


def bucket_partitions(context: RunContext) -> int:
    """The most partitions that a bucket needs, without those of types that have one partition."""
    config = context.config
    return max(
        sum(not is_shared(config, key) for key in keys_of(config, bucket))
        for _, bucket in context.schedule.num_edges
    )


def worker_bytes() -> int:
    """Memory of this Dask worker, or of the host or container where there is no worker."""
    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # no Dask task
        limit = None
    return int(limit or system.MEMORY_LIMIT)


def host_free_bytes() -> int:
    """Free memory of the host, or of this container."""
    return min(int(psutil.virtual_memory().available), int(system.MEMORY_LIMIT))
