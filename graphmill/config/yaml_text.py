"""Texts of YAML: parsed safely, a key that occurs twice refused, lines of keys found, values changed.

A text means no more than its own length: aliases, which a few hundred bytes can nest to billions of values,
stand for at most `_MAX_REPEATED` of them, and never for what holds them.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

from graphmill.errors import ConfigError

_MAX_INTEGER_BITS = 128
_MAX_REPEATED = 10_000
_MAX_DEPTH = 50


def _wrong(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


class _Yaml(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, as YAML 1.2 has it (PyYAML asks for a dot)."""

    def get_single_node(self) -> yaml.Node | None:
        """Parse the text to nodes, and count what its aliases repeat."""
        root: yaml.Node | None = super().get_single_node()
        if root is not None:
            sizes: dict[yaml.Node, int] = {}
            repeated = _num_nodes(root, sizes) - len(sizes)
            if repeated > _MAX_REPEATED:
                most = f"at most {_MAX_REPEATED:,} keys and values"
                raise _wrong(root, f"expected aliases (*name) that repeat {most}, found {repeated:,}")
        return root

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Build a mapping; PyYAML alone lets the last of equal keys win in silence."""
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            other = first.setdefault((key.tag, key.value), key) if isinstance(key, yaml.ScalarNode) else key
            if other is not key:
                raise yaml.MarkedYAMLError(
                    f"the key {key.value!r} stands first", other.start_mark, "and again", key.start_mark
                )
        return node

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Build a number; refuse one with too many digits."""
        try:
            number = int(self.construct_yaml_int(node))
        except ValueError:
            number = 1 << _MAX_INTEGER_BITS
        if number.bit_length() > _MAX_INTEGER_BITS:
            found = f"{len(node.value)} digits"
            raise _wrong(node, f"expected at most {_MAX_INTEGER_BITS} bits, found {found}")
        return number


def _num_nodes(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Count the nodes below a node and itself, those of an alias each time; `sizes` keeps what is known."""
    if node not in sizes:
        sizes[node] = 0  # while it is counted
        items = [item for pair in node.value for item in pair] if isinstance(node, yaml.MappingNode) else ()
        if isinstance(node, yaml.SequenceNode):
            items = node.value
        sizes[node] = 1 + sum(_num_nodes(item, sizes) for item in items)
    if not sizes[node]:
        raise _wrong(node, "expected no alias inside of what it stands for")
    return sizes[node]


_Yaml.add_constructor("tag:yaml.org,2002:int", _Yaml.construct_integer)
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parsed(text: str, where: str) -> Any:
    """Parse YAML."""
    try:
        return yaml.load(text, _Yaml)
    except RecursionError as error:
        raise ConfigError(
            f"{where}: cannot be parsed as YAML: lists or mappings are nested too deep"
        ) from error
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:  # a date of month 13, a year 0
        raise ConfigError(f"{where}: cannot be parsed as YAML: {error}") from error


Place = tuple[str, ...]
"""Keys, and positions in lists from 0, that lead from the root of a text to a value."""


def lines(text: str) -> dict[Place, int]:
    """Number of the line, from 1, of each key and of each item of a list."""
    numbers: dict[Place, int] = {}

    def visit(node: yaml.Node, place: Place) -> None:
        if isinstance(node, yaml.MappingNode):
            children = [(key.value, key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = [(str(at), item, item) for at, item in enumerate(node.value)]
        else:
            return
        for name, start, value in children:
            if isinstance(name, str):  # a list can be a key, too
                numbers[*place, name] = start.start_mark.line + 1
                visit(value, (*place, name))

    if root := yaml.compose(text, _Yaml):
        visit(root, ())
    return numbers


def place(override: str) -> Place:
    """Split the key of `etl.tables[0].lhs=value`, or of `etl.tables.0.lhs`."""
    return tuple(re.sub(r"\[(\d+)\]", r".\1", override.partition("=")[0].strip()).split("."))


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one `key.path=value`; a number in the path (`relations[0].operator`) is a position in a list."""
    path, equals, text = override.partition("=")
    keys = place(path)
    if not equals or not all(keys) or len(keys) > _MAX_DEPTH:
        raise ConfigError(f"--set {override}: expected key.path=value")
    value = parsed(text, f"--set {override}")
    node: Any = raw
    types: Any = raw.get("entities") or None
    try:
        for key in keys[:-1]:
            if node is types and key not in types:
                raise LookupError  # not a new type, but a wrong name
            node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
        node[int(keys[-1]) if isinstance(node, list) else keys[-1]] = value
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"--set {override}: the configuration has no such place") from error


def as_yaml(value: Any) -> str:
    """Write a value as JSON that YAML reads, which has fewer characters and no surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() or sign > "\uffff" else f"\\u{ord(sign):04x}" for sign in text)


def shown(value: Any) -> str:
    """Write a value for a message: a string as it is."""
    return value if isinstance(value, str) else as_yaml(value)


def edited(text: str, changes: Mapping[str, Any], where: str) -> str:
    """Set each `key.path` of `changes` to its value; add the keys that are missing.

    A text that cannot be edited in place, as one with aliases, is written anew, without its comments.
    """
    wanted = parsed(text, where)
    changed = text
    for path, value in changes.items():
        apply_override(wanted, f"{path}={as_yaml(value)}")
        changed = _with(changed, tuple(path.split(".")), value)
    with suppress(ValueError):  # not YAML any more
        if parsed(changed, where) == wanted:
            return changed
    return yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)


def _with(text: str, place: Place, value: Any) -> str:
    node, rest = yaml.compose(text, _Yaml), place
    while rest and (inner := _child(node, rest[0])) is not None:
        node, rest = inner, rest[1:]
    if node is None:
        return text
    start, end = node.start_mark.index, node.end_mark.index
    if not rest:
        gap = " " if start == end else ""  # a key without a value
        return f"{text[:start]}{gap}{as_yaml(value)}{text[end:]}"
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return text[:start] + f"{{{_entry(rest, value)}}}" + text[end:]
    if len(rest) == len(place) and not node.flow_style:
        return f"{text.rstrip()}\n{_entry(rest, value)}\n"
    first = node.value[0][0].start_mark
    after = ", " if node.flow_style else "\n" + " " * first.column
    return text[: first.index] + _entry(rest, value) + after + text[first.index :]


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode) and name.isdecimal() and int(name) < len(node.value):
        item: yaml.Node = node.value[int(name)]
        return item
    return None


def _entry(place: Place, value: Any) -> str:
    key, *rest = place
    return f"{key}: {f'{{{_entry(tuple(rest), value)}}}' if rest else as_yaml(value)}"
