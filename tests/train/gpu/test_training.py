"""Training by the fused step, by reference on a CPU, by kernels on a GPU; pinned memory."""

import gc
import mmap
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.checkpoints import pbg
from graphmill.cluster.connecting import connect
from graphmill.config.partitions import all_keys
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError
from graphmill.gpu.device import device_of
from tests.contents import contents
from tests.train.graphs import embeddings, make_config, node_graph, random_triples, write_graph
from tests.train.run.test_job import fitted, fitting
from train import job
from train.gpu.copies import Copies, Staging, num_floats_of, pinned
from train.plan import decide
from train.step.step import Table
from train.tables import memory
from train.tables.partition_store import copy_device
from train.tables.run_context import RunContext

NUM_GPUS = 1 if torch.cuda.is_available() else 0
COUNTS = {"user": 25, "item": 20}


def two_types(root, *, dynamic: bool, num_partitions: int, **settings):
    """A configuration of two types and two relations, whose graph is written."""
    entities = {name: {"num_partitions": num_partitions} for name in COUNTS}
    own = {"entities": entities, "dynamic_relations": dynamic, "num_gpus": NUM_GPUS}
    config, _ = fitting(root, "complex_diagonal", 2, repeats=1, **own | settings)
    return config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamic", "num_partitions", "resident", "own"),
    [
        (True, 1, "never", {"deterministic": False}),
        (False, 2, "always", {"optimizer": "adagrad", "lr_schedule": "linear"}),
    ],
)
def test_the_engine_fits_a_small_graph(tmp_path, dynamic, num_partitions, resident, own):
    entities = {name: {"num_partitions": num_partitions} for name in COUNTS}
    train = {"engine": "fused", "resident": resident, **own}
    more = {"entities": entities, "dynamic_relations": dynamic, "num_gpus": NUM_GPUS, "train": train}
    assert fitted(tmp_path, "complex_diagonal", 2, **more) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [2, 6])
def test_the_size_of_a_buffer_changes_no_byte(tmp_path, capacity):
    """Nine buckets of two types: a capacity of one more leaves the order of buckets as it is."""
    tables, moved = [], []
    for size in (capacity + 1, capacity):
        settings = {"engine": "fused", "resident": "never", "device_partitions": size}
        config = two_types(tmp_path / str(size), dynamic=True, num_partitions=3, train=settings)
        config = config.model_copy(update={"num_epochs": 3})
        moved.append(job.train(config)["epochs"][-1]["partitions_read"])
        tables.append(torch.cat([embeddings(config, kind, count) for kind, count in COUNTS.items()]))
    assert torch.equal(*tables)
    # with room for six partitions each comes once
    assert moved[1] == 0 if capacity == 6 else moved[0] <= moved[1] <= (18 if capacity == 2 else 12)


