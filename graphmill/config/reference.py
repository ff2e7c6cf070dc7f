"""The reference of all keys, made from their classes: a JSON schema, and a page of Markdown."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from graphmill.config import defaults
from graphmill.config.schema import Config, PbgConfig
from graphmill.config.section import Effect, Section, section_in
from graphmill.config.sections import SECTIONS

Schema = dict[str, Any]

# Folders under `output`, unless they are set.
_UNDER_OUTPUT = ("entity_path", "edge_paths", "edge_root", "checkpoint_path", "embedding_path")

# Defaults that depend on the data or on other keys, in words.
_IN_WORDS = {
    **dict.fromkeys(defaults.RECOMMENDATIONS, "by the recipe"),
    "regularization_coef": "by the recipe and the graph's density",
    "num_epochs": "by the number of edges",
    "batch_size": "by the number of edges",
    "num_partitions": "by the number of ids",
    "operator": "by the number of relations",
    "all_negs": "by the number of edges",
}

_OF_ITS_KEYS = "its keys'"

_INTRODUCTION = """\
# Configuration

All keys of a YAML configuration. `graphmill schema --format markdown` prints this page. `graphmill schema`
prints the JSON schema, with which editors check and complete a configuration. What depends on the data, or on
the recipe of training that suits them: [defaults](../how_to/choosing.md#defaults).

A YAML file that leaves a key out has GraphMill's default. Where PyTorch-BigGraph has another one, the page
has it in brackets: Python configurations have PyTorch-BigGraph's defaults, and YAML with `defaults: pbg`.

The column `effect` tells what becomes of finished and begun work when the value of a key changes:

| effect | the key |
| --- | --- |
""" + "".join(f"| {effect.name.lower()} | {effect.value} |\n" for effect in Effect)


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> Schema:
    """JSON schema (2020-12) of a configuration in YAML."""
    schema = Config.model_json_schema(schema_generator=_Untitled)
    schema["required"] = [
        key for key in schema["required"] if key not in _UNDER_OUTPUT and key not in defaults.OWN
    ]
    entity = schema["$defs"]["EntityConfig"]
    del entity["required"]
    entity["properties"]["num_partitions"]["anyOf"] = [
        {"const": defaults.AUTO},
        {"type": entity["properties"]["num_partitions"].pop("type")},
    ]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def markdown() -> str:
    """Page of all keys: type, default, effect, meaning."""
    own = [name for name in Config.model_fields if name not in PbgConfig.model_fields]
    parts = [
        _INTRODUCTION,
        _table("Keys of PyTorch-BigGraph", Config, list(PbgConfig.model_fields)),
        _table("Keys of GraphMill", Config, own),
    ]
    for path, model in _inner("", Config):
        parts.append(_table(f"`{path}`", model, list(model.model_fields)))
    return "\n".join(parts)


def _inner(path: str, model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, field in model.model_fields.items():
        inner = section_in(field.annotation)
        if inner:
            steps: dict[Any, str] = {tuple: "[]", dict: ".NAME"}
            place = path + name + steps.get(get_origin(field.annotation), "")
            yield place, inner
            yield from _inner(f"{place}.", inner)


def _table(title: str, model: type[Section], names: list[str]) -> str:
    schemas = model.model_json_schema()["properties"]
    lines = [
        f"## {title}",
        "",
        "| key | type | default | effect | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        field = model.model_fields[name]
        effect = _OF_ITS_KEYS if name in SECTIONS else model.effects().get(name, Effect.NEUTRAL).name.lower()
        in_words = _IN_WORDS.get(f"{model.key}.{name}".lstrip("."))
        default = _default(name, field, _own(model).get(name), in_words)
        cells = (f"`{name}`", _type(schemas[name]), default, effect, field.description or "")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _own(model: type[Section]) -> Mapping[str, Any]:
    """GraphMill's own defaults of the keys of `model`, where PBG has others."""
    of_top_level = {**defaults.OWN, "defaults": "graphmill"} if model is Config else {}
    return defaults.OWN_TRAIN if model.key == "train" else of_top_level


def _default(name: str, field: FieldInfo, own: Any, in_words: str | None) -> str:
    if name in _UNDER_OUTPUT:
        return "under `output`"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        return _OF_ITS_KEYS
    of_pbg = "required" if field.is_required() else _json(value)
    if not in_words and (own is None or _json(own) == of_pbg):
        return of_pbg
    return f"{in_words or _json(own)} ({of_pbg})"


def _json(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False, default=list)}`"


def _type(schema: Schema) -> str:
    match schema:
        case {"anyOf": choices}:
            return " or ".join(dict.fromkeys(map(_type, choices)))
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"$ref": _}:
            return "mapping"
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "patternProperties": values}:
            return f"mapping of names to {_type(next(iter(values.values())))}"
        case {"type": "object"}:
            return "mapping"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]}" for key, sign in signs.items() if schema.get(key, 2**63) < 2**63]
    return f"{schema['type']} {', '.join(bounds)}".rstrip()
