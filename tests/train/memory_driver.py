"""Trains in a worker of so much memory: `python -m tests.train.memory_driver CONFIG WORKER_BYTES`.

Partitions have memory of their own, as large ones have that are beyond the limit of `keep_freed_memory`.
Prints the figures as JSON, and the most memory that the process has had above that of its imports.
"""

import ctypes
import json
import re
import resource
import sys
from pathlib import Path

if __name__ == "__main__":  # Dask reads the limit when it is imported
    resource.setrlimit(resource.RLIMIT_RSS, (int(sys.argv[2]), int(sys.argv[2])))

from graphmill import config as configuration
from train import job
from train.run import trainer  # noqa: F401 (its imports take memory too)
from train.step import runtime


def resident_bytes(name: str) -> int:
    """Memory of this process in RAM: `VmRSS` now, `VmHWM` at most until now."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def main() -> None:
    config = configuration.load(sys.argv[1])
    runtime.keep_freed_memory = lambda: ctypes.CDLL(None).mallopt(runtime._M_MMAP_THRESHOLD, 4 << 20)
    before = resident_bytes("VmRSS")
    figures = job.train(config)
    sys.stdout.write(json.dumps(figures | {"grown_bytes": resident_bytes("VmHWM") - before}))


if __name__ == "__main__":
    main()
