"""The command line that all stages share: options, exit codes, and who connects to the cluster.

Exit codes: 0 success, 1 failure (storage, cluster, a defect), 2 bad input (options, configuration, files),
75 another run has the output, 130 Ctrl-C, 143 SIGTERM.
"""

import atexit
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import click
from distributed import Client

from graphmill import cluster, config
from graphmill.cli.aside import Aside
from graphmill.config import Config
from graphmill.display import progress, terminal
from graphmill.display.summary import summary
from graphmill.errors import ConfigError, GraphMillError, LockedError
from graphmill.machine import forkserver, leftovers
from graphmill.run import lock, places, record

MASTER_VARIABLE = "GRAPHMILL_MASTER"
CONF_VARIABLE = "GRAPHMILL_CONF"

STAGES = {
    "etl": "etl.job",
    "train": "train.job",
    "evaluate": "train.evaluation.evaluate",
    "remap": "remap.job",
}

TABLES = "etl.tables.files"

Command = Callable[..., Any]

log = logging.getLogger("graphmill")


def look_options(command: Command) -> Command:
    """What every command takes for its looks; they act by themselves, the function gets none of them."""

    def choose(context: click.Context, option: click.Parameter, chosen: bool) -> None:
        if chosen and option.name is not None:
            setattr(terminal.look, option.name, True)
            terminal.start_logging()

    for flag, name, text in (
        ("--debug", "debug", "Show the traceback of an error."),
        ("--json-logs", "json_lines", "Log lines of JSON instead of text."),
        ("--quiet", "quiet", "Tell of warnings and errors only."),
    ):
        command = click.option(
            flag, name, is_flag=True, is_eager=True, expose_value=False, callback=choose, help=text
        )(command)
    return command


def run_options(command: Command) -> Command:
    """The options of every command that runs stages; the function gets `conf`, `overrides`, `master`."""
    command = look_options(command)
    for option in (
        click.option(
            "--master",
            envvar=MASTER_VARIABLE,
            metavar="MASTER",
            help="Dask cluster: local[N], cuda, tcp://HOST:PORT (default: cluster.master, local[*]).",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY.PATH=VALUE",
            help="Override one setting; repeatable.",
        ),
        click.option(
            "--conf",
            envvar=CONF_VARIABLE,
            metavar="FILE",
            help="Configuration: YAML, local or on HDFS, or a PBG config ending in .py.",
        ),
    ):
        command = option(command)
    return command


def stage_command(name: str) -> click.Command:
    """The command that runs the stage `name` alone, anew even if it was finished before."""

    @click.command(
        name,
        help=f"Run the stage {name} as the configuration says, also if it was finished before.",
        epilog=f"Example: dask-submit {name}.py --conf conf/demo.yaml --set output=demo-output",
    )
    @run_options
    def command(conf: str | None, overrides: tuple[str, ...], master: str | None) -> None:
        settings = config.load(conf, overrides)
        stage_job(name).check(settings)
        with session(settings, master, [name]) as run:
            entry = run(name, resume=False)
        terminal.show_table(name, summary({name: entry}))

    return command


def stage_job(name: str) -> Any:
    """The module that does a stage's work, a `record.Stage`; found by name, for the floor knows no stage."""
    return importlib.import_module(STAGES[name])


@dataclass(frozen=True)
class Session:
    """Runs stages by name; holds the locks, run.json and the cluster."""

    settings: Config
    client: Client
    record: record.RunRecord

    def __call__(self, name: str, *, resume: bool) -> dict[str, Any]:
        """Run the stage `name`, unless `resume` finds it finished; its entry in run.json."""
        return record.run_stage(name, stage_job(name), self.settings, self.client, self.record, resume=resume)


@contextmanager
def session(
    settings: Config, master: str | None, stages: Sequence[str], *, keeps_config: bool = False
) -> Iterator[Session]:
    """Locks of all that `stages` write, a cluster, a run.json and a progress display.

    With `keeps_config` run.json keeps the configuration that it has.

    `stages` are those that will be asked for.

    Raises:
        ConfigError: a place that is written to holds tables or files of others; nothing has been written.
        LockedError: another run is at work on the same places.
    """
    check_places(settings, stages, is_chosen=not keeps_config)
    written = [uri for name in stages for uri in stage_job(name).written_uris(settings)]
    outputs = [settings.output] if settings.output else []
    if not outputs:  # run.json lies in the checkpoint, which may be moved aside
        written.append(settings.checkpoint_path)
    with (
        lock.held(*outputs, whole=written) as claim,
        _recorded(settings, master, claim, keeps_config) as run,
    ):
        yield run


