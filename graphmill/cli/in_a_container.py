"""`--deploy-mode cluster`: a command as it is run again in the container of its driver."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from graphmill import config, storage
from graphmill.cluster import deploy
from graphmill.cluster.settings import is_driver
from graphmill.config import Config
from graphmill.config.masters import kind_of
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display import terminal
from graphmill.errors import ConfigError

# Types of file systems that one machine alone can see; all others count as shared (NFS, Lustre, CephFS, ...).
_OF_ONE_MACHINE = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "tmpfs", "ramfs", "overlay"}


def is_of_one_machine(path: str) -> bool:
    """Tell whether a local path, which need not exist, lies on a disk of this machine alone."""
    place = os.path.realpath(path) + "/"
    file_system, longest = "", 0
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4].replace("\\040", " ").rstrip("/") + "/"
        if place.startswith(mount) and len(mount) >= longest:  # a later mount covers an earlier one
            file_system, longest = rest.split()[0], len(mount)
    return file_system in _OF_ONE_MACHINE


_COMMANDS = ("pipeline", "etl", "train", "evaluate", "remap", "predict", "export", "features", "fold-in")

# Keys whose local paths all processes must reach, and those that are uploaded in place.
_SUFFIXES = (".py", ".zip", ".egg", ".whl")
# Such as `etl.tables[0].path[1]` and `init_path`.
_PATH_KEY = re.compile(r"(.*[._])?(input|output|paths?)(\[\d+\])?|train\.init_embeddings\..*", re.DOTALL)
_UPLOADED = ("train.plugins", "cluster.")
_OUTPUT_FLAGS = {"--debug": "debug", "--json-logs": "json_lines", "--quiet": "quiet"}


class _Files:
    def __init__(self) -> None:
        self.paths: dict[str, str] = {}

    def place(self, uri: str) -> str:
        """Return what the command in the container calls the file; not local files keep their names."""
        path = storage.local_path(uri)
        if path is None or uri.startswith("graphmill:"):
            return uri
        if not Path(path).is_file():
            raise ConfigError(f"{uri}: there is no such file")
        name = f"{len(self.paths)}/{storage.name(path)}"
        self.paths[name] = path
        return f"{deploy.JOB}/{name}"


def is_deployed(options: Mapping[str, Any]) -> bool:
    """Tell whether the command of this context, with these options, is to run in a container."""
    is_known = click.get_current_context().command.name in _COMMANDS
    return is_known and not options.get("dry_run") and not is_driver()


def run_command(conf: str | None, overrides: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run the command of this context in a container, and return its exit code."""
    context = click.get_current_context()
    settings = config.load(conf, overrides)
    cluster = settings.cluster
    check_master(options.get("master"), cluster)
    check_paths(settings)
    files = _Files()
    words = ["-m", "graphmill", str(context.command.name)]
    words += [flag for flag, name in _OUTPUT_FLAGS.items() if getattr(terminal.options, name)]
    is_of_run = "run" in options  # a word of its own then
    words += ["--conf", files.place(conf)] if conf and not is_of_run else []
    words += [f"--set={override}" for override in overrides]
    words += [f"--set={key}={value}" for key, value in _uploaded(settings, files)]
    words += _words_again(context, options)
    return deploy.run(words, files.paths, cluster)


def run_script(
    script: str,
    arguments: Sequence[str],
    master: str | None,
    conf: str | None,
    chosen: Mapping[str, Any],
    settings: ClusterConfig,
) -> int:
    """Run `dask-submit SCRIPT` in a container, and return its exit code; raises as `run_command`."""
    check_master(master, settings)
    files = _Files()
    words = ["-m", "graphmill.cli.submit", *(["--master", master] if master else [])]
    words += ["--conf", files.place(conf)] if conf else []
    words += _cluster_words(chosen, settings, files)
    return deploy.run([*words, f"./{files.place(script)}", *arguments], files.paths, settings)


def check_master(master: str | None, settings: ClusterConfig) -> None:
    """Refuse another kind of cluster than YARN."""
    master = master or settings.master
    if kind_of(master).name != "yarn":
        raise ConfigError(
            f"cluster.deploy: cluster is for --master yarn, found {master}; use --deploy-mode client"
        )


