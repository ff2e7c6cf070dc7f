"""Entries of the console scripts: print the first line before the imports, which take seconds."""

import os
import sys
from collections.abc import Sequence

from graphmill import __version__

_RUNS = ("pipeline", "etl", "train", "evaluate", "predict", "export", "features", "fold-in", "tune", "remap")
_WITHOUT_LINE = {"-h", "--help", "--version", "--quiet", "--json-logs", "--json", "--dry-run"}
_INTERRUPTED = 130


def graphmill() -> None:
    """Run the command `graphmill`."""
    _say(first_line(next(iter(sys.argv[1:]), ""), sys.argv))
    try:
        from graphmill.cli.main import main
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    main()


def dask_submit() -> None:
    """Run the command `dask-submit`."""
    script = next((word for word in sys.argv[1:] if word.endswith(".py")), "")
    _say(first_line(script.removesuffix(".py"), sys.argv))
    try:
        from graphmill.cli.submit import main
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    main()


def first_line(name: str, arguments: Sequence[str]) -> str:
    """Return the first line of the command `name`; "" if it runs no stage, or its output is for programs."""
    is_completion = any(variable.endswith("_COMPLETE") for variable in os.environ)
    if name not in _RUNS or not _WITHOUT_LINE.isdisjoint(arguments) or is_completion:
        return ""
    conf = os.environ.get("GRAPHMILL_CONF", "")
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        option, _, value = word.partition("=")
        if option == "--conf":
            conf = value or following
    return f"graphmill {__version__}: {name}" + (f", configuration {conf}" if conf else "")


def _say(line: str) -> None:
    if line:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
