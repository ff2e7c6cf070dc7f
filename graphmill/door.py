"""The command line that all stages share: options, exit codes, and who connects to the cluster.

Exit codes: 0 success, 1 failure (storage, cluster, a defect), 2 bad input (options, configuration, files),
130 Ctrl-C, 143 SIGTERM.
"""

import importlib
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from graphmill import cluster, config, progress, record
from graphmill.config import Config
from graphmill.errors import GraphMillError

MASTER_VARIABLE = "GRAPHMILL_MASTER"
CONF_VARIABLE = "GRAPHMILL_CONF"

STAGES = {"etl": "etl.job", "train": "train.job", "evaluate": "train.evaluate", "remap": "remap.job"}

Command = Callable[..., Any]

log = logging.getLogger("graphmill")


def run_options(command: Command) -> Command:
    """The options of every command that runs stages; the function gets `conf`, `overrides`, `master`."""
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

    @click.command(name, help=f"Run the stage {name}, as the configuration says.")
    @run_options
    def command(conf: str | None, overrides: tuple[str, ...], master: str | None) -> None:
        settings = config.load(conf, overrides)
        with session(settings, master) as run:
            run(name, resume=False)

    return command


def stage_job(name: str) -> Any:
    """The module that does a stage's work, a `record.Stage`; found by name, for the floor knows no stage."""
    return importlib.import_module(STAGES[name])


@contextmanager
def session(settings: Config, master: str | None) -> Iterator[Callable[..., dict[str, Any]]]:
    """A cluster, a run.json and a progress display; yields the function that runs a stage by name."""
    job = record.RunRecord(settings.record_uri(settings.checkpoint_path), settings)
    options = settings.section("cluster", cluster.ClusterConfig)
    try:
        with progress.displayed(), cluster.connect(master, options) as client:

            def run(name: str, *, resume: bool) -> dict[str, Any]:
                return record.run_stage(name, stage_job(name), settings, client, job, resume=resume)

            yield run
    except BaseException as error:
        job.finish("failed", f"{type(error).__name__}: {error}")
        raise
    job.finish("done")


def main(command: click.Command, arguments: list[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code."""
    progress.log_to_stderr()
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(exit_code(lambda: command.main(arguments, standalone_mode=False)))


def exit_code(action: Callable[[], Any]) -> int:
    """What `action` ends with; an error is printed as one block, with a traceback only for a defect."""
    try:
        action()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except GraphMillError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped by Ctrl-C", err=True)
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception SIGTERM lets every `with` block clean up.
    raise SystemExit(128 + number)
