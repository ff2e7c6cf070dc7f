"""The device: its copy rate and matrix rate, the floor that follows from them, and timing."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from bench.report import Report
from bench.setting import Setting
from graphmill.errors import ConfigError

REPEATS = 3


@dataclass(frozen=True)
class Machine:
    """A device and its peak rates."""

    device: torch.device
    is_trial: bool  # a small size on the CPU
    copy_rate: float  # bytes per second, read and written
    half_rate: float  # operations per second of bfloat16 products
    float_rate: float  # of float32 products, in full

    @property
    def name(self) -> str:
        return name(self.is_trial)

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


def name(is_trial: bool) -> str:
    """Name the first GPU, or a trial on the CPU.

    Raises:
        ConfigError: there is no GPU, and this is no trial.
    """
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    if is_trial:
        return "no GPU"
    raise ConfigError(
        "bench gpu: no GPU is seen here; --rows 2000 tries the commands on the CPU, at that size"
    )


def find(setting: Setting) -> Machine:
    """Find the first GPU, or with a number of rows use the CPU, and measure its rates.

    Raises:
        ConfigError: there is no GPU.
    """
    name(setting.num_rows is not None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = setting.num_rows is not None
    unknown = Machine(device, small, 0.0, 0.0, 0.0)
    return Machine(
        device,
        small,
        _copy_rate(unknown),
        _product_rate(unknown, torch.bfloat16),
        _product_rate(unknown, torch.float32),
    )


def _copy_rate(machine: Machine) -> float:
    size = 1 << (24 if machine.is_trial else 32)
    source = torch.randint(127, (size,), dtype=torch.int8, device=machine.device)
    target = torch.empty_like(source)
    return 2 * size / machine.median_s(lambda _: target.copy_(source))


def _product_rate(machine: Machine, dtype: torch.dtype) -> float:
    torch.backends.cuda.matmul.allow_tf32 = False
    size = 256 if machine.is_trial else 8192
    left, right = (torch.randn(size, size, device=machine.device).to(dtype) for _ in range(2))
    return 10 * 2 * size**3 / machine.median_s(lambda _: [left @ right for _ in range(10)])
