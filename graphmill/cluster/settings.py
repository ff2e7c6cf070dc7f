"""Environment of worker processes, and how many cores they have."""

import os
import re
from collections.abc import Mapping

from graphmill.errors import ConfigError

CORES_VARIABLE = "GRAPHMILL_NUM_CORES"
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # which torch reads when it makes its first tensor
DRIVER_VARIABLE = "GRAPHMILL_DRIVER"  # set in the container of a driver (`cluster.deploy: cluster`)

NEVER_MS = 2**31 - 1  # of an application; the distributed shell's default is ten minutes

# Prints the address of this machine that faces the scheduler (host and port); workers listen on it.
FACING = "import socket, sys; print(socket.create_connection((sys.argv[1], sys.argv[2])).getsockname()[0])"

# Environment variables of every worker process.
ENVIRONMENT = {
    # Dask's trim threshold is 64 KiB: glibc then returns every numpy temporary, and faults in the next one.
    # That took 14 % of the ETL's time and up to half of the trainer's.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    # glibc keeps freed memory; Arrow's own allocator returns the memory and faults it in again.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # A spinning thread takes the core from the thread that it waits for: two threads beside one busy process
    # trained at a tenth of the speed.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Torch asks for huge pages, as numpy does: random rows are read and updated two to three times as fast.
    HUGE_PAGES: "1",
}

# Dask's profiler of workers asks Python for the frames of all threads, during which Python 3.11 may wait for
# itself forever (https://github.com/python/cpython/issues/106883): it is off. Every process looks 50 times a
# second whether its loop still turns: twice takes a third less CPU of a cluster that waits for its steps.
QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "500ms"}


def is_driver() -> bool:
    """Tell whether this process runs in the container of a driver."""
    return DRIVER_VARIABLE in os.environ


def pre_spawn_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Dask with which nannies start their workers with these variables."""
    return {f"distributed.nanny.pre-spawn-environ.{key}": value for key, value in variables.items()}


def num_cores() -> int:
    """Count the cores that this process may use: its CPU affinity, and at most its container's share."""
    bound = len(os.sched_getaffinity(0))
    chosen = os.environ.get(CORES_VARIABLE) or str(bound)
    if not re.fullmatch("0*[1-9][0-9]*", chosen):
        raise ConfigError(f"{CORES_VARIABLE}: expected a number of cores, 1 or more, found {chosen!r}")
    return min(bound, int(chosen))
