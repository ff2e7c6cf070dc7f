"""Wait for what another process or thread does."""

import glob
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], timeout_s: float = 300) -> None:
    """Ask again and again; less often after a while, as others need the processor meanwhile."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.002
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 0.02)


def found_in(folder: Path, pattern: str) -> list[Path]:
    """Paths in a folder that others change meanwhile; `Path.glob` raises where a folder below it vanishes."""
    return [Path(path) for path in glob.glob(f"{folder}/{pattern}", recursive=True, include_hidden=True)]  # noqa: PTH207
