"""Help texts."""

import click
import pytest
from click.testing import CliRunner

import train.__main__
from graphmill.cli import main


@pytest.mark.parametrize("group", [main.command, train.__main__.command])
def test_no_description_of_a_command_is_cut(group: click.Group) -> None:
    shown = CliRunner().invoke(group, ["--help"], terminal_width=80).output.partition("Commands:\n")[2]
    assert len(shown.splitlines()) >= len(group.commands)
    assert [line for line in shown.splitlines() if not line.endswith(".") or line.endswith("...")] == []
