"""Fixtures of the formats' tests."""

from pathlib import Path

import pytest


@pytest.fixture(params=["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder."""
    return request.getfixturevalue("hdfs_uri") if request.param == "hdfs" else str(tmp_path)
