"""Every checkpoint format, on local disks and on HDFS: kills at any point, tables larger than the memory."""

import multiprocessing
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

from graphmill import checkpoints, storage
from graphmill.checkpoints import open_checkpoint
from graphmill.convert import convert
from tests.forked import Forks
from tests.graphmill.checkpoints.samples import WRITERS, MemoryCheckpoint, check_same, held_by, sample

# A table of 128 MB is converted with 112 MB to spare for what malloc and anonymous mappings take, the stacks
# of a few threads included, on a machine with any number of cores. The client of HDFS ends the process where
# memory is refused: there it is watched, on a table of 256 MB.
_BOUNDED = """
import resource, sys, threading
import numpy as np
import pyarrow as pa
import torch
from graphmill import checkpoints
from graphmill import convert
from tests.graphmill.formats.memory import anonymous_bytes, data_bytes
source, target, *formats = sys.argv[1:]
for set_number in (torch.set_num_threads, pa.set_cpu_count, pa.set_io_thread_count):
    set_number(4)
for each in formats:  # warm up
    convert.convert(source + "_small", f"{target}_{each}_small", each, shard_num=3)
before, peak = anonymous_bytes(), 0
if target.startswith("hdfs"):
    def watch():
        global peak
        while not done.wait(0.01):
            peak = max(peak, anonymous_bytes() - before)
    done = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
else:
    limit = data_bytes() + (128 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        np.ones(40 << 20, np.float32)
    except MemoryError:
        print("bounded", flush=True)
for each in formats:
    convert.convert(source, f"{target}_{each}", each, shard_num=3)
if target.startswith("hdfs"):
    done.set()
    print("bounded" if 0 < peak < 256 << 20 else peak)
"""

AROUND = (*checkpoints.FORMATS, checkpoints.FORMATS[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "source_format", "target_formats"),
    [
        *(
            ("local", source, AROUND[number : number + 2])
            for number, source in enumerate(checkpoints.FORMATS)
        ),
        # To all formats; every source there would take four minutes.
        pytest.param("hdfs", "recis", checkpoints.FORMATS, marks=pytest.mark.hdfs),
    ],
    indirect=["root"],
)
def test_memory_is_bounded(
    root: str, source_format: str, target_formats: tuple[str, ...], forked: Forks
) -> None:
    """A table larger than the limit is converted from every format to two, and to every format from two."""
    num_rows = 1 << 19 if storage.is_local(root) else 1 << 20
    rows = np.random.default_rng(0).standard_normal((num_rows, 80), np.float32)
    state = {"state": {0: {"step": 0, "sum": torch.ones(len(rows))}}, "param_groups": []}
    for name, count in (("source", len(rows)), ("source_small", 8)):
        tables = {"user": [(rows[:count], None if count == 8 else state)]}
        WRITERS[source_format](MemoryCheckpoint(tables, None, None), storage.join(root, name))
    uris = [storage.join(root, name) for name in ("source", "target")]
    done = forked("python", "-c", _BOUNDED, *uris, *target_formats)
    assert (done.code, done.stdout) == (0, "bounded\n"), done.stderr[-2000:]
    for target_format in target_formats:
        with open_checkpoint(storage.join(root, f"target_{target_format}")).open_rows("user", 0) as read:
            np.testing.assert_array_equal(read.read(1000, 2000), rows[1000:2000])


def _die_at(environment: dict[str, str], source: str, target: str, target_format: str, change: int) -> None:
    """Convert, and die before change number `change` of a folder."""
    os.environ.update(environment)
    changes = 0
    real = {name: getattr(storage.fs, name) for name in ("move", "move_new", "delete")}

    def counted(name: str) -> Any:
        def change_of_a_folder(*args: str) -> Any:
            nonlocal changes
            if changes == change:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1
            return real[name](*args)

        return change_of_a_folder

    for name in real:
        setattr(storage.fs, name, counted(name))
        if hasattr(storage, name):
            setattr(storage, name, counted(name))
    convert(source, target, target_format)


@pytest.mark.slow
@pytest.mark.parametrize("target_format", checkpoints.FORMATS)
def test_a_kill_leaves_all_or_nothing(root: str, target_format: str) -> None:
    """SIGKILL before each rename and deletion leaves no target or a whole target; the next run succeeds."""
    # A process that has spoken to HDFS cannot be forked; one that has only imported can.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    source, targets = storage.join(root, "source"), storage.join(root, "targets")
    WRITERS["pbg"](sample(), source)
    num_killed = 0
    for change in range(0, 100, 1 if storage.is_local(root) else 3):
        target = storage.join(targets, str(change))
        child = server.Process(target=_die_at, args=(dict(os.environ), source, target, target_format, change))
        child.start()
        child.join()
        if not storage.list_dir(target):
            convert(source, target, target_format)
        written = open_checkpoint(target)
        if not written.has_added_globals:  # test_graphstorm_model compares such rows
            check_same(written, held_by(target_format, sample()))
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        num_killed += 1
        storage.recover(target)
    assert child.exitcode == 0
    assert num_killed >= 3
    assert not storage.fs.list_hidden(targets)
