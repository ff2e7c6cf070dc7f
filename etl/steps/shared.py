"""Values that all tasks of a step share: one file that each process reads once, if the tasks are many.

A task's arguments go through the scheduler. So that they stay small, a task gets numbers, and the name of the
file in which it finds the settings, the names of chunks, the shards.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from graphmill import storage

Value = TypeVar("Value")

MAX_COPIED_BYTES = 1 << 17
"""Copies of a value that take no more than this in all go to the tasks: a file would take longer."""


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value, or the file that holds it as JSON."""

    kind: Any
    value: Value | None = None
    uri: str = ""

    def read(self) -> Value:
        """Return the value."""
        value: Value = _read(self.kind, self.uri) if self.value is None else self.value
        return value


def share(uri: str, value: Value, num_tasks: int) -> Shared[Value]:
    """Return what to give to each of `num_tasks` tasks; if they are many, the value is written to a new file.

    A name stands for one value: processes keep what they have read.
    """
    kind: Any = type(value)
    content = json_of(kind).dump_json(value)
    if num_tasks * len(content) <= MAX_COPIED_BYTES:
        return Shared(kind, value)
    storage.write_text(uri, content.decode())
    return Shared(kind, uri=uri)


@cache
def json_of(kind: Any) -> TypeAdapter[Any]:
    """Return the reader and writer of a type as JSON, cached, because making them takes milliseconds."""
    return TypeAdapter(kind)


@lru_cache(maxsize=4)
def _read(kind: Any, uri: str) -> Any:
    return json_of(kind).validate_json(storage.read_bytes(uri))
