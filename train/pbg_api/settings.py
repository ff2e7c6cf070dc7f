"""The configuration of a schema."""

from collections.abc import Mapping
from typing import Any

from pydantic import PrivateAttr

from graphmill.config import Config, from_mapping, from_python


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
