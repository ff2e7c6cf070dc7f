"""The device: its copy rate and matrix rate, the floor that follows from them, and timing."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from bench.report import Report
from bench.setting import Setting
from graphmill.errors import ConfigError

REPEATS = 3


@dataclass(frozen=True)
class Machine:
    """A device and its peak rates, which the first report measures."""

    device: torch.device
    name: str
    is_trial: bool  # a small size on the CPU

    @cached_property
    def copy_rate(self) -> float:
        """Bytes per second, read and written."""
        size = 1 << (24 if self.is_trial else 32)
        source = torch.randint(127, (size,), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / self.median_s(lambda _: target.copy_(source))

    @cached_property
    def half_rate(self) -> float:
        """Operations per second of bfloat16 products."""
        return self._product_rate(torch.bfloat16)

    @cached_property
    def float_rate(self) -> float:
        """Operations per second of float32 products, in full."""
        return self._product_rate(torch.float32)

    def _product_rate(self, dtype: torch.dtype) -> float:
        torch.backends.cuda.matmul.allow_tf32 = False
        size = 256 if self.is_trial else 8192
        left, right = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        return 10 * 2 * size**3 / self.median_s(lambda _: [left @ right for _ in range(10)])

    def training_floor(self, dimension: int, num_negatives: int, chunk: int) -> float:
        """Edges per second of one fused pass, limited by its bytes or its operations."""
        row_bytes = 24 * dimension * (1 + num_negatives / chunk)
        operations = 12 * (num_negatives + 1) * dimension
        return min(self.copy_rate / row_bytes, self.half_rate / operations)

    def add_rates(self, report: Report) -> None:
        """Add the rates of the device as the first rows of a report."""
        report.add(f"{self.name}: copy, read and written", GB_per_s=self.copy_rate / 1e9)
        report.add("bfloat16 product of random numbers", TFLOP_per_s=self.half_rate / 1e12)
        report.add("float32 product, exact", TFLOP_per_s=self.float_rate / 1e12)

    def median_s(self, work: Callable[[int], object], repeats: int = REPEATS) -> float:
        """Median seconds of `work`, which gets a new number per call; the first call does not count."""
        work(0)  # compiles
        return statistics.median(self.once_s(partial(work, number)) for number in range(1, repeats + 1))

    def once_s(self, work: Callable[[], object]) -> float:
        """Seconds of one call of `work`."""
        self.wait()
        start = time.monotonic()
        work()
        self.wait()
        return time.monotonic() - start

    def wait(self) -> None:
        """Wait for all work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_bytes(self) -> int:
        """Peak memory of the device since the start."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0


def find(setting: Setting) -> Machine:
    """Find the first GPU, or with a number of rows use the CPU.

    Raises:
        ConfigError: there is no GPU, and this is no trial.
    """
    is_trial = setting.num_rows is not None
    if torch.cuda.is_available():
        return Machine(torch.device("cuda"), torch.cuda.get_device_name(0), is_trial)
    if is_trial:
        return Machine(torch.device("cpu"), "no GPU", is_trial)
    raise ConfigError(
        "bench gpu: no GPU is seen here; --rows 2000 tries the commands on the CPU, at that size"
    )
