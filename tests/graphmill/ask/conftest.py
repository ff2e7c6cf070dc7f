"""The commands on the finished run in `run`, in this process; they write to `out`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmill.gpu import device
from tests.commands import Command
from tests.graphmill.ask.predict.world import World, write_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run in `run`."""
    return write_world(tmp_path / "run", num_partitions=3)


def of_command(name: str) -> Callable[..., Command]:
    @pytest.fixture(name=name.replace("-", "_"))
    def command(graphmill_command: Command, tmp_path: Path) -> Command:
        def ask(*words: object, of: str = "run", to: str = "out") -> int:
            return graphmill_command(name, tmp_path / of, *words, "--to", tmp_path / to)

        return ask

    return command


predict, export, features, fold_in = map(of_command, ("predict", "export", "features", "fold-in"))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of GPUs that were asked for; without a GPU, the reference on the CPU stands for the kernels."""
    found: list[int] = []

    def device_of(num_gpus: int) -> torch.device:
        found.append(num_gpus)
        return torch.device("cuda" if num_gpus and torch.cuda.is_available() else "cpu")

    monkeypatch.setattr(device, "device_of", device_of)
    return found
