"""The configuration: YAML or a PBG Python config -> one frozen, typed `Config`."""

from graphmill.config.plugins import NO_PLUGINS, PluginList, Plugins
from graphmill.config.reading import from_mapping, load, place_now, read_raw
from graphmill.config.schema import (
    Config,
    Count,
    EntityConfig,
    Fraction,
    Name,
    PbgConfig,
    Positive,
    RelationConfig,
    Strings,
    TypeName,
)
from graphmill.config.section import Effect, Fixed, Neutral, Section, Tunable, validated
from graphmill.config.yaml_text import parsed as parsed_yaml

__all__ = [
    "NO_PLUGINS",
    "Config",
    "Count",
    "Effect",
    "EntityConfig",
    "Fixed",
    "Fraction",
    "Name",
    "Neutral",
    "PbgConfig",
    "PluginList",
    "Plugins",
    "Positive",
    "RelationConfig",
    "Section",
    "Strings",
    "Tunable",
    "TypeName",
    "from_mapping",
    "load",
    "parsed_yaml",
    "place_now",
    "read_raw",
    "validated",
]
