"""The commands on a finished run, in this process, and a run to ask."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.commands import Command
from tests.graphmill.ask.predict.world import World, write_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run in `run`."""
    return write_world(tmp_path / "run", num_partitions=3)


def of_command(name: str) -> Callable[[Command], Command]:
    @pytest.fixture(name=name.replace("-", "_"))
    def command(graphmill_command: Command) -> Command:
        return partial(graphmill_command, name)

    return command


predict, export, features, fold_in = map(of_command, ("predict", "export", "features", "fold-in"))
