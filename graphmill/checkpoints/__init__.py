"""Checkpoints of every format: one interface (`checkpoint`), the table of formats, recognition and
opening; a folder for each format, with its files and its adapter.

To add a format, write a module with a subclass of `Checkpoint` and a function `write`, and add a line to the
table, and its import to `_code`. The commands, their help texts and errors come from this table.
"""

import re
from collections.abc import Callable
from typing import TypedDict, Unpack

from graphmill import storage
from graphmill.checkpoints.checkpoint import Checkpoint, Floats, Iteration, ModelState, Rows
from graphmill.checkpoints.id_maps import IdMaps
from graphmill.checkpoints.legacy.inputs import IndexBase
from graphmill.errors import FormatError, NotFoundError

Read = Callable[..., Checkpoint]
Write = Callable[..., list[str]]


# Files of a format, for messages, and patterns, each of which matches the name of a file in the folder.
# The first match counts. Legacy is last, because files of other formats may have its names.
_TABLE: dict[str, tuple[str, list[str]]] = {
    "pbg": ("checkpoint_version.txt (PBG)", [r"checkpoint_version\.txt"]),
    "graphstorm": ("emb_info.json (GraphStorm)", [r"emb_info\.json"]),
    "graphstorm-model": ("model.bin (GraphStorm)", [r"model\.bin"]),
    "recis": (
        "index and *.safetensors, or checkpoint and ckpt_* (RecIS)",
        [r"index|checkpoint", r".*\.safetensors|ckpt_.+"],
    ),
    "pbg-legacy": (
        "CHECKPOINT_VERSION or TYPE_N.pt (PBG legacy)",
        [r"CHECKPOINT_VERSION|(?!METADATA_|entity_count_).+_(0|[1-9]\d*)\.pt(\.\d+)?"],
    ),
}
FORMATS = tuple(_TABLE)


def _code(format_name: str) -> tuple[Read, Write]:
    """Import the reader and the writer of a format, and no other ones: torch takes a second."""
    match format_name:
        case "pbg":
            from graphmill.checkpoints.pbg import checkpoint as pbg

            return pbg.PbgCheckpoint, pbg.write
        case "graphstorm":
            from graphmill.checkpoints.graphstorm import saved_embeddings

            return saved_embeddings.GraphStormCheckpoint, saved_embeddings.write
        case "graphstorm-model":
            from graphmill.checkpoints.graphstorm import model

            return model.GraphStormModelCheckpoint, model.write
        case "recis":
            from graphmill.checkpoints.recis import checkpoint as recis

            return recis.RecisCheckpoint, recis.write
    from graphmill.checkpoints.legacy import checkpoint as legacy

    return legacy.LegacyCheckpoint, legacy.write


def recognise(uri: str) -> str:
    """Recognise the format of the checkpoint in the folder `uri` by the names of its files.

    Raises:
        NotFoundError: there is no such folder.
        FormatError: no format is recognised.
    """
    names = [storage.name(entry.uri) for entry in storage.list_dir(uri)]
    if not (names or storage.is_dir(uri)):
        raise NotFoundError(f"{uri}: expected the folder of a checkpoint, found none")
    for format_name, (_, patterns) in _TABLE.items():
        if all(any(re.fullmatch(pattern, name) for name in names) for pattern in patterns):
            return format_name
    looked_for = ", ".join(files for files, _ in _TABLE.values())
    raise FormatError(
        f"{uri}: not recognised as a checkpoint: looked for {looked_for}; "
        f"found {', '.join(names[:8]) or 'nothing'}"
    )


class Options(TypedDict, total=False):
    """Options of reading a checkpoint; a format ignores those that it does not need."""

    version: int | None
    """Number of the version, for formats with several; by default the committed version."""
    entity_path: str | None
    """Entity counts, for formats that do not tell all partitions; by default one partition per type."""
    index_base: IndexBase
    """Number of the first partition in legacy names: 0, 1, or "auto" (default): from the names."""
    id_maps: IdMaps | None
    """Maps of ids, for tables with hashed ids (RecIS); by default the ids are 0 to N - 1."""
    allow_non_finite: bool
    """Read rows, sums and parameters that are NaN or infinite; by default an error."""


def open_checkpoint(uri: str, **options: Unpack[Options]) -> Checkpoint:
    """Open the checkpoint in the folder `uri`, of any format.

    Raises:
        NotFoundError: there is no such folder.
        FormatError: the folder holds no checkpoint, or a damaged checkpoint.
    """
    name = recognise(uri)
    checkpoint = _code(name)[0](uri, **options)
    checkpoint.format = name
    checkpoint.allow_non_finite = options.get("allow_non_finite", False)
    return checkpoint


def writer_of(format_name: str) -> Write:
    """Import the function that writes a checkpoint in a format: `write(source, target_uri, shard_num=1)`."""
    if format_name not in _TABLE:
        raise FormatError(f"expected a format of {', '.join(FORMATS)}, found {format_name!r}")
    return _code(format_name)[1]