def check_paths(settings: Config) -> None:
    """Refuse local paths that other machines cannot see."""
    paths = _paths_of("", settings.model_dump(mode="json"))
    for key, path in sorted(paths, key=lambda pair: len(pair[1])):  # `output` before the folders in it
        _check_path(key, path)


def _check_path(key: str, uri: str) -> None:
    path = storage.local_path(uri)
    if path is not None and is_of_one_machine(path):
        raise ConfigError(
            f"{key}: {path} is on a disk of this machine, which a driver in a container cannot reach; use "
            "HDFS or a shared file system, or --deploy-mode client"
        )


def _paths_of(key: str, node: Any) -> Iterator[tuple[str, str]]:
    if key.startswith(_UPLOADED):
        return
    if isinstance(node, dict):
        for name, inner in node.items():
            yield from _paths_of(f"{key}.{name}".lstrip("."), inner)
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from _paths_of(f"{key}[{number}]", inner)
    elif isinstance(node, str) and _PATH_KEY.fullmatch(key) and storage.is_absolute(node):
        yield key, node


def _uploaded(settings: Config, files: _Files) -> Iterator[tuple[str, str]]:
    cluster = settings.cluster
    named = {"train.plugins": tuple(settings.train.plugins), "cluster.py_files": cluster.py_files}
    for key, names in named.items():
        placed = [files.place(name) if name.endswith(_SUFFIXES) or "/" in name else name for name in names]
        if placed != list(names):
            yield key, f"[{', '.join(placed)}]"
    if cluster.archive and storage.is_local(cluster.archive):
        yield "cluster.archive", storage.name(cluster.archive)


def _words_again(context: click.Context, options: Mapping[str, Any]) -> list[str]:
    """Return the options and files that only this command has, as words of a command line."""
    words: list[str] = []
    master = options.get("master")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in options and source is ParameterSource.COMMANDLINE and parameter.name != "master":
            _check_option(parameter, options[parameter.name])
            words += _option_words(parameter, options[parameter.name])
    words += [f"--master={master}"] if master else []
    for word in (*words, *(files := options.get("files", ()))):
        place = word.rpartition("=")[2]
        if "/" in place and Path(place).exists():  # a name alone may be that of a split or a type
            _check_path(word, place)
    return [*words, *files]


def _check_option(parameter: click.Parameter, value: Any) -> None:
    """Refuse a local folder, which may be a new one, and a local file."""
    of_file, of_folder = (word in (parameter.metavar or "") for word in ("FILE", "FOLDER"))
    for item in value if isinstance(value, tuple) else (value,):
        place = str(item).rpartition("=")[2]
        if of_folder or (of_file and Path(place).exists()):
            _check_path(parameter.opts[0], storage.absolute(place))


def _option_words(parameter: click.Parameter, value: Any) -> list[str]:
    if isinstance(value, bool) and isinstance(parameter, click.Option) and parameter.is_flag:
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    if isinstance(value, datetime):
        return [parameter.opts[0], f"{value:%Y-%m-%d}"]
    texts = [str(item) for item in value] if isinstance(value, tuple) else [str(value)]
    if isinstance(parameter, click.Argument):
        return texts
    if parameter.multiple:
        return [word for text in texts for word in (parameter.opts[0], text)]
    return [parameter.opts[0], *texts]


def _cluster_words(chosen: Mapping[str, Any], settings: ClusterConfig, files: _Files) -> list[str]:
    """Return the options of dask-submit that were given, and those for local files of its configuration."""
    given = {key: value for key, value in chosen.items() if key not in ("deploy", "yarn_options")}
    if settings.py_files:
        given["py_files"] = ",".join(map(files.place, settings.py_files))
    if settings.archive and storage.is_local(settings.archive):
        given["archive"] = storage.name(settings.archive)
    words = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    for key, value in chosen.get("yarn_options", {}).items():
        values = [value] if isinstance(value, str) else value
        words += [f"--yarn-option={key}"] if value is True else [f"--yarn-option={key}={v}" for v in values]
    return words
