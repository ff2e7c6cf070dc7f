"""Options that several commands share."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from graphmill import config, storage
from graphmill.cli.section_options import Command, section_options
from graphmill.config import Config
from graphmill.config.masters import FORMS
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.config.yaml_text import as_yaml
from graphmill.display import terminal
from graphmill.storage import hdfs
from graphmill.version import __version__
from graphmill.vocab import RECORD

MASTER_VARIABLE = "GRAPHMILL_MASTER"
CONF_VARIABLE = "GRAPHMILL_CONF"

# Settings of the section `cluster` that are options of the commands.
_CLUSTER = (
    *("num_workers", "worker_cores", "worker_memory", "worker_gpus", "queue", "name", "deploy"),
    *("driver_memory", "archive", "python", "metrics_port"),
)
_OF_CLUSTER = (*_CLUSTER, "py_files", "yarn_options")

# Options of spark-submit, and what they are called here.
_OF_SPARK = {
    "--num-executors": "--num-workers",
    "--executor-cores": "--worker-cores",
    "--executor-memory": "--worker-memory",
    "--total-executor-cores": "--num-workers and --worker-cores",
    "--driver-cores": "nothing: the command itself does no work",
    "--archives": "--archive",
    **dict.fromkeys(("--keytab", "--principal"), "nothing: tickets come from kinit, in client mode"),
    "--properties-file": "--conf FILE, in YAML",
    "--jars": "--py-files",
    "--files": "--py-files",
}

master_option = click.option(
    "--master",
    envvar=MASTER_VARIABLE,
    metavar="MASTER",
    help=f"Dask cluster: {FORMS} (default: cluster.master, local).",
)
conf_option = click.option(
    "--conf",
    envvar=CONF_VARIABLE,
    metavar="FILE",
    help="Configuration: YAML, local or on HDFS; graphmill:NAME for an example of the installation; or a PBG "
    f"config ending in .py; sets ${CONF_VARIABLE}.",
)
OF_A_RUN = "RUN: the output of a run, whose settings count then; or CONFIG, a file as for --conf."
run_argument = click.argument("run", required=False, metavar="[RUN | CONFIG]")
_SUFFIXES = (".py", ".yaml", ".yml")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Check, print what the run would take, and start nothing."
)


date_option = click.option(
    "--date",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Date of the run: fills {date} and {previous_date} in the configuration.",
)


class StageGroup(click.Group):
    """Commands of a stage, whose own command need not be named: `python -m train --conf FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        is_named = bool(args) and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [str(self.name), *args])


def load_for(day: datetime | None, conf: str | None, overrides: tuple[str, ...]) -> Config | None:
    """Load the configuration for the date of `date_option`; None, and a line, if it cannot run again."""
    from graphmill.run import dates

    if day is None:
        return config.load(conf, overrides, transform=dates.refuse_places)
    settings = dates.load(conf, overrides, day.date())
    if dates.is_finished(settings):
        click.echo(f"{settings.output}: finished, and its previous date is deleted; nothing to do")
        return None
    return settings


def set_option(command: Command) -> Command:
    """Add --set, and -p of PBG's commands; the function gets both as `overrides`, those of -p first."""

    @click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY.PATH=VALUE",
        help="Override one setting; repeatable.",
    )
    @click.option(
        "-p",
        "--param",
        "params",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda context, option, given: tuple(map(config.as_override, given)),
        help="Override one key of PyTorch-BigGraph, in its form: -p edge_paths=a,b; repeatable.",
    )
    @functools.wraps(command)
    def with_overrides(overrides: tuple[str, ...], params: tuple[str, ...], **others: Any) -> Any:
        return command(overrides=(*params, *overrides), **others)

    return with_overrides


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
    return click.version_option(__version__)(command)


def cluster_options(command: Command) -> Command:
    """Add an option for each of `_CLUSTER`, and --py-files; the function gets those that are given.

    The options of spark-submit are refused with the name that they have here.
    """
    for flag, ours in _OF_SPARK.items():
        command = click.option(
            flag, hidden=True, expose_value=False, callback=functools.partial(_refuse, ours=ours)
        )(command)
    command = click.option(
        "--py-files",
        metavar="FILE,...",
        multiple=True,
        callback=lambda context, option, lists: (
            [file for names in lists for file in names.split(",")] or None
        ),
        help="Modules and wheels for the workers; repeatable.",
    )(command)
    command = click.option(
        "--yarn-option",
        "yarn_options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda context, option, given: _yarn_options(given) or None,
        help="Option of the distributed shell's client, as node_label_expression=gpu; repeatable.",
    )(command)
    return section_options(ClusterConfig, overriding=_CLUSTER)(command)


def _refuse(context: click.Context, option: click.Parameter, given: Any, ours: str) -> None:
    if given is not None:
        raise click.UsageError(f"{option.opts[0]} is an option of spark-submit; here it is {ours}")


def _yarn_options(given: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """Read KEY=VALUE, KEY of a flag, and repeated keys such as shell_env=NAME=VALUE."""
    options: dict[str, str | bool | list[str]] = {}
    for text in given:
        key, equals, value = text.partition("=")
        before = options.get(key)
        if not equals:
            options[key] = True
        elif isinstance(before, str | list):
            options[key] = [*([before] if isinstance(before, str) else before), value]
        else:
            options[key] = value
    return options


def as_overrides(section: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of a section that are given, as for --set."""
    given = {key: value for key, value in settings.items() if value is not None}
    options = given.pop("yarn_options", {})  # each on its own: the configuration may have others
    given |= {f"yarn_options.{key}": value for key, value in options.items()}
    return tuple(f"{section}.{key}={as_yaml(value)}" for key, value in given.items())


def run_options(command: Command) -> Command:
    """Add the options of a command that runs stages; it gets `conf`, `overrides` and `master`.

    A command with a `run_argument` gets the configuration of that run as `conf`.
    """

    @click.option("--output", metavar="FOLDER", help="Folder of all results: sets `output`.")
    @functools.wraps(command)
    def with_settings(
        conf: str | None,
        overrides: tuple[str, ...],
        output: str | None,
        run: str | None = None,
        **others: Any,
    ) -> Any:
        overrides = _with_cluster(overrides, others)
        if output is not None:
            overrides = (*overrides, f"output={as_yaml(output)}")
        conf = conf_of(run, conf)
        with _chosen_driver(conf, overrides, others):
            return command(conf=conf, overrides=overrides, **others)

    return conf_option(set_option(master_option(cluster_options(output_options(with_settings)))))


def result_options(command: Command) -> Command:
    """Add the options of a command that makes something of a finished run, which its argument `run` names.

    The command gets the run's `settings`, the URI `to`, and `master`.
    """

    @click.option("--to", required=True, metavar="FOLDER", help="Where the files go; replaced as a whole.")
    @click.option(
        "--checkpoint-version", type=click.IntRange(1), help="Version to read (default: the last committed)."
    )
    @functools.wraps(command)
    def with_settings(
        run: str, to: str, checkpoint_version: int | None, overrides: tuple[str, ...], **others: Any
    ) -> Any:
        overrides = _with_cluster(overrides, others)
        if checkpoint_version is not None:
            overrides = (*overrides, f"remap.checkpoint_version={checkpoint_version}")
        conf = conf_of(run, None)
        with _chosen_driver(conf, overrides, {"run": run, "to": to, **others}):
            return command(settings=config.load(conf, overrides), to=storage.absolute(to), **others)

    return set_option(master_option(cluster_options(output_options(with_settings))))


def _with_cluster(overrides: tuple[str, ...], options: dict[str, Any]) -> tuple[str, ...]:
    return (*overrides, *as_overrides("cluster", {key: options.pop(key) for key in _OF_CLUSTER}))


@contextmanager
def _chosen_driver(conf: str | None, overrides: Sequence[str], options: Mapping[str, Any]) -> Iterator[None]:
    """Open paths on HDFS with the driver that the configuration names; or run the command in a container."""
    section = cluster_of(conf, overrides, options["master"])
    with hdfs.use_driver(section.get("hdfs_driver")):
        if section.get("deploy") == "cluster":
            from graphmill.cli import in_a_container

            if in_a_container.is_deployed(options):
                raise SystemExit(in_a_container.run_command(conf, overrides, options))
        yield


def cluster_of(conf: str | None, overrides: Sequence[str], master: str | None) -> Mapping[str, Any]:
    """Read the section `cluster`, unchecked."""
    raw, missing = config.read_named(conf, overrides)
    config.check_cluster(missing, conf, master)
    section = raw.get(ClusterConfig.key)
    return section if isinstance(section, Mapping) else {}


def cluster_settings(conf: str | None, overrides: Sequence[str]) -> ClusterConfig:
    """Read the section `cluster`, of a configuration that may have no other."""
    raw = config.read_raw(conf, overrides).get(ClusterConfig.key, {})
    return config.validated(ClusterConfig, raw, prefix=(ClusterConfig.key,))


def conf_of(run: str | None, conf: str | None) -> str | None:
    """Find the configuration: `run`, the file or the output of a run; else `conf`."""
    if run is None:
        return conf
    context = click.get_current_context()
    if context.get_parameter_source("conf") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--conf: a finished run has its own configuration; give RUN or --conf")
    return run if is_configuration(run) and storage.name(run) != RECORD else config.record_of(run)


def is_configuration(word: str) -> bool:
    """Tell whether a word of a command line names the file of a configuration, by its suffix."""
    return word.endswith(_SUFFIXES)
