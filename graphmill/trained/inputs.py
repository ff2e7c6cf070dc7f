"""A trained run: a committed version of the checkpoint, and the raw ids of its rows.

checkpoint/
    checkpoint_version.txt      the latest version, or:
    epoch_{N}/                  a preserved version, itself a checkpoint
entities/
    entity_count_{type}_{partition}.txt
    entity_index/               raw ids in the format of the stage etl, or:
    entity_names_{type}_{partition}.json    raw ids in the format of PyTorch-BigGraph's importer
"""

import re
from dataclasses import dataclass
from typing import Literal

from graphmill import storage
from graphmill.checkpoints import Checkpoint, open_checkpoint, recognise
from graphmill.config import Config
from graphmill.errors import ConfigError, NotFoundError
from graphmill.formats import entity_counts, entity_index, pbg_checkpoint

IdSource = Literal["entity_index", "entity_names"]  # the files that hold the raw ids

_PRESERVED = re.compile(r"^epoch_[0-9]+$")


@dataclass(frozen=True)
class Inputs:
    """One version of a checkpoint, and the raw ids of its rows; small, because every task receives it."""

    entity_path: str
    id_source: IdSource
    checkpoint_path: str
    version: int
    """0 for a format with one version only."""
    allow_non_finite: bool = False

    def open_checkpoint(self, *, allow_non_finite: bool) -> Checkpoint:
        """Open the version."""
        return open_checkpoint(
            self.checkpoint_path,
            version=self.version or None,
            entity_path=self.entity_path,
            allow_non_finite=allow_non_finite,
        )

    def ids_uri(self, entity_type: str, partition: int) -> str:
        """The file with the raw ids of one partition."""
        if self.id_source == "entity_index":
            return entity_index.part_uri(self.entity_path, entity_type, partition)
        return entity_counts.names_uri(self.entity_path, entity_type, partition)


def find_inputs(config: Config, version: int | None = None, *, allow_non_finite: bool = False) -> Inputs:
    """Find a version of the checkpoint, the latest if None, and its raw ids.

    Raises:
        NotFoundError: there is no checkpoint, or no raw ids.
        ConfigError: the checkpoint lacks the requested version.
    """
    checkpoint_path, found = _find_version(config.checkpoint_path, version)
    return Inputs(config.entity_path, _find_ids(config), checkpoint_path, found, allow_non_finite)


def _find_version(path: str, wanted: int | None) -> tuple[str, int]:
    """Find the folder and the number of the version; only PBG's format has preserved versions."""
    latest = pbg_checkpoint.read_version(path)
    if not latest and storage.is_dir(path) and (found := recognise(path)) != "pbg":
        if wanted is not None:
            raise ConfigError(
                f"remap.checkpoint_version: {path} is of the format {found}: it has one version"
            )
        return path, 0
    if wanted is None or wanted == latest:
        if latest == 0:
            raise NotFoundError(f"{path}: there is no checkpoint; run the stage train first")
        return path, latest
    preserved = {
        pbg_checkpoint.read_version(entry.uri): entry.uri
        for entry in storage.list_dir(path)
        if entry.is_dir and _PRESERVED.match(storage.name(entry.uri))
    }
    if wanted not in preserved:
        complete = ", ".join(map(str, sorted({*preserved, latest} - {0})))
        raise ConfigError(
            f"remap.checkpoint_version: {path} has no complete version {wanted}; "
            f"complete versions: {complete or 'none'}"
        )
    return preserved[wanted], wanted


def _find_ids(config: Config) -> IdSource:
    manifest_uri = storage.join(config.entity_path, entity_index.FOLDER, entity_index.MANIFEST)
    if storage.exists(manifest_uri):
        return "entity_index"
    names_uri = entity_counts.names_uri(config.entity_path, next(iter(config.entities)), 0)
    if storage.exists(names_uri):
        return "entity_names"
    raise NotFoundError(
        f"{config.entity_path}: there are no raw ids: neither {manifest_uri} nor {names_uri} is there; "
        "run the stage etl, or copy PyTorch-BigGraph's entity_names_*.json there"
    )
