"""The settings and inputs that a checkpoint was trained with, and what has changed since.

checkpoint_path/config.json       settings, as PBG writes them
checkpoint_path/graphmill.json    inputs, the entities first; the version that ended (train/run/claim.py)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config, Effect, PbgConfig, RelationConfig, from_mapping
from graphmill.config.sections import SECTIONS
from graphmill.errors import ConfigError, FormatError, GraphMillError, NotFoundError
from graphmill.run import fingerprints
from graphmill.run.fingerprints import content_of, places

FILE = "graphmill.json"


@contextmanager
def changes_in_errors(config: Config) -> Iterator[None]:
    """Add changed settings that shape a checkpoint, and entities, to an error about it in the block."""
    try:
        yield
    except (FormatError, NotFoundError) as error:
        changes: list[str] = []
        with suppress(GraphMillError):  # the first error is the one to report
            saved, own = _shaping(saved_settings(config.checkpoint_path)), _shaping(config.pbg())
            changes = [*(fingerprints.changes(saved, own) if saved else []), *_changed_entities(config)]
        if not changes:
            raise
        raise type(error)(
            f"{error}\nchanged since {config.checkpoint_path} was trained: {'; '.join(changes)}; "
            "set this back, or train again"
        ) from error


def saved_settings(checkpoint_path: str) -> dict[str, Any]:
    """Read PBG's part of the configuration of a checkpoint's training; empty if there is none to be read."""
    try:
        saved = pbg.read_config(checkpoint_path)
        # A checkpoint may come from anybody: it names no plug-ins to run.
        return from_mapping({key: saved[key] for key in saved if key not in SECTIONS}).pbg()
    except (NotFoundError, FormatError, ConfigError):  # such as keys of another release: PBG does not look
        return {}


def check_entities(checkpoint_path: str, entity_path: str) -> None:
    """Refuse raw ids that are not those of the training: they would get vectors of others.

    A checkpoint that others wrote does not say its ids, and a folder without checksums has no digest.
    """
    then, now = entities_of(checkpoint_path), content_of(entity_path)
    if None in (then, now) or then == now:
        return
    kept = [folder for folder in storage.moved_aside(entity_path) if content_of(folder) == then]
    remedy = f"set entity_path to {kept[-1]}, which has the ids of the training" if kept else "restore them"
    raise FormatError(
        f"{checkpoint_path} was trained with other ids or relations than {entity_path} has now: they would "
        f"get vectors of others. Train again, or {remedy}"
    )


def entities_of(checkpoint_path: str) -> str | None:
    """The digest of the raw ids that a checkpoint, or the one that it is preserved in, was trained with."""
    inputs = (_said_by(checkpoint_path) or _said_by(storage.parent(checkpoint_path))).get("inputs")
    entities = inputs[0] if isinstance(inputs, list) and inputs else None
    return entities.get("content") if isinstance(entities, dict) else None


def is_ended(checkpoint_path: str, version: int) -> bool:
    """Tell whether training has ended with this version; so has that of a preserved epoch, and of others."""
    said = _said_by(checkpoint_path)
    return not said or storage.read_marker(checkpoint_path) is not None or said.get("ended") == version


def _said_by(checkpoint_path: str) -> dict[str, Any]:
    """Read the file of a checkpoint; empty if others wrote the checkpoint."""
    uri = storage.join(checkpoint_path, FILE)
    content = storage.read_if_there(uri)
    return {} if content is None else storage.json_in(content, uri)


def _shaping(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings with which a checkpoint cannot continue if they change."""
    effects, of_relation = PbgConfig.effects(), RelationConfig.effects()
    chosen = {key: settings[key] for key in settings if effects.get(key) is Effect.FIXED}
    relations = [
        {key: relation[key] for key in relation if of_relation.get(key) is Effect.FIXED and key != "name"}
        for relation in chosen.get("relations", [])
    ]
    return chosen | ({"relations": relations} if relations else {})


def _changed_entities(config: Config) -> list[str]:
    inputs = _said_by(config.checkpoint_path).get("inputs")
    now = fingerprints.describe_inputs([config.entity_path])
    if not isinstance(inputs, list) or places(inputs[:1]) != places(now):
        return []
    return fingerprints.differences(
        config, {"inputs": inputs[:1]}, {"inputs": now}, trained_s(config.checkpoint_path)
    )


def trained_s(checkpoint_path: str) -> float | None:
    """Return when the last version of a checkpoint was committed, in seconds since 1970."""
    status = storage.status(storage.join(checkpoint_path, pbg.VERSION_FILE))
    return status.mtime_ns / 1e9 if status else None
