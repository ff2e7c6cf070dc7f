"""PyTorch-BigGraph's schemas, as attrs classes made of the configuration's own classes.

A schema is checked when it is made: by `from_dict`, its constructor, or `attr.evolve`. The messages are those
of a configuration. What programs fill in later may be missing until then: entity_path and edge_paths.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, ClassVar, Self, get_args, get_origin

import attr
from pydantic import PrivateAttr

from graphmill.config import (
    Config,
    EntityConfig,
    PbgConfig,
    RelationConfig,
    Section,
    bare,
    from_mapping,
    from_python,
    validated,
)
from graphmill.errors import ConfigError

Operator = StrEnum(
    "Operator", ["NONE", "DIAGONAL", "TRANSLATION", "LINEAR", "AFFINE", "COMPLEX_DIAGONAL", "ROTATION"]
)
Comparator = StrEnum("Comparator", ["DOT", "COS", "L2", "SQUARED_L2"])
LossFunction = StrEnum("LossFunction", ["RANKING", "LOGISTIC", "SOFTMAX"])
BucketOrder = StrEnum("BucketOrder", ["RANDOM", "AFFINITY", "INSIDE_OUT", "OUTSIDE_IN"])

_ENUMS = {"bucket_order": BucketOrder}  # PBG's other names are texts: plug-ins extend them
_FILLED_IN_LATER = {"entity_path": "later", "edge_paths": ["later"]}


class DeepTypeError(ConfigError, TypeError, ValueError):
    """A wrong value of a schema, also for programs that catch PBG's own errors."""


class Schema:
    """Base of the three schemas."""

    __slots__ = ()
    NAME: ClassVar[str]
    section: ClassVar[type[Section]]

    def __attrs_post_init__(self) -> None:
        _check(self.section, self.to_dict())

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Make a schema of a mapping, the schemas inside it too; keys may be PBG's old ones.

        Raises:
            DeepTypeError: a key is unknown or missing, or a value does not fit.
        """
        if not isinstance(raw, Mapping):
            raise DeepTypeError(f"{cls.NAME}: expected a mapping, found {type(raw).__name__}")
        try:
            values = from_python(raw, cls.section)
        except ConfigError as error:
            raise DeepTypeError(str(error)) from error
        _check(cls.section, values)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All keys, in PBG's order, as plain JSON types."""
        attrs: Any = self
        return attr.asdict(attrs, value_serializer=lambda _, __, value: _plain(value))

    @classmethod
    def help(cls) -> list[str]:
        """Lines that describe all keys, those of the schemas inside first."""
        fields = cls.section.model_fields
        inside = dict.fromkeys(part for field in fields.values() if (part := _schema_in(field.annotation)))
        lines = [line for part in inside for line in part.help()] + [f"{cls.NAME}:", ""]
        for key, field in fields.items():
            kind = "(" + "|".join(_ENUMS[key]) + ")" if key in _ENUMS else _type(field.annotation)
            lines += [f"  {key} ({kind})", f"\t{field.description}"]
        return [*lines, "", ""]


def _made(name: str, section: type[Section]) -> Any:
    """Make the attrs class `name` with the keys and defaults of `section`."""
    attributes = {}
    for key, field in section.model_fields.items():
        default = attr.NOTHING if field.is_required() else _ENUMS.get(key, lambda same: same)(field.default)
        help_text = {"help": field.description}
        attributes[key] = attr.ib(
            default=default, converter=_converter(key, field.annotation), metadata=help_text
        )
    made: Any = attr.make_class(name, attributes, bases=(Schema,), kw_only=True, slots=True, frozen=True)
    made.__module__ = __name__  # for pickles
    made.NAME, made.section = name.removesuffix("Schema").lower(), section
    return made


def _converter(key: str, annotation: Any) -> Any:
    """Return the function that takes a value as PBG's loader does, and makes schemas of mappings."""
    schema, origin = _schema_in(annotation), get_origin(bare(annotation))

    def made(value: Any) -> Any:
        return schema.from_dict(value) if schema and isinstance(value, Mapping) else value

    def convert(value: Any) -> Any:
        if origin is dict and isinstance(value, Mapping):
            return {name: made(part) for name, part in value.items()}
        if origin is tuple and isinstance(value, list | tuple):
            return [made(part) for part in value]
        if key not in _ENUMS:
            return value
        word = value.name.lower() if isinstance(value, Enum) else value
        return next((choice for choice in _ENUMS[key] if choice == str(word).lower()), value)

    return convert


def _check(section: type[Section], content: Mapping[str, Any]) -> None:
    """Check the content of a schema; relations may share a name until it is used, as in PBG."""
    checked = dict(content)
    if section is PbgConfig:
        checked |= {key: value for key, value in _FILLED_IN_LATER.items() if not checked.get(key, True)}
        relations = checked.get("relations")
        if isinstance(relations, list) and all(isinstance(relation, Mapping) for relation in relations):
            checked["relations"] = list(_with_own_names(relations))
    try:
        validated(section, checked)
    except ConfigError as error:
        raise DeepTypeError(str(error)) from error


def _with_own_names(relations: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    seen = set()
    for number, relation in enumerate(relations):
        name = str(relation.get("name"))
        yield {**relation, "name": f"{name} {number}"} if name in seen else relation
        seen.add(name)


def _plain(value: Any) -> Any:
    return value.name.lower() if isinstance(value, Enum) else value


def _schema_in(annotation: Any) -> Any:
    kind = bare(annotation)
    inner = bare(get_args(kind)[0 if get_origin(kind) is tuple else -1]) if get_args(kind) else None
    return _SCHEMAS.get(inner)


def _type(annotation: Any) -> str:
    """Name a type as PBG's help does: `?float`, `[str]`, `{str: entity}`."""
    kind = bare(annotation)
    optional = "?" if type(None) in get_args(annotation) else ""
    if schema := _SCHEMAS.get(kind):
        return f"{optional}{schema.NAME}"
    if get_origin(kind) is dict:
        key, value = map(_type, get_args(kind))
        return f"{optional}{{{key}: {value}}}"
    if get_origin(kind) is tuple:
        return f"{optional}[{_type(get_args(kind)[0])}]"
    return optional + (kind.__name__ if isinstance(kind, type) else "str")


_SCHEMAS: dict[Any, Any] = {}
EntitySchema = _SCHEMAS[EntityConfig] = _made("EntitySchema", EntityConfig)
RelationSchema = _SCHEMAS[RelationConfig] = _made("RelationSchema", RelationConfig)
ConfigSchema = _made("ConfigSchema", PbgConfig)
ConfigSchema.entity_dimension = PbgConfig.entity_dimension


class _AsGiven(Config):
    """A configuration whose PBG part is written as given, with the keys of any release of PBG."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def pbg(self) -> dict[str, Any]:
        return self._given


def settings_of(config: Any) -> Config:
    """Make our configuration of a schema, ours or PBG's own, or of a mapping like its to_dict()."""
    given = from_python(config if isinstance(config, Mapping) else config.to_dict())
    ours = from_mapping(given | {"train": {"on_change": "resume"}})
    settings = _AsGiven.model_construct(**dict(ours))  # validated already
    settings._given = given
    return settings
