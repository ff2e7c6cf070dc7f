"""Messages that the code under test has logged."""

import pytest


def messages_of(caplog: pytest.LogCaptureFixture, level: str | None = None) -> list[str]:
    """Messages of GraphMill's log: on a slow machine Dask and asyncio warn of slow loops at any time."""
    records = [record for record in caplog.records if record.name.split(".")[0] == "graphmill"]
    return [record.getMessage() for record in records if level in (None, record.levelname)]
