"""Options that several commands share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from graphmill import config
from graphmill.cluster.kinds import FORMS
from graphmill.display import terminal
from graphmill.storage import hdfs

MASTER_VARIABLE = "GRAPHMILL_MASTER"
CONF_VARIABLE = "GRAPHMILL_CONF"

Command = Callable[..., Any]

master_option = click.option(
    "--master",
    envvar=MASTER_VARIABLE,
    metavar="MASTER",
    help=f"Dask cluster: {FORMS} (default: cluster.master, local[*]).",
)
conf_option = click.option(
    "--conf",
    envvar=CONF_VARIABLE,
    metavar="FILE",
    help="Configuration: YAML, local or on HDFS; graphmill:NAME for an example of the installation; or a PBG "
    f"config ending in .py; sets ${CONF_VARIABLE}.",
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY.PATH=VALUE", help="Override one setting; repeatable."
)


def output_options(command: Command) -> Command:
    """Add the options for log lines and errors; they act by themselves, the function gets none of them."""

    def choose(context: click.Context, option: click.Parameter, chosen: bool) -> None:
        if chosen and option.name is not None:
            setattr(terminal.options, option.name, True)
            terminal.start_logging()

    for flag, name, text in (
        ("--debug", "debug", "Show the traceback of an error."),
        ("--json-logs", "json_lines", "Log lines of JSON instead of text."),
        ("--quiet", "quiet", "Show warnings and errors only."),
    ):
        command = click.option(
            flag, name, is_flag=True, is_eager=True, expose_value=False, callback=choose, help=text
        )(command)
    return command


def run_options(command: Command) -> Command:
    """Add the options of a command that runs stages; the function gets `conf`, `overrides`, `master`.

    The command opens paths on HDFS with the driver that the configuration names.
    """

    @functools.wraps(command)
    def with_driver(conf: str | None, overrides: tuple[str, ...], **others: Any) -> Any:
        section = config.read_raw(conf, overrides).get("cluster")
        driver = section.get("hdfs_driver") if isinstance(section, Mapping) else None
        with hdfs.use_driver(driver):
            return command(conf=conf, overrides=overrides, **others)

    return conf_option(set_option(master_option(output_options(with_driver))))
