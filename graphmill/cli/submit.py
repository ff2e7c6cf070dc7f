"""`dask-submit`: run a script, or a bundled job, on a Dask cluster."""

import logging
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from graphmill import config
from graphmill.cli import etl, exit_codes, pipeline, remap, train
from graphmill.cli.options import (
    CONF_VARIABLE,
    MASTER_VARIABLE,
    as_overrides,
    cluster_of,
    cluster_options,
    conf_option,
    master_option,
)
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import terminal
from graphmill.errors import ConfigError, suggestion
from graphmill.version import __version__

log = logging.getLogger("graphmill")

BUNDLED: Mapping[str, click.Command] = {
    "etl.py": etl.command,
    "train.py": train.command,
    "remap.py": remap.command,
    "pipeline.py": pipeline.command,
}


def _scripts(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
    """Complete SCRIPT in a shell: bundled jobs, and files as the shell finds them."""
    jobs = [CompletionItem(job) for job in BUNDLED if job.startswith(typed)]
    return [*jobs, CompletionItem(typed, type="file")]


@click.command(
    "dask-submit",
    context_settings={**exit_codes.CONTEXT, "ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=(
        f"Bundled jobs: {', '.join(BUNDLED)}. SCRIPT --help shows the options of a job.\n\n"
        "\b\nExamples:\n"
        "  dask-submit pipeline.py --conf conf/demo.yaml\n"
        "  dask-submit --master tcp://scheduler:8786 train.py --conf hdfs:///conf/shop.yaml\n"
        "  dask-submit my_script.py --my-option"
    ),
)
@master_option
@conf_option
@cluster_options
@click.version_option(__version__)
@click.argument("script", shell_complete=_scripts)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    master: str | None, conf: str | None, script: str, arguments: tuple[str, ...], **settings: Any
) -> None:
    """Run SCRIPT with ARGUMENTS on a Dask cluster.

    SCRIPT is the name of a bundled job or the path of a Python file. The file finds the cluster as Dask's
    default client. Write ./NAME for a file with the name of a bundled job.
    """
    script, arguments = _job_first(script, arguments)
    chosen = {key: value for key, value in settings.items() if value is not None}
    for variable, value in ((MASTER_VARIABLE, master), (CONF_VARIABLE, conf)):
        if value is not None:
            os.environ[variable] = value
    if script in BUNDLED:
        if os.path.isfile(script):  # noqa: PTH113 (which raises nothing)
            log.warning("%s: the bundled job runs; the file %s here is meant by ./%s", script, script, script)
        sys.argv = [script, *arguments]
        overrides = [f"--set={override}" for override in as_overrides("cluster", chosen)]
        BUNDLED[script].main([*overrides, *arguments], prog_name=script, standalone_mode=False)
    elif os.path.isfile(script):  # noqa: PTH113
        _run_script(script, arguments, master, conf, chosen)
    else:
        raise ConfigError(
            f"{script}: there is no such file, and no bundled job of that name; {suggestion(script, BUNDLED)}"
        )


def _job_first(script: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Move the script before its options, which may precede it as in `spark-submit`."""
    if not script.startswith("-"):
        return script, arguments
    at = next((at for at, word in enumerate(arguments) if word.endswith(".py")), None)
    if at is None:
        raise click.NoSuchOption(script)
    return arguments[at], (script, *arguments[:at], *arguments[at + 1 :])


def _run_script(
    script: str, arguments: tuple[str, ...], master: str | None, conf: str | None, chosen: dict[str, Any]
) -> None:
    from graphmill import cluster
    from graphmill.cli import in_a_container
    from graphmill.cluster.settings import is_driver
    from graphmill.display import progress
    from graphmill.monitoring import server as metrics

    cluster_of(conf, (), master)  # a run.json alone names no cluster
    given = config.load(conf).model_dump()["cluster"] if conf else {}
    options = {"yarn_options": given.get("yarn_options", {}) | chosen.get("yarn_options", {})}
    settings = config.validated(ClusterConfig, given | chosen | options, prefix=("cluster",))
    if settings.deploy == "cluster" and not is_driver():
        sys.exit(in_a_container.run_script(script, arguments, master, conf, chosen, settings))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    terminal.options.debug = True  # the errors of the user's own script need their traceback
    with progress.displayed(), metrics.served(settings), cluster.connect(master, settings):
        runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Entry of the console script."""
    exit_codes.main(command)


if __name__ == "__main__":
    main()
