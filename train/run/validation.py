"""Early stopping by the MRR on a validation split: the best version becomes the committed one.

    checkpoint_path/
      validation.json     {split, epochs: [{epoch, version, mrr, hits@10}], best, ended}
      best/               the version with the best MRR so far, itself a checkpoint

Every `validate_every` epochs the committed version is ranked, filtered, on the edges of the split; on a
sample, always the same, where all would take more than `evaluate.budget` of those epochs' work. When the run
ends, by `patience` or by num_epochs, the best version is committed again. A kill in between is harmless: the
next run skips the steps that validation.json records.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

from graphmill import storage
from graphmill.ask.evaluate.inputs import obstacle_to_ranking
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError
from graphmill.vocab import TRAIN_SPLIT

FILE = "validation.json"
BEST = "best"
Rank = Callable[[Config], dict[str, Any]]

log = logging.getLogger("graphmill")


def reopen(config: Config) -> None:
    """Let a run that has ended continue from its best version: settings have changed since."""
    uri = storage.join(config.checkpoint_path, FILE)
    if storage.exists(uri):
        storage.write_json(uri, _parsed(uri) | {"ended": None}, indent=1)


def check_split(config: Config, coming: Collection[str] = ()) -> None:
    """Check that there are edges to validate on; other stages will write the folders `coming`."""
    split = config.train.validate_split
    if split is None or storage.absolute(path := config.split_path(split)) in coming:
        return
    if obstacle := obstacle_to_ranking(config, path):
        raise ConfigError(f"train.validate_split: {obstacle}; name another split, or none")


class Validation:
    """Decides when a run has trained enough epochs."""

    def __init__(self, config: Config, per_epoch: int, version: int, rank: Rank) -> None:
        """`per_epoch` iterations are an epoch; `version` is the committed one; `rank` evaluates a version."""
        self._config, self._per_epoch, self._rank = config, per_epoch, rank
        self.settings = config.train
        self._uri = storage.join(config.checkpoint_path, FILE)
        self._epochs: list[dict[str, Any]] = []
        self._ended: int | None = None  # num_epochs of the run that has ended
        check_split(config)
        if self.settings.validate_split == TRAIN_SPLIT:
            log.warning("training: validate_split: train: the MRR of edges that are trained on stops nothing")
        if self.settings.patience and not self.settings.validate_split:
            log.warning("training: train.patience stops nothing without train.validate_split")
        if version and self.settings.validate_split and storage.exists(self._uri):
            self._read(version)

    @property
    def ended(self) -> bool:
        """Tell whether the run has ended, with the best version committed."""
        return self._ended is not None and self._config.num_epochs <= self._ended

    def is_due(self, version: int) -> bool:
        """Tell whether `after` ranks the version, which must be committed then."""
        epoch, rest = divmod(version, self._per_epoch)
        if self.settings.validate_split is None or rest or not version or self.ended:
            return False
        known = any(entry["version"] == version for entry in self._epochs)
        return not known and (epoch == self._config.num_epochs or epoch % self.settings.validate_every == 0)

    def after(self, version: int) -> bool:
        """Validate a version if it is due; returns whether training should continue."""
        if self.ended:
            return False
        if self.is_due(version):
            self._validate(version // self._per_epoch, version)
        if not self._epochs or not self.settings.patience:
            return True
        return len(self._epochs) - 1 - self._epochs.index(self._best) < self.settings.patience

    def end(self, version: int) -> int:
        """Commit the best version again; returns its number."""
        if not self._epochs:
            return version
        if not self.ended:
            self._ended = self._config.num_epochs
            self._save()
        best = int(self._best["version"])
        if best != version:
            log.info("training: epoch %d was the best: back to version %d", self._best["epoch"], best)
        elif not storage.exists(storage.join(self._config.checkpoint_path, BEST)):
            return best  # the copy was deleted: only the committed version is left
        try:
            pbg.restore(self._config.checkpoint_path, BEST)
        except FormatError as error:
            raise FormatError(
                f"{error}; to end with version {version}, which is committed, delete {self._uri}"
            ) from error
        return best

    def figures(self) -> dict[str, Any]:
        """Figures for run.json."""
        return {"validation": self._epochs, "best_epoch": self._best["epoch"]} if self._epochs else {}

    @property
    def _best(self) -> dict[str, Any]:
        return max(self._epochs, key=lambda entry: (entry["mrr"], -entry["epoch"]))

    def _validate(self, epoch: int, version: int) -> None:
        changes = {"split": self.settings.validate_split, "checkpoint_version": version, "filtered": True}
        section = self._config.evaluate.model_copy(update=changes)
        # the budget is that of the epochs between two validations
        config = self._config.model_copy(update={"num_epochs": self.settings.validate_every})
        metrics = self._rank(config.with_section(section))["metrics"]
        entry = {"epoch": epoch, "version": version} | {key: metrics[key] for key in ("mrr", "hits@10")}
        self._epochs.append(entry)
        log.info("training: epoch %d: validation MRR %.4f", epoch, entry["mrr"])
        if self._best is entry:
            pbg.keep(self._config.checkpoint_path, version, BEST)
        self._save()

    def _save(self) -> None:
        state = {"split": self.settings.validate_split, "epochs": self._epochs, "best": self._best["epoch"]}
        storage.write_json(self._uri, state | {"ended": self._ended}, indent=1)

    def _read(self, version: int) -> None:
        state = _parsed(self._uri)
        if state["split"] != self.settings.validate_split:
            return  # the MRR of another split does not compare
        self._epochs, self._ended = state["epochs"], state["ended"]
        if not self.ended:  # later epochs are lost: the run continues from `version`
            self._epochs = [entry for entry in self._epochs if entry["version"] <= version]


def _parsed(uri: str) -> dict[str, Any]:
    try:
        content = storage.read_json(uri)
        epochs = [
            {"epoch": int(entry["epoch"]), "version": int(entry["version"])}
            | {key: float(entry[key]) for key in ("mrr", "hits@10")}
            for entry in content["epochs"]
        ]
        ended = None if content["ended"] is None else int(content["ended"])
        return {"split": content["split"], "epochs": epochs, "best": content["best"], "ended": ended}
    except (FormatError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{uri}: expected the MRR of each epoch, found something else: {error}") from error
