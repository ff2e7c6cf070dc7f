"""A module whose import takes long, imported beside the command, and asked once for a result.

Where workers are forked from a server, a process of its own does it, whenever a core has nothing else to
do; elsewhere a thread, and the command itself.
"""

import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from graphmill.display import terminal
from graphmill.machine import forkserver

_LEAST_URGENT = 19


class Aside:
    """The module; made early, so that it is there when it is asked."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._pipe: Connection | None = None
        self._ask: Callable[[], Any] = lambda: None
        if forkserver.is_started():
            context = multiprocessing.get_context("forkserver")
            self._pipe, theirs = context.Pipe()
            # A daemon: it ends with the command, which it notices by its end of the pipe.
            context.Process(target=_serve, args=(module, theirs, terminal.look), daemon=True).start()
            theirs.close()
        else:
            threading.Thread(target=_imported, args=(module,), daemon=True).start()

    def ask(self, function: str, *arguments: Any) -> None:
        """Begin with `function(*arguments)` of the module."""
        if self._pipe is None:
            self._ask = lambda: getattr(importlib.import_module(self._module), function)(*arguments)
        else:
            with suppress(OSError):  # it has died, as answer() will tell
                self._pipe.send((function, arguments, dict(os.environ)))

    def answer(self) -> Any:
        """What came of it, as soon as it is there.

        Raises:
            Exception: what the function raised.
        """
        if self._pipe is None:
            return self._ask()
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result


def _serve(module: str, pipe: Connection, look: terminal.Look) -> None:
    os.nice(_LEAST_URGENT)
    vars(terminal.look).update(vars(look))
    terminal.start_logging()
    _imported(module)
    with suppress(EOFError):  # the command has ended
        function, arguments, environment = pipe.recv()
        os.environ.update(environment)
        try:
            pipe.send((getattr(importlib.import_module(module), function)(*arguments), None))
        except Exception as error:
            pipe.send((None, error))


def _imported(module: str) -> None:
    with suppress(Exception):  # who asks is told what is wrong
        importlib.import_module(module)
