"""YAML or a PBG Python config -> `Config`: overrides applied, paths filled in and made absolute."""

import importlib.resources
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmill import storage
from graphmill.config import consent, defaults, pbg_values, splits, yaml_text
from graphmill.config.plugins import plugins_of
from graphmill.config.schema import Config
from graphmill.config.section import validated
from graphmill.config.sections.etl import EtlConfig
from graphmill.config.yaml_text import apply_override, place
from graphmill.errors import ConfigError, NotFoundError, suggestion
from graphmill.model.registry import has_registered, running
from graphmill.vocab import RECORD, TRAIN_SPLIT

_SHOWN = 5
_MAX_SHOWN = 200  # characters of an override
_EXAMPLE = "graphmill:"
_WITHOUT_CONF = (
    "--conf: missing; name the configuration, as in --conf FILE.yaml, or an example of the installation, as "
    "in --conf graphmill:triples.yaml; `graphmill init TABLE...` writes one for your tables"
)

# Of version 1, of February 2019, and of January.
_PBG_FUNCTIONS = ("get_torchbiggraph_config", "get_torchbiggraph_conf", "getConf")

Transform = Callable[[dict[str, Any]], dict[str, Any]]


def load(
    conf_uri: str | None, overrides: Sequence[str] = (), *, transform: Transform | None = None
) -> Config:
    """Read `conf_uri` and apply `key.path=value` overrides.

    `conf_uri` is YAML, a local PBG config ending in .py, or the run.json of a run.

    `transform` changes the mapping before it is checked. Relative paths start at the current folder, and
    become absolute. Keys that YAML leaves out have our own defaults (`defaults`), those of `.py` PBG's.

    Raises:
        ConfigError: the file or an override cannot be parsed, or a value does not fit.
        NotFoundError: there is no such file.
    """
    raw = read_raw(conf_uri, overrides)
    chosen: dict[str, Any] = {}
    try:
        given = transform(raw) if transform else raw
        if conf_uri is None and "relations" not in given:
            raise ConfigError(_WITHOUT_CONF)
        if conf_uri and _has_own_defaults(conf_uri, given):
            given, chosen = defaults.applied(pbg_values.with_v1_names(given))
        settings = _evaluated(from_mapping(given), conf_uri)
    except ConfigError as error:
        raise ConfigError(_with_lines(str(error), conf_uri, overrides)) from error
    # Workers may have another current folder than the command.
    paths = {key: _absolute(getattr(settings, key)) for key in _PATH_KEYS}
    return settings.model_copy(update=paths).with_chosen(chosen)


