"""The files and modules of a configuration that register plug-ins.

Their text is read once, by the command. It travels with the settings to every process, and is offered there
to the registries (`graphmill.model.registry`). Results are compared by the checksums of the texts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from graphmill import storage
from graphmill.errors import ConfigError, NotFoundError
from graphmill.model import registry
from graphmill.model.registry import Source


@dataclass(frozen=True)
class Plugins:
    """Files and modules that are offered to the registries of each process that the object comes to."""

    sources: tuple[Source, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return (source.name for source in self.sources)

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __reduce__(self) -> Any:
        return offered, (self.sources,)

    def checksums(self) -> dict[str, str]:
        """Checksums by the names of files, without their folders, and of modules."""
        return {storage.name(source.name): source.checksum for source in self.sources}


NO_PLUGINS = Plugins()


def offered(sources: tuple[Source, ...]) -> Plugins:
    """Offer the files and modules to the registries of this process."""
    registry.offer(sources)
    return Plugins(sources)


def read_plugins(names: Iterable[str]) -> Plugins:
    """Read and offer files and modules by their names."""
    found: Plugins = _read(list(names))
    return found


def plugins_of(raw: Any) -> Plugins:
    """Read and offer the files and modules that the section `train` of a mapping names."""
    given = _named_by(raw)
    return _read(given) if isinstance(given, list | tuple) else NO_PLUGINS


def _read(given: Any) -> Any:
    """Read what a configuration names: a name that ends in .py, or has a slash, is a file."""
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) and each for each in given):
        if isinstance(given, Plugins):
            return given
        raise ValueError(f"expected a list of files and modules, found {given!r}")
    sources = []
    for name in dict.fromkeys(given):
        if _is_file(name):
            uri = storage.absolute(name)
            sources.append(Source(uri, _text(uri)))
        else:
            sources.append(Source(name))
    return offered(tuple(sources))


def check_recorded(raw: Any, folder: str) -> None:
    """Check the plug-ins that the run.json of the run in `folder` names: a run may come from anybody.

    Raises:
        ConfigError: a file or a module lies in the run's folder, or is not on this machine.
    """
    given = _named_by(raw)
    for name in given if isinstance(given, list) else ():
        files = _files_of(name) if isinstance(name, str) else []
        if any(storage.local_path(file) is None or storage.within(folder, file) for file in files):
            raise ConfigError(
                f"train.plugins: {name} is named by the run.json of {folder}, and lies in that folder or on "
                f"another machine: it is not run unless you name it: --set 'train.plugins=[{name}]'"
            )


def _named_by(raw: Any) -> Any:
    """Look up `train.plugins` in an unchecked mapping."""
    train = raw.get("train") if isinstance(raw, Mapping) else None
    return train.get("plugins") if isinstance(train, Mapping) else None


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _files_of(name: str) -> list[str]:
    """The file, or the files of the package of a module, which is looked up and not imported."""
    if _is_file(name):
        return [name]
    spec = find_spec(name.partition(".")[0])
    if spec is None:
        return []
    own = [spec.origin] if spec.has_location and spec.origin else []
    return [*own, *(spec.submodule_search_locations or ())]


def _text(uri: str) -> str:
    try:
        return storage.read_text(uri)
    except NotFoundError as error:
        raise NotFoundError(f"train.plugins: {error}; a name without .py is that of a module") from error


PluginList = Annotated[
    InstanceOf[Plugins],
    BeforeValidator(_read),
    PlainSerializer(list),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
