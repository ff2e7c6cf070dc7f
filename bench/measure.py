"""The cost of a command: seconds and memory of its process tree, bytes on the disk."""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil  # type: ignore[import-untyped]

INTERVAL_S = 0.1
DISK_INTERVAL_S = 1.0
KILL_S = 10


@dataclass(frozen=True)
class Measured:
    """One run of a command.

    `main_peak_bytes` is the peak resident memory of the process itself, `worker_peak_bytes` the largest of
    its descendants (0 without any), `total_peak_bytes` the largest sum at one moment, which counts shared
    pages once per process.
    """

    wall_s: float
    cpu_s: float
    main_peak_bytes: int
    worker_peak_bytes: int
    total_peak_bytes: int
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    disk_peak_bytes: int = 0

    def figures(self) -> dict[str, float]:
        """Figures of a row in a report."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s, "total_peak_bytes": self.total_peak_bytes}


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folders: Sequence[Path] = (),
) -> Measured:
    """Run a command to its end, and end all processes that it started.

    `disk_peak_bytes` is the most that `folders` take together at one moment.

    Raises:
        click.ClickException: the command failed.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        start = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=os.environ | (environment or {}),
            stdout=stdout,
            stderr=stderr,
        )
        tree = _Tree(process.pid, folders)
        try:
            # Not Popen.wait: only wait4 returns the usage of the process and its children.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall_s = time.monotonic() - start
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
            tree.finish()
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    if process.returncode:
        typed = " ".join(str(word) for word in command)
        raise click.ClickException(
            f"{typed}\nended with {process.returncode}:\n{(texts[1] or texts[0])[-3000:]}"
        )
    return Measured(
        wall_s=wall_s,
        # The first misses workers that nobody waited for, the second misses the last moments.
        cpu_s=max(usage.ru_utime + usage.ru_stime, tree.cpu_s()),
        # Not usage.ru_maxrss, which starts at the memory of this process.
        main_peak_bytes=tree.peak_bytes(process.pid),
        worker_peak_bytes=max((tree.peak_bytes(pid) for pid in tree.workers()), default=0),
        total_peak_bytes=max(tree.total_peak_bytes, *map(tree.peak_bytes, [process.pid, *tree.workers()])),
        stdout=texts[0],
        stderr=texts[1],
        disk_peak_bytes=tree.disk_peak_bytes,
    )


def _file_bytes(folders: Sequence[Path]) -> int:
    """Bytes that the files of folders take on the disk now; others may remove files meanwhile."""
    listed = subprocess.run(["du", "-scB1", *folders], capture_output=True, text=True, check=False).stdout
    return int(listed.splitlines()[-1].split()[0])


class _Tree:
    """Samples a process and its descendants in a thread, until `finish`."""

    def __init__(self, pid: int, folders: Sequence[Path]) -> None:
        self.pid = pid
        self.total_peak_bytes = self.disk_peak_bytes = 0
        self._folders = folders
        self._disk_due_s = 0.0
        self._peak: dict[int, int] = {}
        self._cpu: dict[int, float] = {}
        self._seen: set[psutil.Process] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop sampling, and kill the processes that are left."""
        self._done.set()
        self._thread.join()
        left = [each for each in self._seen if each.pid != self.pid]
        for process in left:
            with suppress(psutil.Error):  # psutil detects a reused process id
                process.kill()
        psutil.wait_procs(left, timeout=KILL_S)

    def workers(self) -> list[int]:
        """All observed descendants."""
        return [pid for pid in self._peak if pid != self.pid]

    def peak_bytes(self, pid: int) -> int:
        """The largest observed memory of a process."""
        return self._peak.get(pid, 0)

    def cpu_s(self) -> float:
        """CPU seconds of all processes, each when it was last observed."""
        return sum(self._cpu.values())

    def _watch(self) -> None:
        while True:
            with suppress(psutil.Error):
                root = psutil.Process(self.pid)
                # Keep processes whose parent has ended: they are descendants no more.
                self._seen |= {root, *root.children(recursive=True)}
            self.total_peak_bytes = max(self.total_peak_bytes, sum(map(self._sample, self._seen)))
            if self._folders and time.monotonic() >= self._disk_due_s:
                self.disk_peak_bytes = max(self.disk_peak_bytes, _file_bytes(self._folders))
                self._disk_due_s = time.monotonic() + DISK_INTERVAL_S
            if self._done.wait(INTERVAL_S):
                return

    def _sample(self, process: psutil.Process) -> int:
        """Record one process; its resident bytes now."""
        try:
            with process.oneshot():
                resident, cpu = process.memory_info().rss, process.cpu_times()
            peak = _high_water_bytes(process.pid)
        except (psutil.Error, OSError):
            return 0
        self._cpu[process.pid] = cpu.user + cpu.system
        self._peak[process.pid] = max(self.peak_bytes(process.pid), resident, peak)
        return int(resident)


def _high_water_bytes(pid: int) -> int:
    """The kernel's record of the peak, which includes peaks between samples (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else 0
