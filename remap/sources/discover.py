"""What there is to remap: a committed version of the checkpoint, and the raw ids of its rows.

checkpoint/
    checkpoint_version.txt      the latest version, or:
    epoch_{N}/                  a preserved one, itself a checkpoint
entities/
    entity_count_{type}_{partition}.txt
    entity_index/               raw ids as our ETL writes them, or:
    entity_names_{type}_{partition}.json    as PyTorch-BigGraph's importer does
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from graphmill import storage
from graphmill.checkpoints import Checkpoint, Floats, open_checkpoint, recognise
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index, pbg_checkpoint
from remap.config import RemapConfig

_PRESERVED = re.compile(r"^epoch_[0-9]+$")


class IdSource(StrEnum):
    """Where the raw ids come from."""

    ENTITY_INDEX = "entity_index"
    ENTITY_NAMES = "entity_names"


@dataclass(frozen=True)
class Source:
    """One version of a checkpoint with the ids of its rows; small, for it travels with every task."""

    entity_path: str
    id_source: IdSource
    checkpoint_path: str
    version: int
    format: str = "pbg"
    allow_non_finite: bool = False

    @property
    def is_pbg(self) -> bool:
        """Whether it is PBG v1, which is read by itself: without torch, its files in the messages."""
        return self.format == "pbg"

    def open(self) -> Checkpoint:
        """The checkpoint, of whatever format."""
        version = self.version if self.is_pbg else None
        return open_checkpoint(
            self.checkpoint_path,
            version=version,
            entity_path=self.entity_path,
            allow_non_finite=True,  # rows that are not are told of under their raw ids
        )

    def ids_uri(self, entity_type: str, partition: int) -> str:
        """The file with the raw ids of one partition."""
        if self.id_source is IdSource.ENTITY_INDEX:
            return entity_index.part_uri(self.entity_path, entity_type, partition)
        return entity_counts.names_uri(self.entity_path, entity_type, partition)

    def embeddings_uri(self, entity_type: str, partition: int) -> str:
        """The file with the embeddings of one partition, or where there is no such file the checkpoint."""
        if not self.is_pbg:
            return self.checkpoint_path
        return pbg_checkpoint.embeddings_uri(self.checkpoint_path, entity_type, partition, self.version)


@dataclass(frozen=True)
class Part:
    """One partition of one entity type: `num_rows` embeddings of `dimension` coordinates."""

    entity_type: str
    partition: int
    num_rows: int
    dimension: int


def find_source(config: Config, settings: RemapConfig) -> Source:
    """The version to remap and the place of its raw ids.

    Raises:
        NotFoundError: there is no checkpoint, or no raw ids.
        ConfigError: the version that was asked for is not there.
    """
    path = config.checkpoint_path
    found = recognise(path) if storage.is_dir(path) and not pbg_checkpoint.read_version(path) else "pbg"
    if found != "pbg":
        if settings.checkpoint_version is not None:
            raise ConfigError(
                f"remap.checkpoint_version: {path} is of the format {found}: it has one version"
            )
        return Source(config.entity_path, _find_ids(config), path, 0, found, settings.allow_non_finite)
    checkpoint_path, version = _find_version(path, settings.checkpoint_version)
    return Source(
        config.entity_path,
        _find_ids(config),
        checkpoint_path,
        version,
        allow_non_finite=settings.allow_non_finite,
    )


def select_types(config: Config, settings: RemapConfig) -> dict[str, int]:
    """The entity types to remap, with their numbers of partitions.

    Raises:
        ConfigError: a type that was asked for is not in the configuration.
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


def check_partitions(source: Source, num_partitions: dict[str, int]) -> None:
    """Check that checkpoint and entity index are split as the configuration says.

    Raises:
        FormatError: one of them has other partitions.
    """
    indexed = (
        entity_index.read_manifest(source.entity_path).num_partitions
        if source.id_source is IdSource.ENTITY_INDEX
        else num_partitions
    )
    for entity_type, num in num_partitions.items():
        if indexed.get(entity_type) != num:
            raise FormatError(
                f"{source.entity_path}: the configuration has {num} partitions of {entity_type!r}, "
                f"the entity index {indexed.get(entity_type, 'none')}"
            )
        if not source.is_pbg:
            there = source.open().num_partitions.get(entity_type, 0)
            if there != num:
                raise FormatError(
                    f"{source.checkpoint_path}: the configuration has {num} partitions of {entity_type!r}, "
                    f"the checkpoint {there}"
                )
        elif storage.exists(source.embeddings_uri(entity_type, num)):
            raise FormatError(
                f"{source.embeddings_uri(entity_type, num)}: the configuration has {num} partitions of "
                f"{entity_type!r}, the checkpoint has more"
            )


