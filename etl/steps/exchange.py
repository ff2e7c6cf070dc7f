"""The way of intermediate files from the tasks that wrote them to the tasks that read a part of each.

A source is a file of sections (`spill`). A target is the run of adjacent sections that one task reads, from
every source. Directly, files are opened sources x targets times, and each open costs two calls of HDFS's
namenode. If that is more than `etl.max_opens`, sources are combined first: a task reads a range of targets
from a group of sources, every source once and in its order, and writes them as one file, target by target.

    {name}-{group}-{range}.combined     sections: for each target of the range, for each source of the group,
                                        the target's sections

So sources x ranges + targets x groups opens do, and a target is a few long reads. With 5,000 sources and
4,000 targets these are 100,000 opens instead of 20 million. The content and its order stay the same.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from etl.steps import spill
from etl.steps.spill import Shared
from etl.steps.task_settings import TaskSettings
from etl.tables.blocks import ranges_within
from graphmill import storage
from graphmill.config.sections.etl import EtlConfig
from graphmill.storage.as_json import Int64

MAX_OPEN_FILES = 512
"""Sources that a task combines, which it holds open; or targets, so that there are tasks for many workers."""
MAX_COMBINED = 1024
"""Combined files, unless `MAX_OPEN_FILES` asks for more."""

MAX_OPENS = 100_000
"""Opens that a step may take, if `etl.max_opens` is auto: each costs two calls of HDFS's namenode."""
MAX_LOCAL_OPENS = 1_000_000
"""The same on local disks, where an open costs less than reading and writing what is combined."""

Piece = tuple[Int64, memoryview]
"""Starts of a target's sections within their bytes, from 0, [sections + 1]; and these bytes."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Plan by which tasks (targets) read the files of other tasks (sources), directly or combined."""

    folder: str
    name: str
    """Beginning of the names of the combined files."""
    sources: list[str]
    """File names in the folder."""
    bounds: Int64
    """[targets + 1] the first section of each target, and the number of all sections."""
    num_groups: int
    """Groups of sources; 0: nothing is combined."""
    num_ranges: int
    """Ranges of targets."""

    @property
    def num_targets(self) -> int:
        """Number of targets."""
        return len(self.bounds) - 1

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Group and range of each combined file."""
        return [(group, part) for group in range(self.num_groups) for part in range(self.num_ranges)]

    def uri(self, block: tuple[int, int]) -> str:
        """URI of a combined file."""
        return storage.join(self.folder, "{}-{}-{}.combined".format(self.name, *block))

    def sections(self, targets: range) -> range:
        """Sections of adjacent targets, as the sources number them."""
        return range(int(self.bounds[targets.start]), int(self.bounds[targets.stop]))


def planned(settings: TaskSettings, name: str, sources: list[str], bounds: Int64) -> Exchange:
    """Plan an exchange in the work folder, with as many opens as the settings allow."""
    folder, max_opens = settings.folders.work, settings.etl.max_opens
    if max_opens == "auto":
        max_opens = MAX_OPENS if storage.replicates(folder) else MAX_LOCAL_OPENS
    return plan(folder, name, sources, bounds, max_opens)


def plan(folder: str, name: str, sources: Sequence[str], bounds: Int64, max_opens: int) -> Exchange:
    """Plan combined files, so that about `max_opens` opens suffice; none, if direct reading already does."""
    num_sources, num_targets = len(sources), len(bounds) - 1
    num_groups = num_ranges = 0
    if num_sources * num_targets > max_opens:
        wanted = max_opens / (2 * num_targets), max_opens / (2 * num_sources)
        excess = max(math.sqrt(wanted[0] * wanted[1] / MAX_COMBINED), 1)
        num_groups = _num_parts(num_sources, wanted[0] / excess)
        num_ranges = _num_parts(num_targets, wanted[1] / excess)
    return Exchange(folder, name, list(sources), bounds, num_groups, num_ranges)


def _num_parts(count: int, wanted: float) -> int:
    """Return `wanted` parts of `count` items, or more, so that a task opens at most `MAX_OPEN_FILES`."""
    return min(max(int(wanted), -(-count // MAX_OPEN_FILES), 1), count)


def _parts(count: int, num_parts: int) -> list[range]:
    return [range(*ends) for ends in pairwise(number * count // num_parts for number in range(num_parts + 1))]


def combine(shared: Shared[Exchange], block: tuple[int, int], etl: EtlConfig) -> None:
    """Write one combined file; its sources are read in windows of about `merge_bytes`."""
    exchange = shared.read()
    group, part = block
    sources = _parts(len(exchange.sources), exchange.num_groups)[group]
    targets = _parts(exchange.num_targets, exchange.num_ranges)[part]
    sections = exchange.sections(targets)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(spill.open_sections(_source_uri(exchange, number), int(exchange.bounds[-1])))
            for number in sources
        ]
        starts = np.stack([reader.starts(sections) for reader in readers])
        at = exchange.bounds[targets.start : targets.stop + 1] - sections.start
        sizes = np.diff(starts[:, at], axis=1).sum(axis=0)
        writer = stack.enter_context(spill.new_sections(exchange.uri(block), etl))
        for window in ranges_within(sizes.tolist(), etl.merge_bytes):
            read = [
                memoryview(reader.read(int(of_source[at[window.start]]), int(of_source[at[window.stop]])))
                for reader, of_source in zip(readers, starts, strict=True)
            ]
            first = at[window.start]
            inside = starts[:, first : at[window.stop] + 1] - starts[:, [first]]
            for target in window:
                for content, of_source in zip(read, inside, strict=True):
                    mine = of_source[at[target] - first : at[target + 1] - first + 1]
                    writer.append(content[mine[0] : mine[-1]], np.diff(mine))


def pieces(exchange: Exchange, target: int) -> Iterator[Piece]:
    """Read a target's sections from every source, in the order of the sources."""
    sections = exchange.sections(range(target, target + 1))
    if not exchange.num_groups:
        for number in range(len(exchange.sources)):
            yield from _read(_source_uri(exchange, number), int(exchange.bounds[-1]), sections, 1)
        return
    parts = _parts(exchange.num_targets, exchange.num_ranges)
    part = bisect_right([targets.start for targets in parts], target) - 1
    in_part = exchange.sections(parts[part])
    first = sections.start - in_part.start
    for group, sources in enumerate(_parts(len(exchange.sources), exchange.num_groups)):
        count = len(sources)
        mine = range(first * count, (first + len(sections)) * count)
        yield from _read(exchange.uri((group, part)), len(in_part) * count, mine, count)


def _read(uri: str, num_sections: int, sections: range, num_sources: int) -> Iterator[Piece]:
    """Read adjacent sections of a file, which `num_sources` sources have given in equal numbers."""
    with spill.open_sections(uri, num_sections) as reader:
        starts = reader.starts(sections)
        content = memoryview(reader.read(int(starts[0]), int(starts[-1])))
    starts = starts - starts[0]
    step = len(sections) // num_sources
    for number in range(num_sources):
        mine = starts[number * step : (number + 1) * step + 1]
        yield mine - mine[0], content[mine[0] : mine[-1]]


def _source_uri(exchange: Exchange, number: int) -> str:
    return storage.join(exchange.folder, exchange.sources[number])
