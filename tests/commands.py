"""Commands in the process of the tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import distributed
import pytest

from graphmill import cluster
from graphmill.cli import exit_codes

Command = Callable[..., int]


def on_cluster(
    client: distributed.Client, monkeypatch: pytest.MonkeyPatch, command: click.Command
) -> Command:
    """The command, in this process and on this cluster; it takes its words and returns its exit code."""

    @contextmanager
    def connect(*_: object, **__: object) -> Iterator[distributed.Client]:
        yield client

    monkeypatch.setattr(cluster, "connect", connect)
    return lambda *words: exit_codes.exit_code(
        lambda: command.main([str(each) for each in words], standalone_mode=False)
    )
