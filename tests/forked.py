"""Commands in processes of their own that import nothing: forks of a process that has imported all.

The fixture `forked` is a `Forks`; `python -m tests.forked MODULE ...` is the process that forks, and imports
the modules first. The Dask workers of a fork are threads of it. A fork may die like a machine without power,
at one of its renamings. All forks end with the suite, however it ends: its end of a pipe is closed then.
"""

import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import distributed
import psutil  # type: ignore[import-untyped]

from graphmill import cluster, storage
from graphmill.cli import session
from graphmill.cluster.settings import CORES_VARIABLE
from graphmill.storage import fs
from tests import REPOSITORY

# What commands import when they need it.
OF_COMMANDS = (
    "torch.fx.experimental.symbolic_shapes",  # what torch itself imports for the first gradient
    "openTSNE",
    "graphmill.cli.main",
    "graphmill.cli.submit",
    "graphmill.report.page",
    "train.run.trainer",
    "train.tables.folding",
    "graphmill.ask.evaluate.evaluate",
    "etl.job",
    "remap.job",
    "distributed.http.scheduler.prometheus",
    "distributed.http.worker.prometheus",
)


cluster_connect = cluster.connect


class Kill(NamedTuple):
    """An end at a renaming: of those to a path whose end fits the pattern, that of this number, from 0 on."""

    number: int
    pattern: str = "*"
    is_after: bool = False
    """Whether the file has its new name when the process ends."""


class Ended(NamedTuple):
    """Renamings and output of a process that has ended."""

    renamings: int
    stdout: str
    stderr: str


class Fork:
    """A running process, the first of a process group of its own."""

    def __init__(self, forks: "Forks", pid: int, folder: Path) -> None:
        self.pid, self._forks, self._folder = pid, forks, folder

    def wait(self, code: int = 0) -> Ended:
        """Wait until the process has ended, with this exit code; to be called once."""
        found = self._forks.ask(["wait", self.pid])
        output = [self.read(each) for each in OUTPUTS]
        assert found == code, f"expected exit code {code}, found {found}\n{''.join(output)}"
        return Ended(self.written("renamings").stat().st_size, *output)

    def written(self, name: str) -> Path:
        return self._folder / name

    def read(self, name: str) -> str:
        return self.written(name).read_text()

    def is_running(self) -> bool:
        return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        os.killpg(self.pid, number)


OUTPUTS = ("stdout", "stderr")
ENTRIES = {
    "graphmill": "graphmill.cli.entry:graphmill",
    "dask-submit": "graphmill.cli.entry:dask_submit",
    "python": "tests.forked:python",
}


class Forks:
    """Starts processes: forks of one, of this Python, that has imported the modules."""

    def __init__(
        self, python: str | Path = sys.executable, modules: Sequence[str] = OF_COMMANDS, **variables: str
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = count()
        self._variables = variables
        command = [str(python), "-m", "tests.forked", *modules]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | variables, **pipes)

    def close(self) -> None:
        """End the process that forks."""
        self._process.communicate()
        self._folder.cleanup()

    def ask(self, question: list[Any]) -> int:
        """Have the process that forks start a process, or wait for one; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(
        self,
        *words: object,
        kill: Kill | None = None,
        cwd: Path | None = None,
        has_report: bool = False,
        **variables: str,
    ) -> Fork:
        """Start a command.

        Args:
            words: `graphmill`, `dask-submit`, `python` or `module:function`, with their arguments.
            kill: When the process is to die.
            cwd: Working directory; default this process's.
            has_report: Write report.html too, which takes as long as two stages.
            variables: Added to the environment, which is this process's.
        """
        folder = Path(self._folder.name, str(next(self._numbers)))
        folder.mkdir()
        arguments = [str(each) for each in words]
        where = [str(folder), str(cwd or Path.cwd()), {**os.environ, **self._variables, **variables}]
        return Fork(self, self.ask(["start", arguments, kill, has_report, *where]), folder)

    def __call__(self, *words: object, code: int = 0, kill: Kill | None = None, **options: Any) -> Ended:
        """Run a command to its end, which has this exit code, or is to be killed; see `start`."""
        return self.start(*words, kill=kill, **options).wait(-signal.SIGKILL if kill else code)


def kill_at(kill: Kill, renamings: Path) -> None:
    """Have this process count its renamings in a file, and end at one of them."""
    really_move, lock, numbers = fs.move, threading.Lock(), count()

    def move(source: str, target: str) -> None:
        with lock, renamings.open("ab", buffering=0) as stream:
            is_it = fnmatch(target, f"*/{kill.pattern}") and next(numbers) == kill.number
            if is_it and not kill.is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            stream.write(b".")
        really_move(source, target)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)

    storage.move = fs.move = move


def die_before(change: int) -> None:
    """Have this process end right before the change of a folder of that number: a renaming or a deletion."""
    numbers = count()

    def counted(really_change: Callable[..., Any]) -> Callable[..., Any]:
        def change_folder(*args: str) -> Any:
            if next(numbers) == change:
                os.kill(os.getpid(), signal.SIGKILL)
            return really_change(*args)

        return change_folder

    for name in ("move", "move_new", "delete"):
        for module in (storage, fs):
            if hasattr(module, name):
                setattr(module, name, counted(getattr(module, name)))


def end_with(pipe: int) -> None:
    """End this process, and what it has started, when nobody is left that writes to a pipe: the suite."""
    its_end = select.poll()
    its_end.register(pipe, 0)
    its_end.poll()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os.kill(0, signal.SIGKILL)


def start(
    words: list[str],
    kill: list[Any] | None,
    has_report: bool,
    folder: str,
    cwd: str,
    environment: dict[str, str],
) -> int:
    """Fork; the id of the new process."""
    for name in (*OUTPUTS, "renamings"):
        Path(folder, name).touch()
    if child := os.fork():
        return child
    code: Any = 1
    try:
        os.setsid()
        threading.Thread(target=end_with, args=(os.dup(0),), daemon=True).start()
        for descriptor, path in enumerate(("/dev/null", f"{folder}/stdout", f"{folder}/stderr")):
            os.dup2(os.open(path, os.O_RDWR), descriptor)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR may be another
        if kill:
            os.environ.setdefault(CORES_VARIABLE, "1")  # one worker, so that renamings have an order
        kill_at(Kill(*kill) if kill else Kill(-1), Path(folder, "renamings"))
        cluster.connect = connect
        if not has_report:
            session.write_report = lambda *_: None
        sys.argv = words
        module, _, function = ENTRIES.get(words[0], words[0]).partition(":")
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else bool(code))


def python() -> None:
    """Run `python -c TEXT ...`, `python -m MODULE ...` or `python SCRIPT ...`."""
    sys.path.insert(0, "")
    _, *sys.argv = sys.argv
    match sys.argv:
        case ["-c", text, *_]:
            del sys.argv[1]
            exec(text, {"__name__": "__main__"})
        case ["-m", module, *_]:
            del sys.argv[0]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *_]:  # in full: processes that it spawns look for it elsewhere
            runpy.run_path(str(Path(script).resolve()), run_name="__main__")


@contextmanager
def connect(master: str | None, *others: Any, **_: Any) -> Iterator[distributed.Client]:
    """The cluster of the product, but threads of this process in place of processes of this machine."""
    is_here = master is None or master.startswith("local")
    with cluster_connect("local" if is_here else master, *others, is_small=is_here) as client:
        yield client


def main() -> None:
    """Answer the questions that stdin brings."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the suite is in the background
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        action, *rest = json.loads(line)
        answer = start(*rest) if action == "start" else os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
        print(answer, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
