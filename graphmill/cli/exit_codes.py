"""The end of a command: exit codes, signals, one readable error.

Exit codes: 0 success, 1 failure (storage, cluster, a defect), 2 bad input (options, configuration, files),
3 vectors that moved farther than allowed, 69 no cluster, 75 another run has the output, 130 Ctrl-C,
143 SIGTERM.
"""

import codecs
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click

from graphmill.display import terminal
from graphmill.errors import BadInputError, GraphMillError, ShortageError
from graphmill.machine import shortage

CONTEXT = {"help_option_names": ["-h", "--help"]}  # of every command: those of a group have it from there

_UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are no text in the locale's encoding


def main(command: click.Command) -> NoReturn:
    """Run a command and end the process with its exit code."""
    terminal.start_logging()
    # An exception lets every `with` block clean up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf"):
            stream.reconfigure(encoding="utf-8")
    code = exit_code(lambda: command.main(decoded(sys.argv[1:]), standalone_mode=False))
    gc.freeze()  # Python would search all imported modules for garbage before it exits: half a second
    sys.exit(code)


def decoded(words: Iterable[str]) -> list[str]:
    """Return the words of a command line as UTF-8, which ids are in, whatever encoding the locale has."""
    try:
        return [os.fsencode(word).decode() if _UNDECODED.search(word) else word for word in words]
    except UnicodeDecodeError as error:
        raise BadInputError(f"an argument: expected UTF-8, found {error.object!r}") from error


def exit_code(action: Callable[[], Any]) -> int:
    """Run `action` and return its exit code; show an error as one block."""
    try:
        action()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # click takes an EOFError for Ctrl-D at a prompt
            terminal.show_error(error.__cause__, defect=True)
            return 1
        terminal.show_error(
            "; ".join(["stopped by Ctrl-C", *getattr(error.__cause__ or error, "__notes__", ())])
        )
        return 130
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        terminal.show_error(str(error.code))  # the message of a script's sys.exit
        return 1
    except Exception as error:
        if what_helps := shortage.remedy(error):
            reason = f"too little memory: {type(error).__name__}: {error}; {what_helps}"
            terminal.show_error(ShortageError(reason).with_traceback(error.__traceback__))
            return ShortageError.exit_code
        terminal.show_error(error, defect=not isinstance(error, GraphMillError | OSError))
        return error.exit_code if isinstance(error, GraphMillError) else 1
    return 0
