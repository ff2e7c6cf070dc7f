"""Registries of plug-ins: operators, comparators and other parts of a model that users write.

A class is registered under a name by a decorator, as in PyTorch-BigGraph:

    @OPERATORS.register_as("my_operator")
    class MyOperator(AbstractOperator): ...

The decorator runs when its file runs. Files come from `train.plugins` (`offer`), modules of installed
packages from the entry points of the group `graphmill.plugins`. They run when a name is asked for that is not
built in: a process that needs no plug-in runs none. This module needs no torch.
"""

import hashlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from graphmill.errors import ConfigError, GraphMillError
from graphmill.model import built_in

GROUP = "graphmill.plugins"
PAGE = "docs/how_to/plug_ins.md"

AnyClass = TypeVar("AnyClass", bound=type)


@dataclass(frozen=True)
class PlugInSource:
    """A file or a module that registers plug-ins.

    Attributes:
        name: URI of the file, or dotted name of the module.
        text: text of the file; None: a module, which each process imports.
    """

    name: str
    text: str | None = None

    @property
    def checksum(self) -> str:
        """Checksum of the file's text; the name of a module."""
        return self.name if self.text is None else hashlib.blake2b(self.text.encode()).hexdigest()[:32]


class Registry:
    """Plug-ins of one kind by name.

    Attributes:
        kind: what a message calls such a class.
        built_in: names that plug-ins cannot take.
        registry: the plug-ins.
    """

    def __init__(self, kind: str, built_in: Collection[str] = ()) -> None:
        self.kind, self.built_in = kind, built_in
        self.registry: dict[str, type] = {}
        self._origins: dict[str, str] = {}
        _REGISTRIES.append(self)

    def register(self, name: str, class_: type) -> None:
        """Register a class; a name is of one file, which may register it again, such as when it is edited."""
        origin = _file.get() or class_.__module__
        if name in self.built_in:
            raise ConfigError(f"{self.kind} {name!r} is built in: register {class_.__name__} by another name")
        held = self._origins.get(name, origin)
        if held != origin and (held in _offered) != (origin in _offered) and held in _run:
            _forget(held)  # a file of other settings, which runs again when it is offered again
        elif held != origin:
            raise _ConflictError(
                f"{self.kind} {name!r}: expected one class of this name, found {class_.__name__} of {origin} "
                f"and {self.registry[name].__name__} of {held}"
            )
        self.registry[name], self._origins[name] = class_, origin

    def register_as(self, name: str) -> Callable[[AnyClass], AnyClass]:
        """Return a decorator that registers a class."""

        def decorator(class_: AnyClass) -> AnyClass:
            self.register(name, class_)
            return class_

        return decorator

    def find(self, name: str) -> type | None:
        """Look up a plug-in, after all files that are offered have run; raises their ConfigErrors."""
        if name in self.built_in:
            return None
        if any(offered not in _run for offered in list(_offered)):
            with _LOCK:
                for source in _offered.values():
                    _run_once(source)
        if name not in self.registry:
            with _LOCK:
                for module in _modules_of_packages():
                    _run_once(PlugInSource(module))
        for failure in list(_failures.values()):
            if name not in self.registry or isinstance(failure, _ConflictError):
                raise failure
        return self.registry.get(name)

    def get_class(self, name: str) -> type:
        """Look up a plug-in."""
        if plug_in := self.find(name):
            return plug_in
        raise ConfigError(self.unknown(name))

    def check(self, name: str) -> str:
        """Return the name, that of a plug-in or built in; else raise a ValueError."""
        if name not in self.built_in and self.find(name) is None:
            raise ValueError(self.unknown(name))
        return name

    def unknown(self, name: str, others: Iterable[str] = ()) -> str:
        """Say that there is no such name, which names there are, and how to add one."""
        known = ", ".join([*self.built_in, *sorted({*self.registry, *others})]) or "none"
        return (
            f"{self.kind} {name!r}: expected one of {known}; a plug-in needs its file or module in "
            f"train.plugins, as in --set 'train.plugins=[my_plugins.py]' ({PAGE})"
        )


class _ConflictError(ConfigError):
    """Two classes of one name."""


