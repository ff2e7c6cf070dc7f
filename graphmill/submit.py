"""`dask-submit`: run a script, or a bundled job, on a Dask cluster."""

import importlib
import os
import runpy
import sys
from pathlib import Path

import click

from graphmill import cluster, config, door, progress
from graphmill.cluster import ClusterConfig
from graphmill.errors import ConfigError

BUNDLED = {
    "etl.py": "etl.__main__",
    "train.py": "train.__main__",
    "remap.py": "remap.__main__",
    "pipeline.py": "graphmill.pipeline",
}


@click.command(
    "dask-submit",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=f"Bundled jobs: {', '.join(BUNDLED)}. SCRIPT --help tells what a job takes.",
)
@click.option("--master", metavar="MASTER", help="Dask cluster: local[N], cuda, tcp://HOST:PORT.")
@click.option("--conf", metavar="FILE", help="Configuration; scripts find it in $GRAPHMILL_CONF.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(master: str | None, conf: str | None, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGUMENTS on a Dask cluster.

    SCRIPT is the path of a Python file, which finds the cluster as Dask's default client; or, where there
    is no such file, the name of a bundled job.
    """
    for variable, value in ((door.MASTER_VARIABLE, master), (door.CONF_VARIABLE, conf)):
        if value is not None:
            os.environ[variable] = value
    if Path(script).is_file():
        _run_script(script, arguments, master, conf)
    elif script in BUNDLED:
        sys.argv = [script, *arguments]
        job: click.Command = importlib.import_module(BUNDLED[script]).command
        job.main(list(arguments), prog_name=script, standalone_mode=False)
    else:
        raise ConfigError(
            f"{script}: there is no such file, and no bundled job of that name: {', '.join(BUNDLED)}"
        )


def _run_script(script: str, arguments: tuple[str, ...], master: str | None, conf: str | None) -> None:
    settings = config.load(conf).section("cluster", ClusterConfig) if conf else ClusterConfig()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with progress.displayed(), cluster.connect(master, settings):
        runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Entry of the console script."""
    door.main(command)


if __name__ == "__main__":
    main()
