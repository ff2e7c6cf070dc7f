"""Wait for what another process or thread does."""

import glob
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.002)


def found_in(folder: Path, pattern: str) -> list[Path]:
    """Paths in a folder that others change meanwhile; `Path.glob` raises where a folder below it vanishes."""
    return [Path(path) for path in glob.glob(f"{folder}/{pattern}", recursive=True, include_hidden=True)]  # noqa: PTH207
