"""`dask-submit`: run a script, or a bundled job, on a Dask cluster."""

import functools
import importlib
import json
import logging
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from graphmill.machine import forkserver

log = logging.getLogger("graphmill")

BUNDLED = {
    "etl.py": "etl.__main__",
    "train.py": "train.__main__",
    "remap.py": "remap.__main__",
    "pipeline.py": "graphmill.cli.pipeline",
}

# Options that are settings of the section `cluster`, and what they mean beside their description there.
_OPTIONS = (
    ("num_workers", int, "Workers: YARN containers, or processes on each ssh host."),
    ("worker_cores", int, "Cores of a worker."),
    ("worker_memory", str, "Memory of a worker, as 4GiB."),
    ("worker_gpus", int, "GPUs of a YARN container."),
    ("queue", str, "YARN queue."),
    ("name", str, "Name of the YARN application."),
    ("archive", str, "Packed Python environment for YARN containers, local or on HDFS."),
    ("python", str, "Python interpreter on the nodes."),
)


def _cluster_options(command: Any) -> Any:
    """The options of `_OPTIONS`; the function gets them as `chosen`."""

    @click.option(
        "--py-files",
        metavar="FILE,...",
        help="Modules and wheels for the workers; repeatable.",
        multiple=True,
    )
    @functools.wraps(command)
    def wrapped(py_files: tuple[str, ...], **options: Any) -> Any:
        chosen = {key: options.pop(key) for key, _, _ in _OPTIONS}
        chosen["py_files"] = [file for files in py_files for file in files.split(",")] or None
        return command(chosen={key: value for key, value in chosen.items() if value is not None}, **options)

    for key, kind, text in reversed(_OPTIONS):
        wrapped = click.option(f"--{key.replace('_', '-')}", type=kind, help=text)(wrapped)
    return wrapped


def _scripts(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
    """What SCRIPT may go on as: bundled jobs and, as the shell finds them, files."""
    jobs = [CompletionItem(job) for job in BUNDLED if job.startswith(typed)]
    return [*jobs, CompletionItem(typed, type="file")]


@click.command(
    "dask-submit",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=(
        f"Bundled jobs: {', '.join(BUNDLED)}. SCRIPT --help tells what a job takes.\n\n"
        "\b\nExamples:\n"
        "  dask-submit pipeline.py --conf conf/demo.yaml\n"
        "  dask-submit --master tcp://scheduler:8786 train.py --conf hdfs:///conf/shop.yaml\n"
        "  dask-submit my_script.py --my-option"
    ),
)
@click.option(
    "--master",
    envvar="GRAPHMILL_MASTER",
    metavar="MASTER",
    help="Dask cluster: local[N], cuda, yarn, ssh://HOST,HOST, tcp://HOST:PORT.",
)
@click.option(
    "--conf",
    envvar="GRAPHMILL_CONF",
    metavar="FILE",
    help="Configuration; scripts find it in $GRAPHMILL_CONF.",
)
@_cluster_options
@click.argument("script", shell_complete=_scripts)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    master: str | None, conf: str | None, chosen: dict[str, Any], script: str, arguments: tuple[str, ...]
) -> None:
    """Run SCRIPT with ARGUMENTS on a Dask cluster.

    SCRIPT is the name of a bundled job; or the path of a Python file, which finds the cluster as Dask's
    default client. A file that is called as a bundled job is meant by ./NAME.
    """
    from graphmill.cli import stage_command
    from graphmill.errors import ConfigError

    script, arguments = _job_first(script, arguments)
    for variable, value in ((stage_command.MASTER_VARIABLE, master), (stage_command.CONF_VARIABLE, conf)):
        if value is not None:
            os.environ[variable] = value
    if script in BUNDLED:
        if os.path.isfile(script):  # noqa: PTH113 (which raises nothing)
            log.warning("%s: the bundled job runs; the file %s here is meant by ./%s", script, script, script)
        sys.argv = [script, *arguments]
        job: click.Command = importlib.import_module(BUNDLED[script]).command
        overrides = [
            f"--set=cluster.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in chosen.items()
        ]
        job.main([*overrides, *arguments], prog_name=script, standalone_mode=False)
    elif os.path.isfile(script):  # noqa: PTH113
        _run_script(script, arguments, master, conf, chosen)
    else:
        raise ConfigError(
            f"{script}: there is no such file, and no bundled job of that name: {', '.join(BUNDLED)}"
        )


def _job_first(script: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A job's options may come before its name, as people have it from `spark-submit`."""
    if not script.startswith("-"):
        return script, arguments
    at = next((at for at, word in enumerate(arguments) if word.endswith(".py")), None)
    if at is None:
        raise click.NoSuchOption(script)
    return arguments[at], (script, *arguments[:at], *arguments[at + 1 :])


def _run_script(
    script: str, arguments: tuple[str, ...], master: str | None, conf: str | None, chosen: dict[str, Any]
) -> None:
    from graphmill import cluster, config
    from graphmill.cluster import ClusterConfig
    from graphmill.display import progress, terminal

    given = config.load(conf).model_dump()["cluster"] if conf else {}
    settings = config.validated(ClusterConfig, given | chosen, prefix=("cluster",))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    terminal.look.debug = True  # the script is the user's own, and so are its errors
    with progress.displayed(), cluster.connect(master, settings):
        runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Entry of the console script."""
    words = sys.argv[1:]
    job = next((word for word in words if word in BUNDLED), None)
    if job:
        forkserver.start_for(Path(job).stem, words)
    from graphmill.cli import stage_command

    stage_command.main(command)


if __name__ == "__main__":
    main()
