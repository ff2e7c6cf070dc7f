"""Errors that only say that memory, address space or threads do not suffice, and what helps then."""

import errno
import re
import resource

from graphmill.display.readable import size

_OF_LIBRARIES = re.compile(
    r"failed to map segment|can(no|')t allocate memory|can't start new thread|out of memory", re.IGNORECASE
)


def remedy(error: BaseException) -> str | None:
    """Return what helps against a lack of memory; None for other errors."""
    by_text = isinstance(error, ImportError | RuntimeError) and _OF_LIBRARIES.search(str(error))
    if not (isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM or by_text):
        return None
    return _address_space() or (
        "use a machine with more memory, fewer workers (--master local[1]), or smaller pieces (batch_size, "
        "etl.chunk_rows, --task-memory)"
    )


def of_killed_workers() -> str:
    """Say why a worker may have died without an error message."""
    limit = _address_space()
    return "a worker that exceeds its memory limit is killed: see cluster.worker_memory" + (
        limit and f"; {limit}"
    )


def _address_space() -> str:
    """Say that this process has a limit of its address space, and how to raise it; "" without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"`ulimit -v` leaves {size(limit)} of addresses to each process; set it to unlimited"
