"""The configuration: YAML (or a PBG Python config) -> one frozen, typed `Config`."""

from graphmill.config.checking import Section, validated
from graphmill.config.reading import from_mapping, load, read_raw
from graphmill.config.schema import (
    Config,
    EntityConfig,
    Fraction,
    Name,
    PbgConfig,
    Positive,
    RelationConfig,
    Strings,
    TypeName,
)
from graphmill.config.yaml_text import parsed as parsed_yaml

__all__ = [
    "Config",
    "EntityConfig",
    "Fraction",
    "Name",
    "PbgConfig",
    "Positive",
    "RelationConfig",
    "Section",
    "Strings",
    "TypeName",
    "from_mapping",
    "load",
    "parsed_yaml",
    "read_raw",
    "validated",
]
