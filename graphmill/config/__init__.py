"""The configuration: YAML or a PBG Python config -> one frozen, typed `Config`; keys (`schema`),
defaults, what changes restart, consent to what a run.json names.
"""

from graphmill.config.consent import check_cluster
from graphmill.config.pbg_values import as_override, bare, from_python
from graphmill.config.plugins import NO_PLUGINS, Plugins
from graphmill.config.reading import from_mapping, load, no_run, place_now, read_named, read_raw, record_of
from graphmill.config.schema import Config, EntityConfig, PbgConfig, RelationConfig
from graphmill.config.section import Effect, Section, check_known, validated
from graphmill.config.values import Positive
from graphmill.config.yaml_text import apply_override
from graphmill.config.yaml_text import parsed as parsed_yaml
