"""The files and modules of a configuration that register plug-ins.

Their text is read once, by the command. It travels with the settings to every process, and is offered there
to the registries (`graphmill.model.registry`). Results are compared by the checksums of the texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from graphmill import storage
from graphmill.errors import NotFoundError
from graphmill.model import registry
from graphmill.model.registry import PlugInSource


@dataclass(frozen=True)
class Plugins:
    """Files and modules that are offered to the registries of each process that the object comes to."""

    sources: tuple[PlugInSource, ...] = ()

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


def offered(sources: tuple[PlugInSource, ...]) -> Plugins:
    """Offer the files and modules to the registries of this process."""
    registry.offer(sources)
    return Plugins(sources)


def plugins_of(raw: Any) -> Plugins:
    """Read and offer the files and modules that the section `train` of a mapping names."""
    train = raw.get("train") if isinstance(raw, Mapping) else None
    given = train.get("plugins") if isinstance(train, Mapping) else None
    return read_plugins(given) if isinstance(given, list | tuple) else NO_PLUGINS


def read_plugins(given: Any) -> Plugins:
    """Read and offer files and modules: a name that ends in .py, or has a slash, is a file."""
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) and name for name in given):
        if isinstance(given, Plugins):
            return given
        raise ValueError(f"expected a list of files and modules, found {given!r}")
    sources = []
    for name in dict.fromkeys(given):
        if name.endswith(".py") or "/" in name:
            uri = storage.absolute(name)
            sources.append(PlugInSource(uri, _text(uri)))
        else:
            sources.append(PlugInSource(name))
    return offered(tuple(sources))


def _text(uri: str) -> str:
    try:
        return storage.read_text(uri)
    except NotFoundError as error:
        raise NotFoundError(f"train.plugins: {error}; a name without .py is that of a module") from error


PluginList = Annotated[
    InstanceOf[Plugins],
    BeforeValidator(read_plugins),
    PlainSerializer(list),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
