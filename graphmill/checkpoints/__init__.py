"""Recognition and opening of checkpoints of every format."""

import re
from typing import Literal

from graphmill import storage
from graphmill.checkpoints.checkpoint import Checkpoint, Floats, ModelState, Rows
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import pbg_checkpoint
from graphmill.formats.graphstorm import EMB_INFO
from graphmill.formats.pbg_checkpoint import Iteration

__all__ = [
    "FORMATS",
    "Checkpoint",
    "Floats",
    "Iteration",
    "ModelState",
    "Rows",
    "open_checkpoint",
    "recognise",
]

FORMATS = ("pbg", "pbg-legacy", "graphstorm", "recis")


def recognise(uri: str) -> str:
    """The format of the checkpoint in the folder `uri`, from the names of its files.

    Raises:
        NotFoundError: there is no such folder.
        FormatError: no format is recognised.
    """
    if not storage.is_dir(uri):
        raise NotFoundError(f"{uri}: expected the folder of a checkpoint, found none")
    names = {storage.name(entry.uri) for entry in storage.list_dir(uri)}
    if pbg_checkpoint.VERSION_FILE in names:
        return "pbg"
    if EMB_INFO in names:
        return "graphstorm"
    if "index" in names and any(name.endswith(".safetensors") for name in names):
        return "recis"
    if "CHECKPOINT_VERSION" in names or any(map(_LEGACY.match, names)):
        return "pbg-legacy"
    raise FormatError(
        f"{uri}: not recognised as a checkpoint: looked for {pbg_checkpoint.VERSION_FILE} (PBG), "
        f"CHECKPOINT_VERSION or TYPE_N.pt (PBG legacy), {EMB_INFO} (GraphStorm), "
        f"index and *.safetensors (RecIS); found {', '.join(sorted(names)[:8]) or 'nothing'}"
    )


def open_checkpoint(
    uri: str,
    *,
    version: int | None = None,
    entity_path: str | None = None,
    index_base: Literal["auto", 0, 1] = "auto",
    allow_non_finite: bool = False,
) -> Checkpoint:
    """Open the checkpoint in the folder `uri`, of any format.

    Args:
        uri: its folder.
        version: number of the version, for formats with several; by default the committed version.
        entity_path: entity counts, for formats without partitions; by default one partition.
        index_base: number of the first partition in legacy names: 0, 1, or "auto": from the names.
        allow_non_finite: whether to read rows, sums and parameters that are NaN or infinite.

    Raises:
        NotFoundError: there is no such folder.
        FormatError: it holds no checkpoint, or a damaged checkpoint.
    """
    checkpoint = _open(uri, version, entity_path, index_base)
    checkpoint.allow_non_finite = allow_non_finite
    return checkpoint


def _open(
    uri: str, version: int | None, entity_path: str | None, index_base: Literal["auto", 0, 1]
) -> Checkpoint:
    # A module is imported only when it is needed: torch takes a second to import.
    match recognise(uri):
        case "pbg":
            from graphmill.checkpoints.pbg import PbgCheckpoint

            return PbgCheckpoint(uri, version)
        case "pbg-legacy":
            from graphmill.checkpoints.pbg_legacy import LegacyCheckpoint

            return LegacyCheckpoint(uri, version, index_base)
        case "graphstorm":
            from graphmill.checkpoints.graphstorm import GraphStormCheckpoint

            return GraphStormCheckpoint(uri, entity_path)
        case _:
            from graphmill.checkpoints.recis import RecisCheckpoint

            return RecisCheckpoint(uri, entity_path)


# Names of embeddings in graphmill.formats.pbg_legacy; entity counts and metadata are no checkpoint.
_LEGACY = re.compile(r"^(?!METADATA_|entity_count_).+_(0|[1-9]\d*)\.pt(\.\d+)?$")
