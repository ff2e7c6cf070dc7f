"""Help texts."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from docs.commands_page import COMMANDS, DOORS, help_texts
from graphmill.cli import main, train


@pytest.mark.parametrize("group", [main.command, train.command])
def test_no_description_of_a_command_is_cut(group: click.Group) -> None:
    shown = CliRunner().invoke(group, ["--help"], terminal_width=80).output.partition("Commands:\n")[2]
    assert len(shown.splitlines()) >= len(group.commands)
    assert [line for line in shown.splitlines() if not line.endswith(".") or line.endswith("...")] == []


def test_help_of_all_commands_changes_on_purpose_only() -> None:
    """The file is a text to compare with: `make reference` writes it anew."""
    shown = "\n".join([*help_texts(COMMANDS | DOORS), ""])
    assert shown == Path(__file__).with_name("help.txt").read_text()
