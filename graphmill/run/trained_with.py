"""The settings and inputs that a checkpoint was trained with, and what has changed since.

checkpoint_path/config.json       settings, as PBG writes them
checkpoint_path/graphmill.json    inputs (train/run/claim.py)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphmill import storage
from graphmill.config import Config, Effect, PbgConfig, RelationConfig, from_mapping
from graphmill.config.stages import SECTIONS
from graphmill.errors import ConfigError, FormatError, GraphMillError, NotFoundError
from graphmill.formats import pbg_checkpoint
from graphmill.run import record

FILE = "graphmill.json"


@contextmanager
def changes_in_errors(config: Config) -> Iterator[None]:
    """Add what has changed since the training to an error about the checkpoint in the block.

    Raises:
        FormatError: the error, with the changed settings: `dimension: 100 -> 64`.
        NotFoundError: likewise.
    """
    try:
        yield
    except (FormatError, NotFoundError) as error:
        changes = changes_since_training(config)
        if not changes:
            raise
        raise type(error)(
            f"{error}\nchanged since {config.checkpoint_path} was trained: {'; '.join(changes)}; "
            "set this back, or train again"
        ) from error


def changes_since_training(config: Config) -> list[str]:
    """List the settings that shape a checkpoint, and the entities, that have changed since its training."""
    try:
        saved, own = _shaping(saved_settings(config.checkpoint_path)), _shaping(config.pbg())
        return [*(record.changes(saved, own) if saved else []), *_changed_entities(config)]
    except GraphMillError:  # the first error is the one to report
        return []


def saved_settings(checkpoint_path: str) -> dict[str, Any]:
    """Read PBG's part of the configuration of a checkpoint's training; empty if there is none to be read."""
    try:
        saved = pbg_checkpoint.read_config(checkpoint_path)
        # A checkpoint may come from anybody: it names no plug-ins to run.
        return from_mapping({key: saved[key] for key in saved if key not in SECTIONS}).pbg()
    except (NotFoundError, FormatError, ConfigError):  # such as keys of another release: PBG does not look
        return {}


def _shaping(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings with which a checkpoint cannot continue if they change."""
    effects, of_relation = PbgConfig.effects(), RelationConfig.effects()
    chosen = {key: settings[key] for key in settings if effects.get(key) is Effect.FIXED}
    relations = [
        {key: each[key] for key in each if of_relation.get(key) is Effect.FIXED and key != "name"}
        for each in chosen.get("relations", [])
    ]
    return chosen | ({"relations": relations} if relations else {})


def _changed_entities(config: Config) -> list[str]:
    uri = storage.join(config.checkpoint_path, FILE)
    if not storage.exists(uri):
        return []
    inputs = storage.read_json(uri).get("inputs")
    now = record.describe_inputs([config.entity_path])
    if not isinstance(inputs, list) or record.places(inputs[:1]) != record.places(now):
        return []
    return record.differences(
        config, {"inputs": inputs[:1]}, {"inputs": now}, trained_s(config.checkpoint_path)
    )


def trained_s(checkpoint_path: str) -> float | None:
    """Return when the last version of a checkpoint was committed, in seconds since 1970."""
    found = storage.status(storage.join(checkpoint_path, pbg_checkpoint.VERSION_FILE))
    return found.mtime_ns / 1e9 if found else None
