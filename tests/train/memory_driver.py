"""Trains under a limit of memory: `python -m tests.train.memory_driver CONFIG LIMIT_BYTES`.

The limit is on what the process allocates after its imports; prints the figures as JSON.
"""

import json
import re
import resource
import sys
from pathlib import Path

from graphmill import config as configuration
from train import job
from train.run import trainer  # noqa: F401 (before the limit: its imports take memory too)


def allocated_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def main() -> None:
    config = configuration.load(sys.argv[1])
    limit = allocated_bytes() + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sys.stdout.write(json.dumps(job.train(config)))


if __name__ == "__main__":
    main()
