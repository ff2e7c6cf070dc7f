"""Fixtures of remap's tests."""

from pathlib import Path

import numpy as np
import pytest

from tests.remap import graph
from tests.remap.saved import Tree


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
