"""Memory of this process."""

from pathlib import Path


def data_bytes() -> int:
    """Bytes that count against RLIMIT_DATA: what malloc and anonymous mappings have reserved."""
    return _status("VmData")


def anonymous_bytes() -> int:
    """Bytes in memory that are of no file."""
    return _status("RssAnon")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
