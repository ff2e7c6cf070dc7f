"""The releases of PyTorch-BigGraph that the tests work with."""

from pathlib import Path

import pytest

from tests.interop import pbg
from tests.interop.environments import NotInstallableError


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of an environment with the release on PyPI."""
    return _installed(pbg.RELEASES[0])


@pytest.fixture(scope="session", params=pbg.RELEASES)
def any_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment with this release, or with a checkout of the repository."""
    return _installed(request.param)


def _installed(release: str) -> Path:
    try:
        return pbg.install(release)
    except NotInstallableError as error:
        pytest.skip(f"no PyTorch-BigGraph {release}: {error}")
