"""The GPU of a process, and copies to it."""

from types import ModuleType

import torch
from torch import Tensor

from graphmill.errors import ConfigError
from graphmill.gpu import reference


def device_of(num_gpus: int) -> torch.device:
    """The CPU, or with num_gpus the first GPU that this process sees; without one, a ConfigError."""
    if not num_gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"num_gpus: {num_gpus}, but this worker sees no GPU; set num_gpus: 0")
    return torch.device("cuda", 0)


def kernels_of(device: torch.device) -> ModuleType:
    """Choose the kernels on a GPU, and their reference elsewhere."""
    if device.type != "cuda":
        return reference
    from graphmill.gpu import kernels  # Triton comes with torch's builds for CUDA

    return kernels


def copied(host: Tensor, device: torch.device) -> Tensor:
    """Copy to the device, beside what the device computes for other threads."""
    if device.type != "cuda":
        return host
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        here = host.to(device)
    stream.synchronize()
    here.record_stream(torch.cuda.current_stream(device))  # which reads it
    return here
