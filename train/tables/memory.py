"""How much memory training takes on a device and on its host, and so where the rows are to be.

rows       4 D bytes and the sums of the optimizer (4 a row, or 4 D element-wise)
edges      16 bytes each while they are trained on; more while they are sorted or some are held out
steps      gradients, operands and queries of a batch, about 16 D bytes a touched row
"""

import logging

import psutil  # type: ignore[import-untyped]
import torch
from distributed import system

from graphmill.config import Config
from train.config import TrainConfig
from train.edges.schedule import Key, all_keys, is_shared, keys_of
from train.gpu.fused_step import chunk_size, num_in_batch, obstacle
from train.tables.start import Start

EDGE_BYTES = 16
SHARE = 0.9  # of the free memory that is planned for; the rest is for what nobody counts
HOST_SHARE = 0.7  # pinned memory cannot be swapped
SPARE_SLOTS = 2  # of a buffer: for what comes, and for what goes

log = logging.getLogger("graphmill")


def partition_bytes(start: Start, key: Key) -> int:
    """Rows and sums of a partition."""
    name, partition = key
    dimension = start.config.entity_dimension(name)
    states = dimension if start.config.section(TrainConfig).optimizer == "adagrad" else 1
    return start.num_rows[name][partition] * 4 * (dimension + states)


def edges_bytes(config: Config, num_edges: int) -> int:
    """Edges as they are trained on, and what sorting and holding some out takes for a while."""
    for_a_while = 0
    if config.eval_fraction:
        for_a_while += 8 + EDGE_BYTES  # an order, and the edges in it
    if not config.dynamic_relations and len(config.relations) > 1:
        for_a_while += 8 + 4 + EDGE_BYTES
    return num_edges * (EDGE_BYTES + for_a_while)


def step_bytes(config: Config) -> int:
    """What one step makes and forgets."""
    chunk = chunk_size(config, config.batch_size)
    rows = 2 * chunk + num_in_batch(config, chunk)[1] + config.num_uniform_negs
    dimension = max(config.entity_dimension(name) for name in config.entities)
    return 2 * -(-config.batch_size // chunk) * rows * 16 * dimension


def resident_bytes(start: Start) -> int:
    """What the whole graph takes on a device, with the edges of the largest iteration."""
    plan = start.schedule
    num_edges = max((plan.num_edges_of(number) for number in range(plan.per_epoch)), default=0)
    rows = sum(partition_bytes(start, key) for key in all_keys(start.config))
    return rows + edges_bytes(start.config, num_edges) + step_bytes(start.config)


def is_resident(start: Start) -> bool:
    """Whether the graph is to be kept whole on the device; says so, or why not."""
    config = start.config
    choice = config.section(TrainConfig).resident
    if choice == "never" or (choice == "auto" and start.device.type != "cuda") or obstacle(config):
        return False
    if start.device.type == "cuda":
        return fits(start, choice, *torch.cuda.mem_get_info(start.device))
    return True


def fits(start: Start, choice: str, free: int, total: int) -> bool:
    """Whether the whole graph goes into `free` bytes, or is told to; says what was found."""
    needed = resident_bytes(start)
    chosen = needed <= SHARE * free or choice == "always"
    log.info(
        "training: rows, sums, edges and a step take %s; the device has %s of %s free: %s",
        *map(_gib, (needed, free, total)),
        "all stays on it" if chosen else "partitions come and go",
    )
    return chosen


def buffer_partitions(start: Start, free: int, host_free: int) -> int:
    """How many partitions a device with `free` bytes is to hold at a time; says what was found.

    None, where the host cannot hold them all: they come from files then.
    """
    config = start.config
    moving = [key for key in all_keys(config) if not is_shared(config, key)]
    on_host = sum(partition_bytes(start, key) for key in all_keys(config))
    if on_host > HOST_SHARE * host_free:
        log.info(
            "training: all rows and sums take %s, the host has %s free: partitions come from files",
            *map(_gib, (on_host, host_free)),
        )
        return 0
    slot = max((partition_bytes(start, key) for key in moving), default=0)
    largest = max(start.schedule.num_edges.values(), default=0)
    staying = sum(partition_bytes(start, key) for key in all_keys(config) if is_shared(config, key))
    # of two buckets, whose edges come as 64 bits a column
    taken = staying + step_bytes(config) + 2 * (edges_bytes(config, largest) + 28 * largest)
    room = int(SHARE * free - taken) // max(slot, 1) - SPARE_SLOTS
    num = min(max(room, bucket_partitions(start)), len(moving))
    log.info(
        "training: the device holds %d of %d partitions at a time, of %s at most; the host's memory all %s",
        num,
        len(moving),
        *map(_gib, (slot, on_host)),
    )
    return num


def bucket_partitions(start: Start) -> int:
    """The most partitions that a bucket needs, but for those of types that have one."""
    config = start.config
    return max(
        sum(not is_shared(config, key) for key in keys_of(config, bucket))
        for _, bucket in start.schedule.num_edges
    )


def host_free_bytes() -> int:
    """Memory that the host, or this container, has to give."""
    return min(int(psutil.virtual_memory().available), int(system.MEMORY_LIMIT))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