def read_raw(conf_uri: str | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a configuration file with its overrides as a mapping, unchecked."""
    return read_named(conf_uri, overrides)[0]


def read_named(conf_uri: str | None, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read as `read_raw`; return also the settings of a run.json that need consent and have none."""
    raw = _read(conf_uri) if conf_uri else {}
    taken: dict[str, Any] = {}
    if conf_uri and storage.name(conf_uri) == RECORD:
        taken = consent.take_out(raw)
        raw = _with_output_of(overrides, raw)
    for override in overrides:
        apply_override(raw, override)
    missing = consent.unnamed(taken, raw)
    consent.check_plugins(missing, str(conf_uri))
    return raw, missing


def resolved(conf_uri: str) -> str:
    """Replace `graphmill:NAME` by the path of the example NAME, which every installation has."""
    if not conf_uri.startswith(_EXAMPLE):
        return conf_uri
    root = Path(str(importlib.resources.files("graphmill"))).parent
    folder = next(path for path in (root / "graphmill-examples", root / "conf") if path.is_dir())
    name = conf_uri.removeprefix(_EXAMPLE)
    known = sorted(path.name for path in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"{conf_uri}: there is no such example; {suggestion(name, known)}")
    return str(folder / name)


def from_mapping(raw: Mapping[str, Any]) -> Config:
    """Return the `Config` of a nested mapping, path defaults filled in; PBG's camelCase is accepted.

    Every section that the mapping has is checked, also one of a stage that is not to run.

    Raises:
        ConfigError: a key is unknown, missing, or of the wrong type, or two of them contradict.
    """
    filled = pbg_values.with_v1_names(raw)
    if filled.get("dynamic_relations") is True:
        filled.setdefault("global_emb", False)  # PBG's default is true, and forbidden here
    _fill_paths(filled)
    plugins_of(filled)  # the names of plug-ins are known before they are checked
    return validated(Config, filled)


def _evaluated(settings: Config, conf_uri: str | None) -> Config:
    """Have a `.py` configuration without held-out edges evaluate its last edge path, as PBG does."""
    if not (conf_uri and conf_uri.endswith(".py")):
        return settings
    evaluate = settings.evaluate
    folder = settings.split_path(evaluate.split)
    written = settings.section(EtlConfig).splits() if settings.etl else ()
    is_there = folder in settings.edge_paths or evaluate.split in written or storage.is_dir(folder)
    if is_there or "split" in evaluate.model_fields_set:
        return settings
    last = splits.names_of(settings.edge_paths)[-1]
    given = evaluate.model_dump(exclude_unset=True)
    return settings.with_section(type(evaluate).model_validate({**given, "split": last}))


def _has_own_defaults(conf_uri: str, raw: Mapping[str, Any]) -> bool:
    """Tell whether `defaults` fill in what the file leaves out; earlier releases have PBG's values."""
    if storage.name(conf_uri) == RECORD:
        return bool(raw.get("defaults") == "graphmill")
    return not conf_uri.endswith(".py")


def _with_lines(message: str, conf_uri: str | None, overrides: Sequence[str]) -> str:
    """Say before each line of a message that begins with a key where its value comes from."""
    has_lines = conf_uri is not None and not conf_uri.endswith(".py")
    lines = yaml_text.lines(storage.read_text(resolved(str(conf_uri)))) if has_lines else {}
    root = ("config",) if conf_uri is not None and storage.name(conf_uri) == RECORD else ()
    # The last of equal keys counts.
    overridden = {place(override): override[:_MAX_SHOWN] for override in overrides}

    def located(text: str) -> str:
        path, _, problem = text.partition(": ")
        keys = place(path)
        for length in range(len(keys), 0, -1):
            if override := overridden.get(keys[:length]):
                return f"--set {override}: {text}"
        there = (*root, *keys)
        line = lines.get(there) or (lines.get(there[:-1]) if problem.startswith("missing") else None)
        return f"{conf_uri}:{line}: {text}" if line else text

    return "\n".join(map(located, message.splitlines()))


# Names of folders under `output`.
_DEFAULT_FOLDERS = {
    "entity_path": "entities",
    "edge_root": "edges",
    "checkpoint_path": "checkpoint",
    "embedding_path": "embeddings",
}
_PATH_KEYS = ("output", "input", "edge_paths", "init_path", *_DEFAULT_FOLDERS)


def _absolute(value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    if isinstance(value, tuple):
        return tuple(map(storage.absolute, value))
    return value if value is None else storage.absolute(value)


def _fill_paths(filled: dict[str, Any]) -> None:
    edge_paths = filled.get("edge_paths")
    if edge_paths in ([], ()):  # PBG's examples of 2019 leave it to programs and to -p
        del filled["edge_paths"]
    if isinstance(edge_paths, list | tuple) and edge_paths and isinstance(edge_paths[0], str):
        filled.setdefault("edge_root", storage.parent(edge_paths[0]))
    output = filled.get("output")
    if output == "":
        raise ConfigError("output: expected a folder's URI, found an empty string")
    if isinstance(output, str):
        for key, name in _DEFAULT_FOLDERS.items():
            filled.setdefault(key, storage.join(output, name))
    if isinstance(filled.get("edge_root"), str):
        filled.setdefault("edge_paths", [storage.join(filled["edge_root"], TRAIN_SPLIT)])
    if isinstance(filled.get("checkpoint_path"), str):
        inside = storage.join(filled["checkpoint_path"], _DEFAULT_FOLDERS["embedding_path"])
        filled.setdefault("embedding_path", inside)  # other checkpoints may lie beside this one
    if edge_paths in ([], ()) and "edge_paths" not in filled and filled.get("entity_path"):
        raise ConfigError(
            "edge_paths: expected at least one, found none: name the folders of bucket files, as in -p "
            "edge_paths=FOLDER,FOLDER (`graphmill etl CONFIG FILE...` makes FILE_partitioned of each file)"
        )
    if "entity_path" not in filled:
        raise ConfigError(
            "output: no root for the run's files; set it (--set output=URI), or set entity_path, edge_paths "
            "and checkpoint_path on their own"
        )


def _read(conf_uri: str) -> dict[str, Any]:
    conf_uri = resolved(conf_uri)
    if conf_uri.endswith(".py"):
        return _read_pbg_python(conf_uri)
    raw = yaml_text.parsed(storage.read_text(conf_uri), conf_uri)
    if storage.name(conf_uri) == RECORD and isinstance(raw, dict):
        raw = _relocated(raw.get("config"), storage.parent(conf_uri))
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfigError(f"{conf_uri}: expected a mapping of keys to values, found {type(raw).__name__}")
    return raw


def record_of(run: str) -> str:
    """Find run.json of the run `run`: its output folder, or the file itself."""
    uri = run if storage.name(run) == RECORD else storage.join(run, RECORD)
    if not storage.exists(uri):
        raise no_run(run)
    return uri


def no_run(uri: str) -> NotFoundError:
    """Make the error of a folder, or a file, that is expected to be a run, and is none."""
    what = "a folder without run.json" if storage.is_dir(uri) else "none"
    if storage.is_dir(uri):
        below = [
            entry.uri for entry in storage.list_dir(uri) if storage.exists(storage.join(entry.uri, RECORD))
        ]
        what += f", with runs in it: {', '.join(map(storage.name, below[:_SHOWN]))}" if below else ""
    return NotFoundError(
        f"{uri}: expected a run, found {what}; give the folder that was the run's `output`, or its run.json"
    )


def place_now(path: Any, output: Any, folder: str) -> str | None:
    """Return the new place of `path` after the run's `output` was moved to `folder`; None: it was outside."""
    if not (isinstance(path, str) and isinstance(output, str)):
        return None
    inside = path.removeprefix(output.rstrip("/") + "/")
    there = storage.join(folder, inside)
    return there if inside != path and storage.within(folder, there) else None


def _relocated(raw: Any, folder: str) -> Any:
    """Return the settings of a run whose output was moved to `folder`, with adapted paths."""
    output = raw.get("output") if isinstance(raw, dict) else None
    return raw if output is None else _with_moved_paths(raw, output, folder) | {"output": folder}


def _with_moved_paths(value: Any, output: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_moved_paths(inner, output, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_moved_paths(item, output, folder) for item in value]
    return place_now(value, output, folder) or value


def _with_output_of(overrides: Sequence[str], raw: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with its paths in the `output` that the last override of it names."""
    chosen = dict(raw)
    for override in overrides:
        if place(override) == ("output",):
            apply_override(chosen, override)
    output = chosen.get("output")
    if output == raw.get("output") or not (output and isinstance(output, str)):
        return raw
    return dict(_relocated(raw, storage.absolute(output)))


def _read_pbg_python(conf_uri: str) -> dict[str, Any]:
    path = storage.local_path(conf_uri)
    if path is None or not Path(path).is_file():
        raise ConfigError(f"{conf_uri}: a Python configuration must be a local file, found none there")
    try:
        with running(path):
            content = runpy.run_path(path)
        function = next((content[name] for name in _PBG_FUNCTIONS if callable(content.get(name))), None)
        raw = None if function is None else dict(function())
    except Exception as error:  # of the user's own code
        raise ConfigError(f"{conf_uri}: cannot be run: {type(error).__name__}: {error}") from error
    if raw is None:
        raise ConfigError(f"{conf_uri}: expected a function {_PBG_FUNCTIONS[0]}(), found none")
    raw = pbg_values.from_python(raw)
    if isinstance(section := raw.get("train", {}), Mapping):  # a lower lr resumes the checkpoint, as in PBG
        raw["train"] = {"on_change": "resume", **section}
        if has_registered(path):  # its plug-ins, which every process needs
            raw["train"]["plugins"] = [path, *raw["train"].get("plugins", [])]
    return raw
