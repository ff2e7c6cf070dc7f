"""Fixtures of the ETL's tests."""

from collections.abc import Iterator

import distributed
import pytest


@pytest.fixture(scope="session")
def near_client() -> Iterator[distributed.Client]:
    """A Dask cluster in this very process: quick to ask, and open to monkeypatching."""
    with distributed.Client(processes=False, threads_per_worker=1, dashboard_address=":0") as client:
        yield client
