"""Commands in the process of the tests."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import distributed
import pytest

from graphmill import cluster
from graphmill.cli import exit_codes, main, session
from graphmill.cli.options import CONF_VARIABLE, MASTER_VARIABLE
from graphmill.cli.submit import command as dask_submit

Command = Callable[..., int]


def code_of(command: click.Command, *words: object) -> int:
    """The exit code of a command."""
    return exit_codes.exit_code(lambda: command.main(list(map(str, words)), standalone_mode=False))


def run_command(*words: object) -> None:
    """`graphmill WORDS` in this process; its errors are raised."""
    main.command.main([str(word) for word in words], standalone_mode=False)


def on_cluster(
    client: distributed.Client, monkeypatch: pytest.MonkeyPatch, command: click.Command
) -> Command:
    """The command without a report, here and on this cluster; it takes its words, returns its exit code."""

    @contextmanager
    def connect(*_: object, **__: object) -> Iterator[distributed.Client]:
        yield client

    monkeypatch.setattr(cluster, "connect", connect)
    monkeypatch.setattr(session, "write_report", lambda *_: None)  # it takes as long as two stages
    return lambda *words: code_of(command, *words)


class Said(NamedTuple):
    """The exit code of a command, and what it has written."""

    code: int
    out: str
    err: str


Submit = Callable[..., Said]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    """`dask-submit ARGS` in `tmp_path`; a test that needs a cluster uses `graphmill_command` too."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("argv", ["dask-submit"]), ("path", [*sys.path])):
        monkeypatch.setattr(sys, name, value)

    def run(*words: object) -> Said:
        for variable, default in ((MASTER_VARIABLE, "local[1]"), (CONF_VARIABLE, "")):  # it sets them
            monkeypatch.setenv(variable, os.environ.get(variable, default))
        capsys.readouterr()
        return Said(code_of(dask_submit, *words), *capsys.readouterr())

    return run
