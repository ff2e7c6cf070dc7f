"""Runs in another project's environment: programs in forks of this process, which has imported its modules.

    python server.py MODULE ...

A line on stdin is a JSON list: a folder, a file for the output, and the words after `python`, which begin
with `-m MODULE` or with a script. The answer is the exit code.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import sys
import traceback
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

spawning = multiprocessing.get_context


def forking(method: str | None = None) -> BaseContext:
    """Return the context of a program's own processes: forks, which import nothing, not spawned ones."""
    return spawning("fork" if method == "spawn" else method)


def run(folder: str, output: str, words: list[str]) -> int:
    """Run a program in a fork; its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code: Any = 1
    try:
        os.chdir(folder)
        for descriptor in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        is_module = words[0] == "-m"
        sys.argv = words[1:] if is_module else words
        sys.path.insert(0, folder)
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            script = str(Path(folder, sys.argv[0]))  # processes that it spawns look for it elsewhere
            runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    multiprocessing.get_context = forking
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)  # noqa: T201
