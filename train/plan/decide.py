"""Decides how a process trains and ranks, by the settings, the sizes and the machine."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from graphmill.config import Config
from graphmill.config.partitions import all_buckets, all_keys, is_shared
from graphmill.errors import ConfigError
from train.compiled import compiled_queries, compiled_step
from train.edges.candidates import has_sample
from train.edges.negative_sampling import sides_with_negatives
from train.edges.one_vs_all import sorts_of
from train.edges.visits import Blocks
from train.gpu import fused_pass
from train.plan.plan import Placement, Plan, Sort, StepName, Steps
from train.tables import memory
from train.tables.run_context import RunContext

# Of queries. On WordNet (106,000 edges) two and four at once cost nothing, eight .006 MRR, sixteen .009.
MOST_AT_ONCE = 4
LEAST_BATCHES = 64  # of a bucket, for each of those at once
# Of a batch of queries with the rows it is compared with, so that two threads are faster than one. Two take
# 2.5 times as long at 1.3e7, 1.6 times at 1.4e8, 1.2 times at 4e8, and .8 at 1.5e9.
LEAST_PRODUCTS = 1 << 30


def decide(context: RunContext, workers: int = 1, *, blocks_of_all: int = 0) -> Plan:
    """Decide how this process trains, as one of `workers`; `blocks_of_all` is from `blocks_of_workers`."""
    config = context.config
    reasons: list[str] = []
    ignored: list[str] = []
    steps = steps_for(config, context.device, reasons)
    if "fused" in steps.values() and config.train.first_negatives < 1:
        ignored.append("train.first_negatives has no effect: the fused step draws all negatives")
    rows = _rows(context, workers, blocks_of_all, reasons, ignored)
    at_once = _batches_at_once(context, steps, rows.blocks, reasons)
    threads = torch.get_num_threads() if at_once > 1 else _threads(context, steps, rows.blocks, reasons)
    return Plan(
        device=str(context.device),
        steps=steps,
        **rows._asdict(),
        threads=threads,
        batches_at_once=at_once,
        workers=workers,
        num_partitions=max(config.num_partitions.values(), default=1),
        reasons=tuple(reasons),
        ignored=tuple(ignored),
        varying=tuple(_varying(context, steps, workers, threads)),
    )


def _varying(context: RunContext, steps: Steps, workers: int, threads: int) -> Iterator[str]:
    """List the settings by which a result depends on timing, each with the value that repeats."""
    settings, is_gpu = context.config.train, context.device.type == "cuda"
    if workers > 1 and settings.bucket_assignment == "dynamic":
        yield "train.bucket_assignment: dynamic (tournament repeats, and so does train.num_workers: 1)"
    if is_gpu and not settings.deterministic:
        yield "train.deterministic: false"
    # Threads race on edges; PyTorch's sum gradients of edges, and maybe those of plug-ins, in any order.
    if not is_gpu and threads > 1 and (set(steps) != {"queries"} or settings.plugins):
        yield f"{threads} threads (workers: 1 repeats)"


def steps_for(config: Config, device: torch.device, reasons: list[str]) -> dict[Sort, StepName]:
    """Choose the step of each sort of batch; adds to `reasons` the obstacles to faster ones."""
    choice, sorts = config.train.engine, set(sorts_of(config))
    if choice == "fused" or (choice == "auto" and device.type == "cuda"):
        obstacle = fused_pass.obstacle(config) or fused_pass.obstacle_of_device(config, device)
        if obstacle is None:
            return {"edges": "fused"}
        if choice == "fused":
            raise ConfigError(
                f"train.engine: fused cannot train {obstacle}; set train.engine to auto or plain, or do "
                "without it"
            )
        reasons.append(f"the fused step cannot train {obstacle}")
    steps: dict[Sort, StepName] = dict.fromkeys(sorted(sorts), "plain")
    if device.type == "cuda":
        return steps | ({"queries": "replayed"} if "queries" in sorts else {})
    if choice == "plain":
        return steps
    obstacles: dict[Sort, str | None] = {"edges": compiled_step.obstacle(config), "features": "features"}
    of_steps: list[str] = []
    for sort in steps:
        if obstacle := obstacles.get(sort):
            of_steps.append(f"the compiled step cannot train {obstacle}")
        elif (loaded := compiled_step.library()) is None:
            of_steps.append("the compiled step cannot be built here")
        else:
            of_steps.append(f"the compiled step is for {loaded.origin}")
            steps[sort] = "compiled"
    reasons += dict.fromkeys(of_steps)
    return steps


def _batches_at_once(context: RunContext, steps: Steps, blocks: int, reasons: list[str]) -> int:
    """Count the batches of a bucket that train at the same time; those of queries share torch's threads.

    Parallel batches do not see each other's updates. At most 4 batches of queries train at once, and 1 if
    PyTorch moves a table as a whole.
    """
    config, threads = context.config, torch.get_num_threads()
    if set(steps.values()) != {"compiled"}:
        return 1
    if "queries" not in steps:
        return threads
    most = MOST_AT_ONCE if set(steps) == {"queries"} else min(MOST_AT_ONCE, threads)
    if whole := _whole_rows(context, steps, blocks):
        (name, rows), num = next(iter(whole.items())), config.train.candidates
        moved = f"they move all {rows} rows of {name}, which are too few for train.candidates: {num}"
        moved = moved if num is not None else "without train.candidates they move all rows"
        reasons.append(f"batches of queries train one after the other: {moved}")
        return 1
    schedule = context.schedule
    buckets = Blocks(config, schedule, blocks).order(schedule.iteration(0)) if blocks else all_buckets(config)
    num_batches = schedule.num_edges_of(0) // len(buckets) // config.batch_size
    at_once = max(1, min(most, num_batches // LEAST_BATCHES))
    if at_once < threads:
        reasons.append(
            f"of queries at most {MOST_AT_ONCE} batches train at the same time, and one for each "
            f"{LEAST_BATCHES} batches of a bucket, which has {num_batches}"
        )
    return at_once


def _threads(context: RunContext, steps: Steps, blocks: int, reasons: list[str]) -> int:
    """Count the threads of a batch: one where batches of queries are compiled, or too small to be shared."""
    threads, config = torch.get_num_threads(), context.config
    if threads == 1 or context.device.type != "cpu" or set(steps) != {"queries"}:
        return threads
    whole = _whole_rows(context, steps, blocks)
    sampled = 0 if _most_rows(config, steps) else config.train.candidates or 0
    names = _rows_of_queries(context, blocks)
    compared = max([whole.get(name, sampled) * config.entity_dimension(name) for name in names], default=0)
    if config.batch_size * compared >= LEAST_PRODUCTS:
        return threads
    reasons.append(f"one thread trains: a batch of {config.batch_size} queries is not shared by {threads}")
    return 1


def _most_rows(config: Config, steps: Steps) -> int:
    return compiled_queries.most_rows(config) if steps["queries"] == "compiled" else 0


def _whole_rows(context: RunContext, steps: Steps, blocks: int) -> dict[str, int]:
    """Count the rows of the types that PyTorch moves as a whole, as no sample is drawn."""
    num, most = context.config.train.candidates, _most_rows(context.config, steps)
    every = _rows_of_queries(context, blocks).items()
    return {name: rows for name, rows in every if rows > most and not has_sample(num, rows)}


def _rows_of_queries(context: RunContext, blocks: int) -> dict[str, int]:
    """Count the rows, in a bucket, of the types that queries are compared with."""
    config = context.config
    pairs = zip(config.relations, sorts_of(config), strict=True)
    relations = [relation for relation, sort in pairs if sort == "queries"]
    rows = {}
    sides = sides_with_negatives(config)
    for name in sorted({relation.entity_type(side) for relation in relations for side in sides}):
        counts = context.num_rows[name]
        joined = min(2, blocks) * sum(counts) // blocks if blocks else min(counts)  # in a bucket's table
        rows[name] = counts[0] if len(counts) == 1 else joined
    return rows


class PlannedRows(NamedTuple):
    """The place of rows, and how they move: some attributes of a `Plan`."""

    placement: Placement
    slots: int = 0
    blocks: int = 0
    prefetch: bool = True
    writes_beside: bool = True


def _rows(
    context: RunContext, workers: int, blocks_of_all: int, reasons: list[str], ignored: list[str]
) -> PlannedRows:
    settings = context.config.train
    prefetch = settings.prefetch is not False
    if workers > 1:
        ignored += _ignored_by_workers(context.config, workers, blocks_of_all)
        return PlannedRows("files", blocks=blocks_of_all, prefetch=prefetch)
    is_cuda = context.device.type == "cuda"
    free, total = torch.cuda.mem_get_info(context.device) if is_cuda else (0, 0)
    has_partitions = any(num > 1 for num in context.config.num_partitions.values())
    obstacle = _obstacle_of_joining(context)
    is_asked = settings.resident == "always" or (settings.resident == "auto" and (is_cuda or has_partitions))
    if obstacle and is_asked:
        (ignored if settings.resident == "always" else reasons).append(
            f"train.resident: {settings.resident} has no effect: "
            f"the whole graph cannot stay on the device with {obstacle}"
        )
    elif not obstacle and (
        settings.resident == "always"
        or (is_cuda and settings.resident == "auto" and fits(context, free, total, reasons))
    ):
        with_copy = memory.whole_bytes(context, writes_beside=True)
        has_room = with_copy <= memory.WORKER_SHARE * memory.worker_bytes()
        return PlannedRows("device", blocks=1, writes_beside=is_cuda or has_room)
    slots = settings.device_partitions
    if slots is None:
        slots = slots_of(context, free, memory.host_free_bytes(), reasons) if is_cuda else 0
    elif 0 < slots < (needed := memory.bucket_partitions(context)):
        raise ConfigError(
            f"train.device_partitions: {slots}; a bucket needs {needed} partitions on the device"
        )
    if slots:
        return PlannedRows("buffer", slots, prefetch=prefetch)
    if obstacle or not has_partitions:
        return PlannedRows("files", prefetch=prefetch)
    if is_cuda or settings.resident == "never" or settings.memory_partitions is not None:
        blocks = blocks_for(context.config, settings.memory_partitions or 2)
        return PlannedRows("files", blocks=blocks, prefetch=prefetch)
    return rows_in(context, memory.worker_bytes(), reasons)


def blocks_of_workers(context: RunContext, workers: int, worker_bytes: int) -> int:
    """Count the blocks of a run on several workers: two for each or more; 0 if buckets train one by one."""
    config, settings = context.config, context.config.train
    least, most = 2 * workers, _least_partitions(config)
    if most < least or _obstacle_of_joining(context):
        return 0
    is_cuda = context.device.type == "cuda"
    if is_cuda or settings.resident == "never" or settings.memory_partitions is not None:
        return max(least, blocks_for(config, settings.memory_partitions or 2))
    room = memory.WORKER_SHARE * worker_bytes
    fitting = (num for num in range(least, most) if memory.blocks_bytes(context, num, prefetch=True) <= room)
    return next(fitting, most)


def _ignored_by_workers(config: Config, workers: int, blocks: int) -> list[str]:
    """Tell which settings have no effect where workers hand partitions on to each other."""
    settings = config.train
    exchange = f"{workers} workers hand partitions on to each other"
    ignored = [f"train.resident: always has no effect: {exchange}"] * (settings.resident == "always")
    if settings.all_reduce in ("nccl", "gloo"):
        ignored.append(f"train.all_reduce: {settings.all_reduce} has no effect: shards merge shared rows")
    keys = ("device_partitions",) if blocks else ("device_partitions", "memory_partitions")
    return ignored + [f"train.{key} has no effect: {exchange}" for key in keys if getattr(settings, key)]


def _obstacle_of_joining(context: RunContext) -> str | None:
    """Name the part of the configuration that needs partitions; on a GPU, that the kernels cannot train."""
    if context.device.type == "cuda":
        return fused_pass.obstacle(context.config)
    is_featurized = any(entity.featurized for entity in context.config.entities.values())
    return "featurized entities" if is_featurized else None


def blocks_for(config: Config, num_partitions: int) -> int:
    """Count the blocks of which memory holds two, if it holds `num_partitions` of a type."""
    blocks = -(-_least_partitions(config) // max(1, num_partitions // 2))
    return blocks if blocks > 2 else 1


def rows_in(context: RunContext, worker_bytes: int, reasons: list[str]) -> PlannedRows:
    """Choose what fits half of the memory: all rows, maybe with a copy, or two blocks; adds to `reasons`."""
    settings = context.config.train
    prefetch, most = settings.prefetch is True, _least_partitions(context.config)
    choices = [
        *(PlannedRows("device", blocks=1, writes_beside=beside) for beside in (True, False)),
        *(PlannedRows("files", blocks=blocks, prefetch=prefetch) for blocks in range(3, most + 1)),
    ]
    for rows in choices:
        if rows.blocks == 1:
            needed = memory.whole_bytes(context, writes_beside=rows.writes_beside)
        else:
            needed = memory.blocks_bytes(context, rows.blocks, prefetch=prefetch)
        if needed <= memory.WORKER_SHARE * worker_bytes:
            break
    else:
        rows = PlannedRows("files", blocks=blocks_for(context.config, 2), prefetch=prefetch)
    held = "all rows are" if rows.blocks == 1 else f"of {rows.blocks} blocks of partitions two are"
    reasons.append(
        f"{held} in memory, with edges and steps {_gib(needed)}; the worker has {_gib(worker_bytes)}"
    )
    if not rows.writes_beside:
        reasons.append(
            "there is no room for a copy of all rows: training waits for the files of each version"
        )
    return rows


def _least_partitions(config: Config) -> int:
    return min((num for num in config.num_partitions.values() if num > 1), default=1)


def fits(context: RunContext, free: int, total: int, reasons: list[str]) -> bool:
    """Tell whether the whole graph fits in `free` bytes of the device; adds the sizes to `reasons`."""
    needed = memory.resident_bytes(context)
    is_small = needed <= memory.SHARE * free
    reasons.append(
        f"rows, sums, edges and a step take {_gib(needed)}; the device has {_gib(free)} of {_gib(total)} "
        f"free: {'all stays on it' if is_small else 'partitions come and go'}"
    )
    return is_small


def slots_of(context: RunContext, free: int, host_free: int, reasons: list[str]) -> int:
    """Count the partitions that a device with `free` bytes holds at a time; 0 if the host cannot hold all."""
    config = context.config
    on_host = memory.host_bytes(context)
    if on_host > memory.HOST_SHARE * host_free:
        reasons.append(
            f"rows, sums and edges in transfer take {_gib(on_host)}, the host has {_gib(host_free)} free: "
            "partitions come from files"
        )
        return 0
    moving = [key for key in all_keys(config) if not is_shared(config, key)]
    largest = max((memory.partition_bytes(context, key) for key in moving), default=0)
    room = int(memory.SHARE * free - memory.staying_bytes(context)) // max(largest, 1) - memory.SPARE_SLOTS
    slots = min(max(room, memory.bucket_partitions(context)), len(moving))
    reasons.append(
        f"the device holds {slots} of {len(moving)} partitions at a time, each of at most {_gib(largest)}; "
        f"the host's memory holds all, {_gib(on_host)}"
    )
    return slots


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
