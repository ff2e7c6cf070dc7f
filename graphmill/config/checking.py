"""Fills a configuration class from a raw mapping, and reports every problem in a line of its own."""

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from graphmill.config.section import Section
from graphmill.errors import ConfigError

AnySection = TypeVar("AnySection", bound=Section)


def validated(model: type[AnySection], raw: Any, prefix: tuple[str, ...] = ()) -> AnySection:
    """Return `raw` as a `model`; `prefix` is its path in the configuration.

    Raises:
        ConfigError: a key is unknown, missing, or of the wrong type, or two of them contradict.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [_explain(model, each, prefix) for each in problems if not _is_result(each, problems)]
        raise ConfigError("\n".join(lines)) from error


def _is_result(problem: Any, problems: Sequence[Any]) -> bool:
    """Whether a list is "too short" only because one of its items is wrong: that item has its own line."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in problems
    )


def _explain(model: type[BaseModel], problem: Any, prefix: tuple[str, ...]) -> str:
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
    found = f"found {problem['input']!r} ({type(problem['input']).__name__})"
    return f"{path}: {problem['msg'][0].lower()}{problem['msg'][1:]}; {found}"


def _closest(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    if len(location) != 1:
        return ""
    known = difflib.get_close_matches(str(location[0]), model.model_fields, n=1)
    return f"; did you mean {known[0]!r}?" if known else f"; known keys: {', '.join(model.model_fields)}"
