"""Keys and values as PyTorch-BigGraph's own loader takes them, of any of its releases.

with_v1_names   camelCase, and the keys of January and February 2019 -> the keys of version 1
from_python     the same, and values of Python: members of enums, INSIDE_OUT, 0 and 1 for booleans
as_override     `-p key=value`, whose text the type of the key explains -> the same for --set
"""

import logging
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from graphmill.config.schema import PbgConfig
from graphmill.config.section import Section
from graphmill.config.yaml_text import as_yaml
from graphmill.errors import ConfigError, closest

_OLD_KEYS = {
    "outdir": "checkpoint_path",
    "load_path": "init_path",
    "metric": "comparator",
    "partition_order": "bucket_order",
}
_OLD_VALUES = {"affine_rhs": "affine", "logit": "logistic", "chained_symmetric_pairs": "affinity"}
_MODEL = "model"  # a name without effect: PBG's examples have 'fb15k_dynamic' and 'livejournal'
_TRUE = ("1", "y", "yes", "true", "on")
_FALSE = ("0", "n", "no", "false", "off")

log = logging.getLogger("graphmill")


def with_v1_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the names of PBG's version 1 in place of older ones."""
    filled = {_v1_name(key): value for key, value in raw.items()}
    if isinstance(filled.get("entities"), Mapping):
        filled["entities"] = {name: _snake_keys(entity) for name, entity in filled["entities"].items()}
    if isinstance(filled.get("relations"), Sequence) and not isinstance(filled["relations"], str):
        filled["relations"] = [_snake_keys(relation) for relation in filled["relations"]]
        _replace_all_rhs_negs(filled)
    if (label := filled.pop(_MODEL, None)) is not None:
        log.info("%s: %r has no effect, as in PyTorch-BigGraph; relations have operators", _MODEL, label)
    if filled.pop("num_dynamic_rels", 0):
        filled.setdefault("dynamic_relations", True)
    return filled


def from_python(raw: Mapping[str, Any], section: type[Section] = PbgConfig) -> dict[str, Any]:
    """Return a configuration of Python, or a part of one, with the names and values of version 1."""
    return dict(_from_python(section, with_v1_names(raw) if section is PbgConfig else _snake_keys(raw)))


def as_override(given: str) -> str:
    """Translate `-p key=value` of PBG's commands: `edge_paths=a,b` becomes `edge_paths=["a", "b"]`.

    The type of the key decides: lists are cut at commas, numbers and booleans are parsed, other text is taken
    as it is, quotes included.
    """
    path, equals, text = given.partition("=")
    if not equals:
        raise ConfigError(f"-p {given}: expected key=value")
    try:
        keys, kind = _v1_path(path.strip().split("."))
        value = _from_text(kind, text)
    except KeyError as error:
        close = closest(str(error.args[0]), PbgConfig.model_fields)
        hint = f"did you mean {close!r}?" if close else "use --set for keys of GraphMill"
        raise ConfigError(f"-p {given}: PyTorch-BigGraph has no such key; {hint}") from error
    except ValueError as error:
        raise ConfigError(f"-p {given}: {error}") from error
    return f"{'.'.join(keys)}={as_yaml(value)}"


def bare(kind: Any) -> Any:
    """Strip annotations and `None` from a type: `Annotated[int, Field(gt=0)] | None` is `int`."""
    if get_origin(kind) is Annotated:
        return bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [inner for inner in get_args(kind) if inner is not NoneType]
        return bare(others[0]) if len(others) == 1 else kind
    return kind


def _v1_path(path: Sequence[str]) -> tuple[list[str], Any]:
    """Return the keys of version 1 along a path of PBG's configuration, and the type of the last."""
    keys: list[str] = []
    kind: Any = PbgConfig
    for key in path:
        if _is_section(kind):
            key = _v1_name(key) if kind is PbgConfig else _snake(key)
            kind = kind.model_fields[key].annotation
        elif get_origin(kind) in (dict, tuple):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
        else:
            raise KeyError(key)
        kind = bare(kind)
        keys.append(key)
    return keys, kind


def _from_text(kind: Any, text: str) -> Any:
    if get_origin(kind) is tuple:
        return [_from_text(bare(get_args(kind)[0]), item) for item in text.split(",")]
    if kind is bool:
        value = _from_python(bool, text)
        if not isinstance(value, bool):
            raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}, found {text!r}")
        return value
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            raise ValueError(f"expected a number ({kind.__name__}), found {text!r}") from error
    return _from_python(kind, text)


def _from_python(kind: Any, value: Any) -> Any:
    """Return the value as YAML has it; what is of a wrong type stays as it is."""
    kind = bare(kind)
    if isinstance(value, Enum):
        value = value.name.lower()
    if isinstance(value, Mapping):
        if _is_section(kind):
            fields = kind.model_fields
            return {k: _from_python(fields[k].annotation, v) if k in fields else v for k, v in value.items()}
        if get_origin(kind) is dict:
            return {key: _from_python(get_args(kind)[1], inner) for key, inner in value.items()}
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return [_from_python(get_args(kind)[0], item) for item in value]
    if kind is bool:
        word = str(value).lower() if isinstance(value, str | int) else ""
        return True if word in _TRUE else False if word in _FALSE else value
    return _chosen(kind, value) if isinstance(value, str) else value


def _chosen(kind: Any, word: str) -> str:
    """Return the choice that a word means: INSIDE_OUT is inside_out. Choices may be open to other names."""
    is_open = get_origin(kind) in (Union, UnionType)
    literals = [inner for inner in (get_args(kind) if is_open else [kind]) if get_origin(inner) is Literal]
    choices = [choice for literal in literals for choice in get_args(literal)]
    if not choices or word in choices or (is_open and not word.isupper() and word not in _OLD_VALUES):
        return word
    low = word.lower()
    return next((choice for choice in choices if choice.lower() == low), _OLD_VALUES.get(low, word))


def _replace_all_rhs_negs(filled: dict[str, Any]) -> None:
    """Replace old PBG's `all_rhs_negs` of relations: with static relations, both losses were of the rhs."""
    relations = [relation for relation in filled["relations"] if isinstance(relation, dict)]
    old = [bool(relation.pop("all_rhs_negs", False)) for relation in relations]
    if not any(old):
        return
    if not filled.get("num_dynamic_rels") and not filled.get("dynamic_relations"):
        if not all(old):
            raise ConfigError(
                f"relations[{old.index(True)}].all_rhs_negs: expected in all relations or none, found both; "
                "it is all_negs with disable_lhs_negs; write all_negs, which replaces both sides"
            )
        filled["disable_lhs_negs"] = True
    for relation, has_all in zip(relations, old, strict=True):
        relation["all_negs"] = has_all


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _v1_name(key: Any) -> Any:
    return _OLD_KEYS.get(_snake(key), _snake(key))


def _snake(key: Any) -> Any:
    if not isinstance(key, str):
        return key
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), key)


def _snake_keys(mapping: Any) -> Any:
    return {_snake(key): value for key, value in mapping.items()} if isinstance(mapping, Mapping) else mapping
