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
    "read_raw",
    "validated",
]
