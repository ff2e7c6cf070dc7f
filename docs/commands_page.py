"""A hook of mkdocs: the page of commands shows the help texts of the commands themselves.

`python docs/commands_page.py` prints them, and those of the stages' own doors.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

PAGE = "reference/commands.md"
COMMANDS = {"graphmill": "graphmill.cli.main", "dask-submit": "graphmill.cli.submit"}
DOORS = {f"python -m {stage}": f"{stage}.__main__" for stage in ("etl", "train", "remap")}
WIDTH = 80


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append the help texts to the page of commands; mkdocs calls this for every page."""
    if page.file.src_uri != PAGE:
        return markdown
    return "\n".join([markdown, *help_texts()])


def help_texts(commands: Mapping[str, str] = COMMANDS) -> Iterator[str]:
    """Yield a section for every command."""
    for name, module in commands.items():
        yield from _sections(import_module(module).command, name, None)


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings = command.context_settings | {"max_content_width": WIDTH, "terminal_width": WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner and not inner.hidden:
                yield from _sections(inner, each, context)


if __name__ == "__main__":
    click.echo("\n".join(help_texts(COMMANDS | DOORS)))
