"""Output of all commands: log lines, errors and tables, for people or (`--json-logs`) for programs.

Log lines and errors go to standard error. Results, such as the table at the end of a command, go to standard
output.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from graphmill.storage.redaction import redacted

FIELDS = "fields"  # fields of a log record beside its message: `log.info(..., extra={FIELDS: {...}})`

_DEFECT = "this is a defect, not something in your input; --debug shows the whole traceback"
_LEVELS = {logging.WARNING: "yellow", logging.ERROR: "bold red"}

log = logging.getLogger("graphmill")


@dataclass
class TerminalOptions:
    """Options of the command for its output."""

    quiet: bool = False
    json_lines: bool = False
    debug: bool = False


options = TerminalOptions()


_shared: list[Console] = []


@contextmanager
def shared(console: Console) -> Iterator[None]:
    """Write log lines to the console that draws bars during the block: two consoles would mix their lines."""
    _shared.append(console)
    try:
        yield
    finally:
        _shared.clear()


def _errors_console() -> Console:
    return _shared[0] if _shared else Console(stderr=True)


class _Lines(logging.Handler):
    """Log records as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if options.json_lines:
            fields = getattr(record, FIELDS, {})
            sys.stderr.write(_json_line(record.levelname.lower(), record.getMessage(), fields))
            return
        message = redacted(record.getMessage())
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        console = _errors_console()
        if not console.is_terminal:
            sys.stderr.write(f"{clock} {record.levelname[0]} {message}\n")
            return
        line = Text.assemble((f"{clock} ", "dim"), (message, _LEVELS.get(record.levelno, "")))
        console.print(line, soft_wrap=True)


def start_logging() -> None:
    """Send GraphMill's log lines to standard error, as the options say."""
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]  # rich would write nothing
    log.handlers = [_Lines()]
    log.setLevel(logging.WARNING if options.quiet else logging.INFO)
    log.propagate = False


def show_error(error: BaseException | str, *, defect: bool = False) -> None:
    """Show one readable block, and the traceback with `--debug`."""
    message = str(error) or type(error).__name__
    fields, trace = {}, ""
    if isinstance(error, BaseException):
        fields["type"] = type(error).__name__
        if defect:
            frames = traceback.extract_tb(error.__traceback__)
            place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
            message = f"{fields['type']}: {message}{place}\n{_DEFECT}"
        if options.debug:
            fields["traceback"] = trace = redacted("".join(traceback.format_exception(error)))
    if options.json_lines:
        sys.stderr.write(_json_line("error", message, fields))
        return
    sys.stderr.write(trace)
    first, *rest = redacted(message).splitlines() or [""]
    lines = [first, *(f"       {line}" for line in rest)]
    _errors_console().print(Text.assemble(("error: ", "bold red"), "\n".join(lines)), soft_wrap=True)


def show_table(title: str, rows: Mapping[str, str]) -> None:
    """Show a command's result as a table; with `--json-logs` one line of JSON, with `--quiet` nothing."""
    table = Table("what", title=title)
    table.add_column("value", justify="right")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    _show_result(title, rows, table)


def say(line: str) -> None:
    """Show a line of a command's result."""
    _show_result(line, {}, Text(line))


def _show_result(message: str, fields: Mapping[str, str], shown: RenderableType) -> None:
    if options.quiet:
        return
    if options.json_lines:
        sys.stderr.write(_json_line("info", message, fields))
    else:
        Console().print(shown, soft_wrap=isinstance(shown, Text))


def _json_line(level: str, message: str, fields: Mapping[str, Any]) -> str:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "message": message}
    return redacted(json.dumps(line | dict(fields), default=str)) + "\n"
