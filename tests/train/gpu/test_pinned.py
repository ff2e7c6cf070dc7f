"""Pinned memory of exact sizes, and the pinned area of edges; without a GPU, CUDA's registry is played."""

import gc
import mmap
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.config.partitions import all_keys
from tests.train.graphs import node_graph
from train.gpu.copies import Copies, Staging, num_floats_of, pinned
from train.step.step import Table
from train.tables import memory
from train.tables.run_context import RunContext

CUDA = torch.device("cuda", 0)


class Registry:
    """The part of CUDA's runtime that pins pages."""

    def __init__(self):
        self.cudaHostRegister, self.cudaHostUnregister = self.register, self.unregister
        self.registered = {}
        self.num_waits = 0

    def register(self, address, size, flags):
        assert address % mmap.PAGESIZE == 0
        pages = range(address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE))
        assert not any(page in other for other in self.registered.values() for page in pages)
        self.registered[address] = pages
        return 0

    def unregister(self, address):
        del self.registered[address]
        return 0

    def synchronize(self):
        self.num_waits += 1


@pytest.fixture
def registry():
    with played() as own:
        yield own


@contextmanager
def played():
    own = Registry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "cudart", lambda: own)
        patch.setattr(torch.cuda, "check_error", lambda result: None)
        patch.setattr(torch.cuda, "current_stream", lambda device: own)
        yield own


@pytest.mark.slow
def test_memory_takes_whole_pages_and_is_given_back(registry):
    held, parts = [], []
    for number, num_bytes in enumerate((0, 1, 4095, 4096, 4097, 100_000), start=1):
        held += [pinned(num_bytes) for _ in range(2)]
        assert held[-1].dtype == torch.uint8
        assert len(held[-1]) == len(held[-2]) == num_bytes
        assert len(registry.registered) == 2 * number
        for pages in list(registry.registered.values())[-2:]:
            assert len(pages) == max(1, -(-num_bytes // mmap.PAGESIZE))
        parts.append(held[-1][num_bytes // 2 :])
    held.clear()
    gc.collect()
    assert len(registry.registered) == len(parts)  # while a part of it is in use
    parts.clear()
    gc.collect()
    assert not registry.registered


def test_a_pinned_table_holds_the_same_rows(registry):
    copies = Copies(torch.device("cpu"))
    copies.is_cuda = True
    table = Table(torch.randn(1001, 7), torch.rand(1001))
    own = copies.pinned(table)
    assert torch.equal(own.embeddings_ND, table.embeddings_ND)
    assert torch.equal(own.sums, table.sums)
    (pages,) = registry.registered.values()
    assert len(pages) == -(-4 * num_floats_of(table) // mmap.PAGESIZE)
    assert own.sums.data_ptr() // mmap.PAGESIZE in pages


@given(lengths=st.lists(st.integers(0, 3000), max_size=6), room=st.integers(0, 20_000))
def test_arrays_of_the_area_do_not_meet(lengths, room):
    with played() as own:
        staging = Staging(room, CUDA)
        for _ in range(2):
            waits = own.num_waits
            with staging.arrays() as new:
                arrays = [new((length,), np.int32) for length in lengths]
                for number, array in enumerate(arrays):
                    array[:] = number
                for number, (length, array) in enumerate(zip(lengths, arrays, strict=True)):
                    assert array.tolist() == [number] * length
                    assert array.dtype == np.int32
            assert own.num_waits == waits + 1  # the copies are done before the area is used again
            assert len(own.registered) == 1  # one area for all
            (pages,) = own.registered.values()
            begin = min(pages) * mmap.PAGESIZE
            inside = [begin <= each.ctypes.data < begin + room for each in arrays if len(each)]
            if sum(4 * length + 60 for length in lengths) <= room:
                assert all(inside)


def test_the_area_holds_the_largest_bucket(registry, tmp_path):
    config = node_graph(tmp_path, np.random.default_rng(1), 60, 400, num_partitions=2, num_edge_chunks=3)
    context = RunContext(config)
    schedule = context.schedule
    staging = Staging(memory.staging_bytes(context), CUDA)
    share = schedule.share(schedule.iteration(2))
    most = max(stop - start for start, stop in map(share.rows, schedule.num_edges.values()))
    with staging.arrays() as new:
        (pages,) = registry.registered.values()
        for dtype in (np.int32, np.int32, np.int32, np.float32):
            assert new((most,), dtype).ctypes.data // mmap.PAGESIZE in pages
    # what a buffer takes on the host: all rows, one partition twice while it is loaded, and this area
    sizes = [memory.partition_bytes(context, key) for key in all_keys(config)]
    assert memory.host_bytes(context) == sum(sizes) + max(sizes) + memory.staging_bytes(context)
