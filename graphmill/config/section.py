"""Base class of every configuration class, and the messages about wrong values.

Each key states its effect on the result of a run.
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from graphmill.errors import ConfigError, suggestion

AnyType = TypeVar("AnyType")


class Effect(Enum):
    """Effect of a key on the result, which decides whether finished or begun work can be used again."""

    FIXED = "changes the result; a checkpoint cannot continue with another value"
    TUNABLE = "changes the result; a checkpoint can continue with another value"
    NEUTRAL = "changes speed, memory, places or the number of epochs only"


# The type of a key says its effect: `lr: Tunable[float]`. Neutral paths: inputs are compared by content.
Fixed = Annotated[AnyType, Effect.FIXED]
Tunable = Annotated[AnyType, Effect.TUNABLE]
Neutral = Annotated[AnyType, Effect.NEUTRAL]


SIZE = "SIZE"
"""Metavar of a key in bytes that an option takes as 512MiB."""


@dataclass(frozen=True)
class Flag:
    """Form of a key as an option of a command, where that is not `--key VALUE`."""

    names: str = ""
    """Such as `--exact/--approximate`."""
    metavar: str | None = None
    """Word for the value, in help texts."""


class Section(BaseModel):
    """Base of every configuration class: frozen, strictly typed, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    key: ClassVar[str] = ""
    """Top-level key of the section, as in `train: {...}`."""

    @classmethod
    @cache
    def effects(cls) -> dict[str, Effect]:
        """Effect of each key that states one; sections inside a section state their own."""
        fields = cls.model_fields.items()
        return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Effect)}

    @classmethod
    def needs_consent(cls, key: str, value: Any) -> bool:
        """Tell whether a setting runs code or reaches other machines; run.json alone does not suffice."""
        return False

    def result_settings(self) -> dict[str, Any]:
        """The settings that change the result, as JSON types."""
        kept = {name for name, effect in self.effects().items() if effect is not Effect.NEUTRAL}
        return self.model_dump(mode="json", include=kept)


AnySection = TypeVar("AnySection", bound=Section)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 500

# Types of problems: a key, and a value that is none of the choices or that a check of its own refuses.
_UNKNOWN = ("extra_forbidden", "literal_error", "value_error")


def validated(model: type[AnySection], raw: Any, prefix: tuple[str, ...] = ()) -> AnySection:
    """Return `raw` as a `model`; `prefix` is its path in the configuration."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        wrong = [problem for problem in problems if not _is_result(problem, problems)]
        raise ConfigError("\n".join(_explain(model, problem, prefix) for problem in wrong)) from error


def check_known(model: type[Section], raw: Any) -> None:
    """Check that a part of a configuration has only keys and choices that are known; it may lack others."""
    try:
        model.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        unknown = [problem for problem in problems if problem["loc"] and problem["type"] in _UNKNOWN]
        if unknown:
            raise ConfigError("\n".join(_explain(model, problem, ()) for problem in unknown)) from error


def _is_result(problem: Any, problems: Sequence[Any]) -> bool:
    """Tell whether a list is "too short" only because an item of it is wrong: that item has its own line."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in problems
    )


def _explain(model: type[Section], problem: Any, prefix: tuple[str, ...]) -> str:
    location: tuple[int | str, ...] = (*prefix, *problem["loc"])
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    match problem["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key{_closest(model, problem['loc'])}"
        case "missing":
            return f"{path}: missing, it has no default"
        case "value_error":
            text = str(problem["ctx"]["error"])
            return f"{path}: {text}" if path else text
    given = f"found {_SHORT.repr(problem['input'])} ({type(problem['input']).__name__})"
    return f"{path}: {problem['msg'][0].lower()}{problem['msg'][1:].replace('tuple', 'list')}; {given}"


def _closest(model: type[Section], location: tuple[int | str, ...]) -> str:
    """Name the known key that is closest to the last of `location`, else all known keys."""
    *parents, key = location
    for part in parents:  # a number is a position in a list, another name a key of a mapping
        if isinstance(part, str) and part in model.model_fields:
            model = section_in(model.model_fields[part].annotation) or model
    known = model.model_fields
    return f"; {suggestion(str(key), known, 'known keys:')}"


def section_in(annotation: Any) -> type[Section] | None:
    """Find the class of a key's content: `tuple[TableConfig, ...]` holds a `TableConfig`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)
