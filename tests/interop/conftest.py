"""The releases of PyTorch-BigGraph that the tests work with."""

from pathlib import Path

import pytest

from tests.interop import pbg


@pytest.fixture(scope="session", params=pbg.RELEASES)
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment with PBG."""
    try:
        return pbg.install(request.param)
    except pbg.NotInstallableError as error:
        pytest.skip(f"no PyTorch-BigGraph {request.param}: {error}")