def measure_part(source: Source, entity_type: str, partition: int, dimension: int) -> Part:
    """The size of one partition, told alike by its count, its ids and its embeddings.

    Raises:
        NotFoundError: one of them is missing.
        FormatError: they differ, or the embeddings have another length than `dimension`.
    """
    count = entity_counts.read_count(source.entity_path, entity_type, partition)
    embeddings_uri = source.embeddings_uri(entity_type, partition)
    if source.is_pbg:
        place = source.checkpoint_path, entity_type, partition, source.version
        num_rows, found_dimension = pbg_checkpoint.shape_of(*place)
    else:
        with source.open().open_rows(entity_type, partition) as rows:
            num_rows, found_dimension = rows.shape
    if num_rows != count:
        raise FormatError(
            f"{embeddings_uri} has {num_rows} rows, but "
            f"{entity_counts.count_uri(source.entity_path, entity_type, partition)} says {count}: "
            "they are not from the same run"
        )
    if found_dimension != dimension:
        raise FormatError(
            f"{embeddings_uri}: expected dimension {dimension} as configured, found {found_dimension}"
        )
    if source.id_source is IdSource.ENTITY_INDEX:
        num_ids = entity_index.count_part(source.entity_path, entity_type, partition)
        check_num_ids(source, entity_type, partition, num_ids, num_rows)
    elif not storage.exists(source.ids_uri(entity_type, partition)):
        raise NotFoundError(f"{source.ids_uri(entity_type, partition)}: there is no such file of raw ids")
    return Part(entity_type, partition, num_rows, dimension)


def global_embedding(checkpoint: Checkpoint, entity_type: str) -> Floats | None:
    """The vector [D] that a model adds to all embeddings of a type, if it has one."""
    model = checkpoint.read_model()
    found = model.parameters.get(f"global_embs.emb_{entity_type}") if model else None
    return None if found is None else found.numpy()


def check_num_ids(source: Source, entity_type: str, partition: int, num_ids: int, num_rows: int) -> None:
    """Refuse a partition that has not one raw id for each row."""
    if num_ids != num_rows:
        raise FormatError(
            f"{source.ids_uri(entity_type, partition)} has {num_ids} raw ids, but "
            f"{source.embeddings_uri(entity_type, partition)} has {num_rows} rows: "
            "they are not from the same run"
        )


def _find_version(checkpoint_path: str, wanted: int | None) -> tuple[str, int]:
    latest = pbg_checkpoint.read_version(checkpoint_path)
    if wanted is None or wanted == latest:
        if latest == 0:
            raise NotFoundError(f"{checkpoint_path}: there is no checkpoint; run the stage train first")
        return checkpoint_path, latest
    preserved = {
        pbg_checkpoint.read_version(entry.uri): entry.uri
        for entry in storage.list_dir(checkpoint_path)
        if entry.is_dir and _PRESERVED.match(storage.name(entry.uri))
    }
    if wanted not in preserved:
        there = ", ".join(str(each) for each in sorted({*preserved, latest} - {0}))
        raise ConfigError(
            f"remap.checkpoint_version: {checkpoint_path} has no complete version {wanted}; "
            f"complete versions: {there or 'none'}"
        )
    return preserved[wanted], wanted


def _find_ids(config: Config) -> IdSource:
    manifest_uri = storage.join(config.entity_path, entity_index.FOLDER, entity_index.MANIFEST)
    if storage.exists(manifest_uri):
        return IdSource.ENTITY_INDEX
    names_uri = entity_counts.names_uri(config.entity_path, next(iter(config.entities)), 0)
    if storage.exists(names_uri):
        return IdSource.ENTITY_NAMES
    raise NotFoundError(
        f"{config.entity_path}: there are no raw ids: neither {manifest_uri} nor {names_uri} is there; "
        "run the stage etl, or copy PyTorch-BigGraph's entity_names_*.json there"
    )
