"""The one look of all commands: log lines, errors and tables, for people or (`--json-logs`) for programs.

Everything that tells of the work goes to standard error; results, such as the table at a command's end, go to
standard output.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphmill.storage.redaction import redacted

FIELDS = "fields"  # what a log record tells beside its message: `log.info(..., extra={FIELDS: {...}})`

_LEVELS = {logging.WARNING: "yellow", logging.ERROR: "bold red"}

log = logging.getLogger("graphmill")


@dataclass
class Options:
    """Options of the command for its output."""

    quiet: bool = False
    json_lines: bool = False
    debug: bool = False


options = Options()


def errors_console() -> Console:
    """Standard error; where bars are drawn, everything else must go through the same console."""
    return _shared[0] if _shared else Console(stderr=True)


_shared: list[Console] = []


def share(console: Console | None) -> None:
    """Let log lines go through the console that draws the bars, or (None) no more."""
    _shared[:] = [console] if console is not None else []


class _Lines(logging.Handler):
    """Log records as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if options.json_lines:
            sys.stderr.write(_json_line(record.levelname.lower(), record.getMessage(), _fields(record)))
            return
        message = redacted(record.getMessage())
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        console = errors_console()
        if not console.is_terminal:
            sys.stderr.write(f"{clock} {record.levelname[0]} {message}\n")
            return
        line = Text.assemble((f"{clock} ", "dim"), (message, _LEVELS.get(record.levelno, "")))
        console.print(line, soft_wrap=True)


def start_logging() -> None:
    """Send GraphMill's log lines to standard error, in the chosen options."""
    log.handlers = [_Lines()]
    log.setLevel(logging.WARNING if options.quiet else logging.INFO)
    log.propagate = False


def show_error(error: BaseException | str, *, defect: bool = False) -> None:
    """One readable block; the traceback too with `--debug`."""
    message = error if isinstance(error, str) else str(error) or type(error).__name__
    if defect and not isinstance(error, str):
        message = f"{type(error).__name__}: {message}{_origin(error)}"
    if options.json_lines:
        kind = {} if isinstance(error, str) else {"type": type(error).__name__}
        trace = {"traceback": _trace(error)} if options.debug and not isinstance(error, str) else {}
        sys.stderr.write(_json_line("error", message, kind | trace))
        return
    if options.debug and not isinstance(error, str):
        sys.stderr.write(_trace(error))
    first, *rest = redacted(message).splitlines() or [""]
    lines = [first, *(f"       {line}" for line in rest)]
    console = errors_console()
    console.print(Text.assemble(("error: ", "bold red"), "\n".join(lines)), soft_wrap=True)


def show_table(title: str, rows: Mapping[str, str], columns: Sequence[str] = ("what", "value")) -> None:
    """A command's result: one row a figure; with `--json-logs` one line of JSON, with `--quiet` nothing."""
    if options.quiet:
        return
    if options.json_lines:
        sys.stderr.write(_json_line("info", title, dict(rows)))
        return
    table = Table(columns[0], title=title)
    table.add_column(columns[1], justify="right")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    Console().print(table)


def say(line: str) -> None:
    """A line of a command's result."""
    if options.quiet:
        return
    if options.json_lines:
        sys.stderr.write(_json_line("info", line, {}))
    else:
        Console().print(Text(line), soft_wrap=True)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, FIELDS, {}))


def _json_line(level: str, message: str, fields: Mapping[str, Any]) -> str:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "message": message}
    return redacted(json.dumps(line | dict(fields), default=str)) + "\n"


def _trace(error: BaseException) -> str:
    return redacted("".join(traceback.format_exception(error)))


def _origin(error: BaseException) -> str:
    """Where a defect showed itself."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{where}\nthis is a defect, not something in your input; --debug shows the whole traceback"
