"""The suite; laid out as the code is, `whole` for what takes all of it."""

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("data")  # files that other systems have written: data/README.md

# Many processes share few cores: each has one thread, as Dask's workers have, and none spins while it waits.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Images of containers set it: hundreds of commands, and each run of pytest, would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Temporary files lie in memory, if it has room for them and lets programs among them run: etl of a small
# graph syncs a hundred files to the disk, and waits for that as long as it computes.
with suppress(FileNotFoundError):
    memory = os.statvfs("/dev/shm")
    if memory.f_bavail * memory.f_frsize > 6 << 30 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", "/dev/shm")
        tempfile.tempdir = None  # pytest has asked before
