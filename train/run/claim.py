"""Decides whether a run continues with the checkpoint at checkpoint_path.

    checkpoint_path/graphmill.json
      settings, train, inputs     settings of the training that change the result, and inputs
      num_edge_paths              number of inputs, after the entities, that are edges to train on
      ended                       version that training has ended with, if it has
      history                     [{from_version, settings, train}]: settings from each version on

If the configuration differs, `train.on_change` decides: restart, resume or refuse. A checkpoint of other
settings is never deleted: it is moved aside under a name of its own. A checkpoint without graphmill.json is
PBG's own: it is resumed, as PBG does, unless `train.on_change` is set.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config, Effect, PbgConfig, RelationConfig, Section
from graphmill.config.defaults import AUTO
from graphmill.config.sections.train import TrainConfig
from graphmill.errors import ConfigError, FormatError
from graphmill.formats.edge_buckets.origins import read_origins
from graphmill.run import fingerprints
from graphmill.run.fingerprints import content_of
from graphmill.run.lock import Claim
from graphmill.run.trained_with import FILE, saved_settings, trained_s
from train.run import ensemble, validation
from train.tables import given_vectors

log = logging.getLogger("graphmill")


Former = tuple[bool, dict[str, Any]]
"""Whether an earlier training was ours; content of graphmill.json, or PBG's `settings` of config.json."""


def input_uris(config: Config) -> list[str]:
    """Return the files and folders that the checkpoint of `config` is trained with."""
    inputs = [config.entity_path, *config.edge_paths, *given_vectors.inputs_of(config)]
    if split := config.train.validate_split:
        inputs.append(config.split_path(split))
    return inputs


def trained_with(config: Config) -> dict[str, Any]:
    """Settings and inputs that the checkpoint of `config` is trained with."""
    return _settings(config) | {"inputs": fingerprints.describe_inputs(input_uris(config))}


def check_claim(config: Config, coming: Collection[str]) -> None:
    """Check, before any file changes, whether training can start; stages before it write `coming`."""
    validation.check_split(config, coming)
    if pbg.read_version(config.checkpoint_path):
        _changes(config, _former(config), _settings(config))


def claim_checkpoint(config: Config) -> list[str]:
    """Make sure that training can resume the checkpoint at checkpoint_path, or move the checkpoint aside.

    Returns the changed settings, if the checkpoint continues with others. Raises ConfigError if
    `train.on_change` forbids to start anew, and FormatError if edges belong to other entities.
    """
    path = config.checkpoint_path
    _check_edges(config)
    ours = trained_with(config)
    version = pbg.read_version(path)
    if version:
        is_ours, content = former = _former(config)
        changes, resumes = _changes(config, former, ours)
        if resumes:
            whose = "" if is_ours else ", which is not ours"
            log.info("training: resuming version %d of %s%s", version, path, whose)
            if changes:
                log.info("training: from version %d on, this changes: %s", version, "; ".join(changes))
                validation.reopen(config)
            if changes or not is_ours:
                _write(config, ours, content, version)
            return changes
        _start_anew(path, f"was trained with something else: {'; '.join(changes)}")
    elif late := [number for number in pbg.versions_of(path) if number > 1]:
        # no kill of a first version leaves these
        _start_anew(path, f"holds version {max(late)}, and no checkpoint_version.txt")
    # A run that was killed before its first commit may have had another configuration.
    storage.delete(storage.join(path, pbg.STATS_FILE))
    _write(config, ours, {"history": []}, 0)
    return []


@contextmanager
def claimed(config: Config, claim: Claim) -> Iterator[list[str]]:
    """Claim the checkpoint; one that is moved aside comes back if the block fails before a version."""
    path, aside = config.checkpoint_path, storage.name_aside(config.checkpoint_path)
    try:
        yield claim_checkpoint(config)
    except Exception:
        claim.check()
        trained = (pbg.read_version(model.checkpoint_path) for model in ensemble.members_of(config))
        if storage.exists(aside) and not any(trained):
            storage.delete(path)
            storage.move(aside, path)
            log.info("training: nothing was trained in its place: %s is %s again", aside, path)
        raise


def end_training(checkpoint_path: str) -> None:
    """Record that training has ended with the committed version, which readers may take from now on."""
    uri = storage.join(checkpoint_path, FILE)
    _save(checkpoint_path, storage.read_json(uri) | {"ended": pbg.read_version(checkpoint_path)})


def _check_edges(config: Config) -> None:
    """Refuse edges of other ids than the entities: etl was stopped between them, or runs were mixed."""
    now = content_of(config.entity_path)
    for path in config.edge_paths:
        origins = read_origins(path)
        if origins and now and origins.entities != now:
            raise FormatError(
                f"{path} has edges of other ids than those in {config.entity_path}; run etl again"
            )


def moved_aside(checkpoint_path: str) -> list[str]:
    """List folders beside and in the checkpoint that were moved aside."""
    names = (entry.uri for entry in storage.list_dir(checkpoint_path) if entry.is_dir)
    return [*storage.moved_aside(checkpoint_path), *filter(storage.is_moved_aside, names)]


def _settings(config: Config) -> dict[str, Any]:
    return {"settings": config.result_settings(), "train": config.train.result_settings()}


