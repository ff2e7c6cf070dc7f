"""Commands in the process of the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import distributed
import pytest

from graphmill import cluster
from graphmill.cli import exit_codes, session

Command = Callable[..., int]


def on_cluster(
    client: distributed.Client, monkeypatch: pytest.MonkeyPatch, command: click.Command
) -> Command:
    """The command without a report, here and on this cluster; it takes its words, returns its exit code."""

    @contextmanager
    def connect(*_: object, **__: object) -> Iterator[distributed.Client]:
        yield client

    monkeypatch.setattr(cluster, "connect", connect)
    monkeypatch.setattr(session, "write_report", lambda *_: None)  # it takes as long as two stages
    return lambda *words: exit_codes.exit_code(
        lambda: command.main([str(each) for each in words], standalone_mode=False)
    )
