"""Options of a command, made of the keys of a section: an option is written once, as a key.

Options of a command line that others would leave without effect are refused.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from graphmill.config.section import SIZE, Flag, Section
from graphmill.config.values import bytes_of

LEAST_BYTES = 16 << 20

Command = Callable[..., Any]


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size_bytes = value if isinstance(value, int) else bytes_of(value)
        except ValueError:
            size_bytes = 0
        if size_bytes < LEAST_BYTES:
            self.fail(f"expected a size of 16MiB or more, such as 512MiB, found {value!r}", param, ctx)
        return size_bytes


class ColumnOption(click.ParamType[str | int]):
    """A column of a table: its name, or its number from 0."""

    name = "column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Read a word of a command line."""
        return int(value) if str(value).isdecimal() else str(value)


def section_options(
    model: type[Section], *, without: Collection[str] = (), overriding: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Add an option for each key of a section, but some; the command gets the values under their keys.

    The keys `overriding` alone override a configuration: what is not given is None.
    """
    schema = model.model_json_schema()

    def with_options(command: Command) -> Command:
        for key, field in reversed(model.model_fields.items()):
            if key not in without and (key in overriding or not overriding):
                flag = next((mark for mark in field.metadata if isinstance(mark, Flag)), Flag())
                form = schema["properties"][key] | ({"default": None} if overriding else {})
                command = _option(key, flag, form, schema.get("$defs", {}))(command)
        return command

    return with_options


def _option(key: str, flag: Flag, schema: Any, definitions: Any) -> Callable[[Command], Command]:
    default = schema.get("default")
    kind, *others = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    kind = definitions[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
    form: dict[str, Any] = {"type": ColumnOption() if others else _type(kind), "default": default}
    if "default" not in schema:
        form = {"type": _type(kind), "required": True}
    elif kind.get("type") == "array":
        form = {"multiple": True}
    elif flag.metavar == SIZE:
        form = {"type": _Size(), "default": f"{default >> 20}MiB", "show_default": True}
    elif kind.get("type") == "boolean" and "/" not in flag.names:
        form |= {"is_flag": True, "flag_value": not default}
    else:
        form |= {"show_default": default not in (None, "") and default is not False}
    names = flag.names or f"--{key.replace('_', '-')}"
    told = schema["description"].replace("null:", "default:" if default is None else "null:")
    return click.option(names, key, metavar=flag.metavar, help=told, **form)


def _type(schema: Any) -> click.ParamType[Any] | type:
    if "enum" in schema:
        return click.Choice(schema["enum"])
    least, above, most = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    bounds: Any = {"min": above if least is None else least, "max": most, "min_open": above is not None}
    kinds: Any = {"boolean": bool, "integer": click.IntRange(**bounds), "number": click.FloatRange(**bounds)}
    found: click.ParamType[Any] | type = kinds.get(schema.get("type"), str)
    return found


def check_options(excluded: Mapping[str, Sequence[str]], needed: Mapping[str, str]) -> None:
    """Refuse options of this command line that others would leave without effect.

    Args:
        excluded: an option, and those that cannot be used with it.
        needed: an option, and the one without which it has no effect; such as `--format word2vec` too.
    """
    context = click.get_current_context()
    given: set[str] = set()
    for param in context.command.params:
        value = context.params.get(param.name or "")
        name = (param.secondary_opts if value is False and param.secondary_opts else param.opts)[0]
        given.add(f"{name} {value}")
        if context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            given.add(name)
    for option, others in excluded.items():
        if option in given and (clashing := [other for other in others if other in given]):
            raise click.UsageError(f"{option}: cannot be used with {', '.join(clashing)}")
    for option, other in needed.items():
        if option in given and other not in given:
            raise click.UsageError(f"{option}: has no effect without {other}")
