"""The server that the worker processes of this machine are forked from, where a command has started one.

A start is mostly imports. A command that is going to have workers here makes those that it shares with them
first of all, while it has no threads yet, and then forks: multiprocessing's fork server goes on in the
child, imports what workers alone need, and forks them. So this module imports nothing but the standard
library. Workers of a command without a server are spawned, and import everything themselves.
"""

import ctypes
import gc
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

METHOD = "forkserver"

# What a worker process must be started with, however it is started.
ENVIRONMENT = {
    # Dask's nanny sets a trim threshold of 64 KiB, which makes glibc return and fault again every numpy
    # temporary: 14 % of the ETL's and up to half of the trainer's time.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    # Threads that wait for each other by spinning take the core from the one they wait for as soon as
    # anything else runs on the machine: two threads beside one busy process trained at a tenth of the speed.
    "OMP_WAIT_POLICY": "PASSIVE",
}
# As Dask's nanny starts a process; libraries look at these when they are imported.
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# The same to a process that runs already: parameters of glibc's mallopt.
_MALLOC_PARAMETERS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
_STANDARD_STREAMS = 3

# What the command of a job and its workers import, before it starts anything.
_SHARED = {
    "etl": ("distributed", "graphmill.cli.stage_command", "etl.job"),
    "train": (
        "distributed",
        "graphmill.cli.stage_command",
        "train.job",
    ),
    "remap": ("distributed", "graphmill.cli.stage_command", "remap.job", "remap.graphstorm.job"),
    "pipeline": (
        "distributed",
        "graphmill.cli.stage_command",
        "graphmill.run.dates",
        "etl.job",
        "train.job",
        "remap.job",
    ),
}
# What the workers' server alone imports, after pyarrow has been made ready.
_OWN = {
    "etl": ("etl.preload",),
    "train": (),
    "remap": ("remap.preload",),
    "pipeline": ("etl.preload", "remap.preload"),
}

_started = False


def start(shared: Sequence[str], own: Sequence[str] = ()) -> None:
    """Import the modules `shared`, and start the server, which goes on to import its `own`.

    Only for a process that runs nothing else yet: a fork takes no threads along.
    """
    global _started
    resource_tracker.ensure_running()
    before = dict(os.environ)
    os.environ.update(_THREADS | before | ENVIRONMENT)
    gc.disable()  # of what is imported nothing becomes garbage
    try:
        for module in shared:
            importlib.import_module(module)
        gc.freeze()
        multiprocessing.set_forkserver_preload([*shared, *own])
        with _forked() if sys.platform == "linux" else nullcontext():
            forkserver.ensure_running()
    finally:
        gc.enable()
        os.environ.clear()
        os.environ.update(before)
    _started = True


def is_started() -> bool:
    """Whether workers are to be forked from it."""
    return _started


def start_for(job: str, words: Sequence[str]) -> None:
    """Start the server of a job's workers, if by the look of the command's words they are local."""
    # Where the configuration names another cluster, it was started in vain, and ends with the command.
    masters = [word.partition("=")[2] for word in words if word.startswith("--master=")]
    masters += [after for word, after in itertools.pairwise(words) if word == "--master"]
    master = [os.environ.get("GRAPHMILL_MASTER") or "local", *masters][-1]
    if master.startswith("local") and "--help" not in words:
        start(_SHARED[job], ("graphmill.machine.preload", *_OWN[job]))


@contextmanager
def _forked() -> Iterator[None]:
    """Let multiprocessing fork this process where it would start Python anew, to do the same there."""
    spawn = util.spawnv_passfds
    util.spawnv_passfds = _fork
    try:
        yield
    finally:
        util.spawnv_passfds = spawn


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As `multiprocessing.util.spawnv_passfds`; `args` end with the Python that is the server."""
    if child := os.fork():
        return child
    try:
        # A terminal's Ctrl-C is for the command alone to act on: workers inherit that it is ignored.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_all_but(passfds)
        for name, parameter in _MALLOC_PARAMETERS.items():
            ctypes.CDLL(None).mallopt(parameter, int(os.environ[name]))
        with suppress(SystemExit):  # its end
            exec(args[-1], {})
    finally:
        os._exit(0)  # the server has nothing to clear away, and workers end by themselves


def _close_all_but(descriptors: Sequence[int]) -> None:
    """Close what a started process would not have, as the writing end of the pipe that tells of our end."""
    kept = {*descriptors, resource_tracker.getfd(), *range(_STANDARD_STREAMS)}
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # pathlib is not imported yet
        if number not in kept:
            with suppress(OSError):
                os.close(number)
