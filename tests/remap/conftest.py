"""Fixtures of remap's tests."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.remap import graph
from tests.remap.saved import Cli, Refused, Tree


@pytest.fixture
def tree(tmp_path: Path, rng: np.random.Generator) -> Tree:
    """An empty tree to put saved files into."""
    return Tree(tmp_path / "saved", rng)


@pytest.fixture
def output(tmp_path: Path) -> str:
    """A finished run to remap."""
    output = str(tmp_path / "run")
    graph.write_entities(output)
    graph.write_checkpoint(output)
    return output


@pytest.fixture
def refused(cli: Cli, capsys: pytest.CaptureFixture[str]) -> Refused:
    """`refused(message, *flags)`: the command ends with 2, or another code, and its error matches."""

    def check(message: str, *flags: Any, code: int = 2) -> None:
        assert cli(*flags) == code
        told = " ".join(capsys.readouterr().err.split())
        assert re.search(message, told), told

    return check
