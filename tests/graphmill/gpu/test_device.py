"""The device of a process, and copies to it."""

import pytest
import torch

from graphmill.errors import ConfigError
from graphmill.gpu import reference
from graphmill.gpu.device import copied, device_of, kernels_of

CPU = torch.device("cpu")


def test_the_cpu_without_gpus() -> None:
    assert device_of(0) == CPU
    assert kernels_of(CPU) is reference
    host = torch.arange(5)
    assert copied(host, CPU) is host


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="num_gpus: 2, but this worker sees no GPU; set num_gpus: 0"):
        device_of(2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_a_copy_is_ready_for_what_comes_after_it() -> None:
    host = torch.randn(1 << 22)
    assert torch.equal(copied(host, device_of(1)).cpu(), host)
