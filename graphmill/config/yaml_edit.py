"""Changes values of a YAML text, and keeps its comments and its order."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from graphmill.config.reading import apply_override
from graphmill.config.yaml_text import Place, compose, parsed


def edited(text: str, changes: Mapping[str, Any], where: str) -> str:
    """Set each `key.path` of `changes` to its value; add the keys that are missing.

    A text that cannot be edited in place, as one with aliases, is written anew, without its comments.
    """
    wanted = parsed(text, where)
    changed = text
    for path, value in changes.items():
        apply_override(wanted, f"{path}={json.dumps(value)}")
        changed = _with(changed, tuple(path.split(".")), value)
    try:
        if parsed(changed, where) == wanted:
            return changed
    except ValueError:  # not YAML any more
        pass
    return yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)


def _with(text: str, place: Place, value: Any) -> str:
    node, rest = compose(text), place
    while rest and (inner := _child(node, rest[0])) is not None:
        node, rest = inner, rest[1:]
    if node is None:
        return text
    start, end = node.start_mark.index, node.end_mark.index
    if not rest:
        gap = " " if start == end else ""  # a key without a value
        return f"{text[:start]}{gap}{json.dumps(value)}{text[end:]}"
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
    return f"{place[0]}: {_flow(place[1:], value)}"


def _flow(place: Place, value: Any) -> str:
    return f"{{{_entry(place, value)}}}" if place else json.dumps(value)