def test_sizes_decide_what_stays_on_the_device(tmp_path):
    settings = {"num_partitions": 8, "dimension": 100, "batch_size": 10, "global_emb": False}
    config = node_graph(tmp_path, np.random.default_rng(1), 80_000, 1000, **settings)
    context = RunContext(config, device=device_of(config.num_gpus))
    rows = 80_000 * 4 * 101
    needed = memory.resident_bytes(context)
    assert rows < needed < 1.1 * rows
    reasons: list[str] = []
    assert decide.fits(context, int(needed / memory.SHARE) + 1, 10**11, reasons)
    assert "all stays on it" in reasons.pop()
    assert not decide.fits(context, int(needed / memory.SHARE) - 1, 10**11, reasons)
    assert "partitions come and go" in reasons.pop()
    # a bucket's two and the two that come and go, wherever they are
    assert decide.slots_of(context, rows // 8, 10**11, reasons) == 2
    assert decide.slots_of(context, int(0.9 * rows), 10**11, reasons) == 4
    assert "holds 4 of 8 partitions" in reasons.pop()
    assert decide.slots_of(context, 10**11, 10**11, reasons) == 8
    assert decide.slots_of(context, 10**11, rows, reasons) == 0
    assert "partitions come from files" in reasons.pop()
    assert 0 < memory.host_free_bytes() < 2**50


def test_a_version_is_copied_on_the_device_if_there_is_room(tmp_path, monkeypatch):
    settings = {"dimension": 100, "batch_size": 10, "global_emb": False}
    config = node_graph(tmp_path, np.random.default_rng(1), 20_000, 1000, **settings)
    device = torch.device("cuda", 0)
    context = RunContext(config, device=device)
    twice = memory.resident_bytes(context) + 20_000 * 4 * 101
    for free, place in ((twice / memory.SHARE + 1, "cuda"), (twice / memory.SHARE - 1, "cpu")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (int(free), 10**11))
        assert copy_device(context).type == place
    assert copy_device(context.on_host()).type == "cpu"


def test_a_setting_places_the_rows(tmp_path):
    """Whatever fits: the setting counts on a device without a GPU, too."""
    for placement, slots, own in (
        ("device", 0, {"resident": "always"}),
        ("buffer", 3, {"device_partitions": 3}),
        ("files", 0, {"device_partitions": 0}),
    ):
        plan = decided(tmp_path / placement, train=own)
        assert (plan.placement, plan.slots, plan.ignored) == (placement, slots, ())


def test_a_setting_without_effect_is_told_with_its_reason(tmp_path, caplog):
    featurized = {"node": {"num_partitions": 4}, "word": {"num_partitions": 1, "featurized": True}}
    words = {"name": "r", "lhs": "word", "rhs": "node"}
    plan = decided(tmp_path / "words", entities=featurized, relations=[words], train={"resident": "always"})
    assert plan.placement == "files"
    (text,) = plan.ignored
    assert "train.resident: always has no effect" in text
    assert "featurized entities" in text
    never = decided(tmp_path / "never", entities=featurized, relations=[words], train={"resident": "never"})
    assert not [each for each in never.reasons + never.ignored if "train.resident" in each]
    several = decided(tmp_path / "2", 2, train={"resident": "always", "device_partitions": 3})
    assert several.placement == "files"
    assert [text.split(" has no effect: ")[1] for text in several.ignored] == [
        "2 workers hand partitions on to each other"
    ] * 2
    for former, is_named in (("shards", False), ("files", False), ("nccl", True), ("gloo", True)):
        told = decided(tmp_path / former, 2, train={"all_reduce": former}).ignored
        assert [text.split(":")[1] for text in told] == [f" {former} has no effect"] * is_named
    caplog.set_level("INFO", "graphmill")
    several.log()
    assert f"training on cpu with the {several.steps['edges']} step for edges" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO", "WARNING"}


def decided(root, workers=1, **settings):
    """The plan for a graph of four partitions on a CPU."""
    usual = {"entities": {"node": {"num_partitions": 4}}, "global_emb": False}
    config = make_config(root, **usual | settings)
    triples = random_triples(np.random.default_rng(1), 40, 1, 40, 100)
    write_graph(config, dict.fromkeys(config.entities, 40), triples)
    return decide.decide(RunContext(config, device=device_of(config.num_gpus)), workers)


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a bucket needs 2"):
        decided(tmp_path, train={"device_partitions": 1})
    with pytest.raises(ConfigError, match="comparator 'cos'"):
        decided(tmp_path, comparator="cos", train={"engine": "fused"})


@pytest.mark.parametrize("resident", ["always", "never"])
def test_a_run_that_stops_and_goes_on_ends_with_the_same_bytes(tmp_path, resident):
    own = {"dynamic": True, "num_partitions": 2, "train": {"engine": "fused", "resident": resident}}
    rows = []
    for name, epochs in (("once", [2]), ("twice", [1, 2])):
        config = two_types(tmp_path / name, **own)
        for num_epochs in epochs:
            job.train(config.model_copy(update={"num_epochs": num_epochs}))
        rows.append(torch.cat([embeddings(config, kind, count) for kind, count in COUNTS.items()]))
    assert torch.equal(*rows)


def test_a_checkpoint_moves_between_engines_and_modes(tmp_path):
    modes = [("plain", "never"), ("fused", "always"), ("fused", "never"), ("plain", "never")]
    for number, (engine, resident) in enumerate(modes, start=1):
        own = {"engine": engine, "resident": resident}
        config = two_types(tmp_path, dynamic=False, num_partitions=2, train=own)
        # the plain ones on the CPU, whatever there is
        num_gpus = NUM_GPUS if engine == "fused" else 0
        config = config.model_copy(update={"num_epochs": number, "num_gpus": num_gpus})
        assert job.train(config)["first_version"] == number - 1
        assert pbg.read_version(config.checkpoint_path) == number
    assert len(contents(tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("major", "kilobytes", "dimension", "half", "known"),
    [
        (9, 227, 1024, False, True),  # H100
        (8, 163, 400, False, False),  # A100
        (8, 163, 256, True, True),
        (7, 96, 100, True, False),  # V100
    ],
)
def test_a_gpu_too_small_for_the_kernels_takes_plain_steps(
    tmp_path, monkeypatch, major, kilobytes, dimension, half, known
):
    pytest.importorskip("triton")
    gpu = SimpleNamespace(name="GPU", major=major, minor=0, shared_memory_per_block_optin=kilobytes << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    config = make_config(tmp_path, global_emb=False, dimension=dimension, half_precision=half)
    reasons: list[str] = []
    steps = decide.steps_for(config, torch.device("cuda", 0), reasons)
    assert steps == {"edges": "fused" if known else "plain"}
    assert len(reasons) == (not known)
    assert known or f"dimension {dimension} on this GPU, with {kilobytes} KiB" in reasons[0]


@pytest.mark.parametrize(
    ("num_gpus", "train", "wanted"), [(0, {}, 1), (1, {}, 1), (4, {}, 4), (4, {"num_workers": 1}, 1)]
)
def test_several_gpus_are_several_workers(tmp_path, num_gpus, train, wanted):
    config = job.one_worker_per_gpu(make_config(tmp_path, num_gpus=num_gpus, train=train))
    assert config.train.num_workers == wanted


@pytest.mark.skipif(find_spec("dask_cuda") is not None, reason="dask-cuda is there")
def test_a_cluster_of_gpus_needs_dask_cuda():
    with (
        pytest.raises(ConfigError, match=r"pip install 'graphmill\[cuda\]'"),
        connect("cuda", ClusterConfig()),
    ):
        pass


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
