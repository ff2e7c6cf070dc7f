"""Inputs of the stage: the version of the checkpoint and the types that its settings choose."""

from graphmill.config import Config
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import ConfigError
from graphmill.trained import inputs
from graphmill.trained.inputs import Inputs


def find_inputs(config: Config, settings: RemapConfig) -> Inputs:
    """Find the version to remap and its raw ids.

    Raises:
        NotFoundError: there is no checkpoint, or no raw ids.
        ConfigError: the checkpoint lacks the requested version.
    """
    return inputs.find_inputs(config, settings.checkpoint_version, allow_non_finite=settings.allow_non_finite)


def select_types(config: Config, settings: RemapConfig) -> dict[str, int]:
    """Choose the entity types to remap; return their numbers of partitions.

    Raises:
        ConfigError: a requested type is not in the configuration.
    """
    for number, entity_type in enumerate(settings.entity_types or ()):
        if entity_type not in config.entities:
            raise ConfigError(
                f"remap.entity_types[{number}]: {entity_type!r} is not among the entities: "
                f"{', '.join(config.entities)}"
            )
    return {
        entity_type: entity.num_partitions
        for entity_type, entity in config.entities.items()
        if settings.entity_types is None or entity_type in settings.entity_types
    }
