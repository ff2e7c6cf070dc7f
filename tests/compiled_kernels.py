"""Kernels compiled for a GPU that is not here, with what their machine code says of them.

`Compiler` is a driver of Triton. It compiles every kernel that is launched, for the very arguments of the
launch, and computes nothing.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from tests import REPOSITORY
from tests.processes import completed

BINARIES = Path(str(triton.__file__)).parent / "backends/nvidia/bin"
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # that a block can have, by architecture
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
_MATRIX = {"wgmma": "HGMMA", "tcgen05": "UTCHMMA", "mma.sync": "HMMA"}


class Loop(NamedTuple):
    """The instructions of a loop, by their names."""

    instructions: Counter[str]

    @property
    def size(self) -> int:
        return self.instructions.total()

    def of(self, *names: str) -> int:
        """Count the instructions whose names begin so."""
        return sum(number for name, number in self.instructions.items() if name.startswith(names))

    @property
    def spills(self) -> int:
        """Loads and stores of registers that did not fit."""
        return self.of("LDL", "STL")


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel."""

    name: str
    machine_code: bytes
    shared_bytes: int

    @cached_property
    def stack_bytes(self) -> int:
        """Bytes of a thread's stack, where registers go that do not fit."""
        found = re.search(r"STACK:(\d+)", self._dumped("--dump-resource-usage"))
        return int(found[1]) if found else 0

    @cached_property
    def code(self) -> list[tuple[int, str, str]]:
        """Address, name and operands of each instruction."""
        found = _INSTRUCTION.findall(self._dumped("--dump-sass"))
        return [(int(address, 16), name, operands) for address, name, operands in found]

    @cached_property
    def loops(self) -> list[Loop]:
        """The loops that hold no other loop, the longest first."""
        code = self.code
        place = {address: number for number, (address, *_) in enumerate(code)}
        spans: list[tuple[int, int]] = []
        for number, (address, name, rest) in enumerate(code):
            target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
            if target and int(target[1], 16) < address:
                spans.append((place[int(target[1], 16)], number + 1))
        inner = [
            (start, stop)
            for start, stop in spans
            if not any(
                start <= first and last <= stop for first, last in spans if (first, last) != (start, stop)
            )
        ]
        loops = [Loop(Counter(name for _, name, _ in code[start:stop])) for start, stop in inner]
        return sorted(loops, key=lambda loop: -loop.size)

    @property
    def loop(self) -> Loop:
        """The loop that multiplies, or the longest one."""
        multiplying = [loop for loop in self.loops if loop.of(*_MATRIX.values())]
        return next(iter(multiplying + self.loops), Loop(Counter()))

    @property
    def product(self) -> str:
        """The kind of instruction that computes products: `mixed` where they differ."""
        names = {name for _, name, _ in self.code}
        found = [
            kind
            for kind, instruction in _MATRIX.items()
            if any(name.startswith(instruction) for name in names)
        ]
        return "mixed" if len(found) > 1 else next(iter(found), "none")

    @property
    def matrix_instructions(self) -> set[str]:
        """Names of the instructions that multiply in the loop."""
        return {name for name in self.loop.instructions if name.startswith(tuple(_MATRIX.values()))}

    def _dumped(self, option: str) -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.machine_code)
            file.flush()
            command = [str(BINARIES / "cuobjdump"), option, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Compiler(DriverBase):  # type: ignore[misc]
    """A driver whose launches compute nothing.

    Attributes:
        launched: the kernels of all launches, in their order.
    """

    def __init__(self, architecture: int = 90) -> None:
        self.architecture = architecture
        self.launched: list[Kernel] = []
        self.utils = self  # Triton asks it for the device's properties, and to load kernels
        driver.set_active(self)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Make the function that launches a kernel."""

        def launch(x: int, y: int, z: int, stream: int, kernel: Kernel, *rest: Any) -> None:
            self.launched.append(kernel)

        return launch

    def load_binary(self, name: str, machine_code: bytes, shared_bytes: int, device: int) -> tuple[Any, ...]:
        """Load nothing: the handle of a kernel is its description."""
        kernel = Kernel(name.strip("_"), machine_code, shared_bytes)
        return None, kernel, 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES[self.architecture]}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture  # kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    @classmethod
    def is_active(cls) -> bool:
        return False


def compiled_by(module: str, *words: str) -> dict[str, list[list[str]]]:
    """Run a module that prints of its kernels, below a line `# CASE`, and return their words by case.

    In a process of its own: in this one Triton may be interpreting.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = completed(sys.executable, "-m", module, *words, env=environment, cwd=REPOSITORY)
    parts = run.stdout.removeprefix("# ").split("\n# ")
    return {case: [line.split() for line in lines] for case, *lines in map(str.splitlines, parts)}