def check_places(settings: Config, stages: Sequence[str], *, is_chosen: bool = True) -> None:
    """Refuse to write where tables or files of others are.

    Unless the user has chosen `output` it is the folder around a checkpoint, which may hold anything else.

    Raises:
        ConfigError: a place that the stages write to holds such.
    """
    jobs = {name: stage_job(name) for name in stages}
    roots = [
        (f"the output of {name}", uri) for name, job in jobs.items() for uri in job.written_uris(settings)
    ]
    if settings.output is not None:
        roots.insert(0, ("output", settings.output))
    tables: list[str] = []
    with suppress(*([] if "etl" in stages else [ConfigError])):  # another stage has no need of its section
        tables = importlib.import_module(TABLES).table_roots(settings)
    places.check_tables(roots, tables)
    places.check_output(settings, is_chosen=is_chosen)
    for job in jobs.values():
        job.check_outputs(settings)


@contextmanager
def _recorded(
    settings: Config, master: str | None, claim: lock.Claim, keeps_config: bool
) -> Iterator[Session]:
    uri = settings.record_uri(settings.checkpoint_path)
    job = record.RunRecord(uri, settings, claim, keeps_config=keeps_config)
    options = settings.section(cluster.ClusterConfig)
    reports = Aside("graphmill.report")  # the library of charts is large
    losses = cluster.Losses()
    try:
        with progress.displayed(), cluster.connect(master, options) as client, losses.counted(client):
            yield Session(settings, client, job)
            job.finish("done", workers_lost=losses.num_workers)
            reports.ask("write_at", job.uri, settings.embedding_path)  # done while the cluster closes
    except BaseException as error:
        is_recorded = _record_failure(job, error, losses.num_workers)
        if is_recorded and isinstance(error, Exception):  # a signal asks for an end at once
            write_report(job.uri, settings)
        raise
    _tell_of_report(reports.answer)


def _record_failure(job: record.RunRecord, error: BaseException, num_lost: int) -> bool:
    """Write to run.json how the run ended; whether it was done.

    A wrong option leaves an earlier run's as it was, and so does a run whose output is another's by now.
    """
    is_bad_input = isinstance(error, GraphMillError) and error.exit_code == ConfigError.exit_code
    if is_bad_input and not job.is_begun and (isinstance(error, ConfigError) or job.has_earlier):
        return False
    try:
        job.finish("failed", f"{type(error).__name__}: {error}", workers_lost=num_lost)
    except LockedError:
        return False
    return True


def write_report(record_uri: str, settings: Config) -> None:
    """Write report.html beside run.json; what hinders it is told, and fails nothing."""

    def write() -> str:
        from graphmill import report

        return report.write_at(record_uri, settings.embedding_path)

    _tell_of_report(write)


def _tell_of_report(written: Callable[[], str]) -> None:
    try:
        log.info("report: %s", written())
    except Exception as error:
        log.warning("report: none was written: %s: %s", type(error).__name__, error)


def main(command: click.Command, arguments: list[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code."""
    terminal.start_logging()
    signal.signal(signal.SIGTERM, _terminate)
    if forkserver.is_started():
        leftovers.note()
    _end(exit_code(lambda: command.main(arguments, standalone_mode=False)))


def exit_code(action: Callable[[], Any]) -> int:
    """What `action` ends with; an error is printed as one block, with a traceback if `--debug` asks so."""
    try:
        action()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except GraphMillError as error:
        terminal.show_error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for Ctrl-D at a prompt; we have none
            terminal.show_error(error.__cause__, defect=True)
            return 1
        terminal.show_error("stopped by Ctrl-C")
        return 130
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        terminal.show_error(str(error.code))  # a script's own last words
        return 1
    except OSError as error:
        terminal.show_error(error)
        return 1
    except Exception as error:
        terminal.show_error(error, defect=True)
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End the process as sys.exit does, but for taking all modules apart, which takes a third of a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception SIGTERM lets every `with` block clean up.
    raise SystemExit(128 + number)