def _former(config: Config) -> Former:
    path = config.checkpoint_path
    uri = storage.join(path, FILE)
    if storage.exists(uri):
        content = storage.read_json(uri)
        kinds = {"settings": dict, "train": dict, "inputs": list, "num_edge_paths": int, "history": list}
        wrong = [key for key, kind in kinds.items() if not isinstance(content.get(key, kind()), kind)]
        for entry in [] if wrong else content.get("history", []):
            if not (isinstance(entry, dict) and isinstance(entry.get("from_version"), int)):
                wrong = ["history"]
        if wrong:
            raise FormatError(
                f"{uri}: {wrong[0]}: expected what a training writes, found something else; correct it, or "
                "name another checkpoint_path"
            )
        return True, content
    theirs = saved_settings(path)
    return False, {"settings": _known_to_pbg(theirs)} if theirs else {}


def _known_to_pbg(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings that change the result and are in PBG's config.json; relations have no names."""
    unknown = ("num_edge_chunks", "max_edges_per_chunk", "seed")  # chunks are counted in its models
    effects = PbgConfig.effects()
    known = {
        key: settings[key] for key in effects if effects[key] is not Effect.NEUTRAL and key not in unknown
    }
    relations = [{key: entry[key] for key in entry if key != "name"} for entry in settings["relations"]]
    return known | {"relations": relations}


def _changes(config: Config, former: Former, ours: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the differences, and whether training resumes the checkpoint."""
    is_ours, content = former
    before = {part: content[part] for part in ours if part in content}
    joins = {"train": {"ensemble": config.train.ensemble}} if config.train.ensemble > 1 else {}
    now = dict(ours) if is_ours else {"settings": _known_to_pbg(ours["settings"])} | joins
    made_s = trained_s(config.checkpoint_path)
    changes = fingerprints.differences(config, before, now, made_s) if is_ours or before or joins else []
    longer = _more_epochs(config)
    if not (changes or longer):
        return [], True
    num_edge_paths = content.get("num_edge_paths", len(config.edge_paths))
    then, ours_now = _what(before, num_edge_paths), _what(now, len(config.edge_paths))
    lasting = [*fingerprints.differences(config, then, ours_now, made_s), *longer]
    changes += longer
    on_change = config.train.on_change
    if not is_ours and "on_change" not in config.train.model_fields_set:
        on_change = "resume"
    if on_change == "refuse" or (on_change == "resume" and lasting):
        raise ConfigError(_refusal(config.checkpoint_path, on_change, lasting or changes))
    return changes, on_change == "resume"


def _more_epochs(config: Config) -> list[str]:
    """Tell of epochs beyond num_epochs that the checkpoint has been trained: none takes these back."""
    path = config.checkpoint_path
    last = pbg.read_model_iteration(path, pbg.read_version(path))
    is_open = config.chosen.get("num_epochs") == AUTO  # the data decide, later
    if is_open or last is None or last.epoch_idx < config.num_epochs:
        return []
    return [f"num_epochs: {last.epoch_idx + 1} -> {config.num_epochs}"]


def _refusal(path: str, on_change: str, changes: list[str]) -> str:
    refused = f"train.on_change: {on_change}: the checkpoint {path} was trained with something else"
    if on_change == "resume":
        refused += ", which decides what is learned"
        others = "--set train.on_change=restart, which moves it aside and starts anew"
    else:
        others = (
            "--set train.on_change=resume to go on where these decide how it is learned, or restart to move "
            "it aside and start anew"
        )
    return f"{refused}: {'; '.join(changes)}. Set this back, name another checkpoint_path, or {others}"


def _what(part: Mapping[str, Any], num_edge_paths: int) -> dict[str, Any]:
    """Select the settings and inputs that must not change; unknown keys belong to them."""

    def chosen(settings: Mapping[str, Any], model: type[Section]) -> dict[str, Any]:
        effects = model.effects()
        return {key: settings[key] for key in settings if effects.get(key, Effect.FIXED) is Effect.FIXED}

    settings = chosen(part.get("settings", {}), Config)
    relations = [chosen(relation, RelationConfig) for relation in settings.get("relations", [])]
    return {
        "settings": settings | {"relations": relations},
        "train": chosen(part.get("train", {}), TrainConfig),
        "inputs": part.get("inputs", [])[: 1 + num_edge_paths],
    }


def _start_anew(path: str, reason: str) -> None:
    log.info("training: %s %s", path, reason)
    log.info("training: it is moved to %s; starting anew", pbg.move_aside(path))


def _write(config: Config, ours: dict[str, Any], former: Mapping[str, Any], version: int) -> None:
    # A checkpoint without a history has never changed.
    only = {"from_version": 0} | {part: former[part] for part in ("settings", "train") if part in former}
    # Entries from `version` on are of versions that no longer exist.
    entries = [entry for entry in former.get("history", [only]) if entry["from_version"] < version]
    entries.append({"from_version": version, "settings": ours["settings"], "train": ours["train"]})
    kept = {key: former[key] for key in ("ended",) if key in former}
    _save(
        config.checkpoint_path, ours | kept | {"num_edge_paths": len(config.edge_paths), "history": entries}
    )


def _save(checkpoint_path: str, content: Mapping[str, Any]) -> None:
    storage.write_json(storage.join(checkpoint_path, FILE), content, indent=1, sort_keys=True)
