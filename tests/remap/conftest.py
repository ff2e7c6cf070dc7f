"""Fixtures of remap's tests."""

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from tests.remap.saved import Cli, Tree, cli_on


@pytest.fixture
def cli(near_client: Client, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`python -m remap ARGS` on the tests' cluster; its exit code."""
    return cli_on(near_client, monkeypatch)


@pytest.fixture
def tree(tmp_path: Path, rng: np.random.Generator) -> Tree:
    """An empty tree to put saved files into."""
    return Tree(tmp_path / "saved", rng)