_REGISTRIES: list[Registry] = []
_LOCK = threading.RLock()
_file: ContextVar[str] = ContextVar("file", default="")  # that runs; none: a class has its module's name
_offered: dict[str, PlugInSource] = {}
_run: dict[str, str] = {}  # checksums of the files and modules that have run
_running: set[str] = set()
_failures: dict[str, ConfigError] = {}

OPERATORS = Registry("operator", built_in.OPERATORS)
DYNAMIC_OPERATORS = Registry("operator", built_in.OPERATORS)
COMPARATORS = Registry("comparator", built_in.COMPARATORS)
LOSS_FUNCTIONS = Registry("loss_fn", built_in.LOSSES)
REGULARIZERS = Registry("regularizer", ("N3",))
NEGATIVE_SAMPLERS = Registry("negative sampler")


def offer(sources: Iterable[PlugInSource]) -> None:
    """Make files and modules known, which run when a name is asked for.

    They take the place of those that were offered before; the text of a file, that of its former text.
    """
    given = {source.name: source for source in sources}
    if not given:
        return
    with _LOCK:
        _offered.clear()
        _offered.update(given)
        for name in _failures:
            _run.pop(name, None)
        _failures.clear()
        for source in given.values():
            if source.name not in _run and has_registered(source.name):  # a Python configuration has just run
                _run[source.name] = source.checksum
            elif _run.get(source.name, source.checksum) != source.checksum:
                _forget(source.name)


def _forget(origin: str) -> None:
    del _run[origin]
    for registry in _REGISTRIES:
        for name in [name for name, place in registry._origins.items() if place == origin]:
            del registry.registry[name], registry._origins[name]


def check_operator(name: str) -> str:
    """Return the name of an operator, built in or a plug-in of either kind; else raise a ValueError."""
    if name in OPERATORS.built_in or OPERATORS.find(name) or DYNAMIC_OPERATORS.find(name):
        return name
    raise ValueError(OPERATORS.unknown(name, DYNAMIC_OPERATORS.registry))


def check_kind(name: str, dynamic: bool) -> str:
    """Return the name of an operator, or raise a ValueError if only the other kind has it."""
    registry, other = (DYNAMIC_OPERATORS, "OPERATORS") if dynamic else (OPERATORS, "DYNAMIC_OPERATORS")
    if name in registry.built_in or registry.find(name):
        return name
    kind, needed = ("dynamic", "DYNAMIC_OPERATORS") if dynamic else ("static", "OPERATORS")
    raise ValueError(
        f"operator {name!r} is registered with {other}, and not for {kind} relations; register a class with "
        f"{needed} too"
    )


@contextmanager
def running(name: str) -> Iterator[None]:
    """Take the classes that the block registers for those of a file: it may run again, or be edited."""
    token = _file.set(_absolute(name))
    try:
        yield
    finally:
        _file.reset(token)


def has_registered(path: str) -> bool:
    """Tell whether a local file has registered a plug-in."""
    return any(_absolute(path) in registry._origins.values() for registry in _REGISTRIES)


@cache
def _modules_of_packages() -> tuple[str, ...]:
    return tuple(entry.module for entry in entry_points(group=GROUP))


def _run_once(source: PlugInSource) -> None:
    """Run a file or a module; a failure is kept, since it matters only where a name is missing."""
    if source.name in _run or source.name in _running:
        return
    _running.add(source.name)
    try:
        if source.text is None:
            importlib.import_module(source.name)
        else:
            with running(source.name):
                # a module of its own, which the methods of its classes find by its name
                digest = hashlib.blake2b(source.name.encode()).hexdigest()[:16]
                module = ModuleType(f"graphmill_plugin_{digest}")
                module.__file__ = source.name
                sys.modules[module.__name__] = module
                exec(compile(source.text, source.name, "exec"), module.__dict__)
    except GraphMillError as error:
        _failures[source.name] = error if isinstance(error, ConfigError) else ConfigError(str(error))
    except Exception as error:  # of the user's own code
        remedy = "" if source.text else "; every process of the run imports it: install it where they run"
        _failures[source.name] = ConfigError(
            f"train.plugins: {source.name} cannot be run: {type(error).__name__}: {error}{remedy}"
        )
        _failures[source.name].__cause__ = error
    _running.discard(source.name)
    _run[source.name] = source.checksum


def _absolute(name: str) -> str:
    return name if "://" in name else os.path.abspath(name)  # noqa: PTH100 (no resolving of links)
