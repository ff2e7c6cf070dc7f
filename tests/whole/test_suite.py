"""The suite itself."""

import pytest


def test_pytest_xdist_sees_the_groups(request: pytest.FixtureRequest) -> None:
    """A file stays in one process; with pytest 9.2, pytest-xdist 3.8 distributes tests one by one."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("all tests run in this process")
    assert request.node.nodeid.endswith(f"@{request.node.location[0]}")
