"""A trained run that can be asked: a committed version of its checkpoint, its sizes, and its raw ids.

checkpoint/
    checkpoint_version.txt      the latest version, or:
    epoch_{N}/                  a preserved version, itself a checkpoint
entities/
    entity_count_{type}_{partition}.txt
    entity_index/               raw ids in the format of the stage etl, or:
    entity_names_{type}_{partition}.json    raw ids in the format of PyTorch-BigGraph's importer

Shapes: N rows of a partition, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from graphmill import storage
from graphmill.checkpoints import Checkpoint, Floats, open_checkpoint, pbg, recognise
from graphmill.checkpoints.finite import check_finite
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.errors import BadInputError, ConfigError, FormatError, LockedError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.run import lock
from graphmill.run.fingerprints import VECTORS, content_of
from graphmill.run.trained_with import FILE, check_entities, is_ended

if TYPE_CHECKING:
    from graphmill.ask.model import Model


IdSource = Literal["entity_index", "entity_names"]  # the files that hold the raw ids
_VERSION_KEY = "remap.checkpoint_version, or --checkpoint-version"


@dataclass(frozen=True)
class TrainedRun:
    """One version of a checkpoint, and the raw ids of its rows; small, because every task receives it.

    Attributes:
        checkpoint_path: folder of the version; a preserved one has its own.
        version: 0 for a format with one version only.
        id_source: files that hold the raw ids; None where nobody asks for them.
        allow_non_finite: take vectors that are not finite as they are.
        digests: of the version and of the raw ids when they were found; None: files of this process.
    """

    config: Config
    checkpoint_path: str
    version: int
    id_source: IdSource | None = None
    allow_non_finite: bool = False
    digests: tuple[str | None, str | None] | None = None

    @classmethod
    def to_evaluate(cls, config: Config, version: int | None) -> Self:
        """Find a version of PBG's format, by default the committed one, though its training goes on."""
        path = config.checkpoint_path
        check_entities(path, config.entity_path)
        if version:
            return cls(config, *find_version(path, version, "evaluate.checkpoint_version"))
        if not (committed := pbg.read_version(path)):
            raise NotFoundError(f"{path}: there is no checkpoint to evaluate; train first")
        return cls(config, path, committed)

    @classmethod
    def with_ids(cls, config: Config, version: int | None = None, *, allow_non_finite: bool = False) -> Self:
        """Find a version, the one that training has ended with if None, and its raw ids, of its training."""
        path, number = find_model(config, version)
        source = _find_ids(config)
        return cls(config, path, number, source, allow_non_finite, _digests(path, number, config.entity_path))

    @classmethod
    def chosen(cls, config: Config) -> Self:
        """Find the version that the section `remap` chooses, and its raw ids."""
        settings = config.remap
        return cls.with_ids(config, settings.checkpoint_version, allow_non_finite=settings.allow_non_finite)

    @property
    def entity_path(self) -> str:
        """Folder of counts and raw ids."""
        return self.config.entity_path

    @cached_property
    def num_rows(self) -> dict[str, list[int]]:
        """Rows of each partition of each entity type."""
        return entity_counts.read_counts(self.entity_path, self.config.num_partitions)

    @cached_property
    def relation_names(self) -> list[str]:
        """Names of all relations, in the order of their numbers."""
        return relation_names(self.config)

    @property
    def num_relations(self) -> int:
        """Number of static or dynamic relations."""
        return len(self.relation_names)

    def check_unchanged(self) -> None:
        """Refuse files that another run has replaced since they were found."""
        if self.digests not in (None, _digests(self.checkpoint_path, self.version, self.entity_path)):
            raise LockedError(
                f"{self.checkpoint_path}, {self.entity_path}: another run has replaced vectors or ids while "
                "this command read them; run it again when that run has ended"
            )

    def open_checkpoint(self, *, allow_non_finite: bool) -> Checkpoint:
        """Open the version, which no other run may have replaced."""
        self.check_unchanged()
        return open_checkpoint(
            self.checkpoint_path,
            version=self.version or None,
            entity_path=self.entity_path,
            allow_non_finite=allow_non_finite,
        )

    def ids_uri(self, entity_type: str, partition: int) -> str:
        """Name the file with the raw ids of one partition."""
        uri = entity_index.part_uri if self.id_source == "entity_index" else entity_counts.names_uri
        return uri(self.entity_path, entity_type, partition)

    def load_model(self) -> Model:
        """Load the parameters of relations, and global embeddings."""
        from graphmill.ask.model import Model  # torch: for the tasks that score

        path = self.checkpoint_path
        model = Model(self.config, self.num_relations if self.config.dynamic_relations else None)
        parameters = pbg.read_model(path, self.version)[0]
        model.load_state(parameters, pbg.model_uri(path, self.version))
        return model

    def read_embeddings(self, key: PartitionKey) -> Floats:
        """Read the embeddings of a partition, [N, D]."""
        embeddings_ND, _ = read_finite(self.checkpoint_path, key, self.version)
        shape = self.num_rows[key[0]][key[1]], self.config.entity_dimension(key[0])
        advice = "set entity_path and dimension as in its training"
        uri = pbg.embeddings_uri(self.checkpoint_path, *key, self.version)
        check_shape(embeddings_ND, shape, uri, advice)
        return embeddings_ND


def find_model(config: Config, version: int | None, embedding_path: str | None = None) -> tuple[str, int]:
    """Find the folder and the number of a version, of the ids of today and of published embeddings."""
    path, number = find_version(config.checkpoint_path, version)
    check_entities(config.checkpoint_path, config.entity_path)
    then = None if embedding_path is None else (storage.read_marker(embedding_path) or {}).get(VECTORS)
    now = pbg.version_checksum(path, number)
    if None not in (then, now) and then != now:
        raise FormatError(
            f"{embedding_path} has the vectors of another model than version {number} of {path}; run the "
            "stage remap again"
        )
    return path, number


def vectors_digest(checkpoint_path: str, wanted: int | None) -> str | None:
    """The digest of a version as `find_version` finds it; None if there is none, or it has no checksums."""
    try:
        return pbg.version_checksum(*find_version(checkpoint_path, wanted))
    except (BadInputError, LockedError, NotFoundError):
        return None


def _digests(checkpoint_path: str, version: int, entity_path: str) -> tuple[str | None, str | None]:
    return pbg.version_checksum(checkpoint_path, version), content_of(entity_path)


def find_version(path: str, wanted: int | None, key: str = _VERSION_KEY) -> tuple[str, int]:
    """Find the folder and the number of a version, by default the one that training has ended with."""
    latest = pbg.read_version(path)
    is_open = wanted is None and not (latest and is_ended(path, latest))
    if is_open and (holder := lock.holder(path, whole=True)):
        raise LockedError(f"{path}: no finished version yet; {holder}, and trains; try again later")
    has_none = not latest and not storage.exists(storage.join(path, FILE)) and storage.is_dir(path)
    if has_none and (kind := recognise(path)) != "pbg":
        if wanted is not None:
            raise ConfigError(f"{key}: {path} is of the format {kind}: it has one version")
        return path, 0
    if wanted is None or wanted == latest:
        if latest == 0:
            raise NotFoundError(f"{path}: there is no checkpoint; run the stage train first")
        if is_open:
            raise ConfigError(
                f"{path}: its training has not ended: version {latest} is an unfinished model; run the stage "
                f"train to its end, or ask for this version: --set remap.checkpoint_version={latest}"
            )
        return path, latest
    complete = pbg.complete_versions(path)
    if wanted not in complete:
        there = ", ".join(map(str, sorted({*complete, latest} - {0})))
        raise ConfigError(
            f"{key}: {path} has no complete version {wanted}; complete versions: {there or 'none'}"
        )
    return complete[wanted], wanted


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


def relation_names(config: Config) -> list[str]:
    """Name all relations in the order of their numbers; a dynamic one may have only its number."""
    if not config.dynamic_relations:
        return [relation.name for relation in config.relations]
    names = entity_counts.read_relation_names(config.entity_path) or []
    return [*names, *map(str, range(len(names), entity_counts.read_relation_count(config.entity_path)))]


def read_finite(path: str, key: PartitionKey, version: int) -> tuple[Floats, dict[str, Any] | None]:
    """Read the embeddings [N, D] of one file, all finite, and the state of their optimizer or None."""
    embeddings_ND, state = pbg.read_embeddings(path, *key, version)
    uri = pbg.embeddings_uri(path, *key, version)
    check_finite(embeddings_ND, f"{uri}: {key[0]!r}, partition {key[1]}")
    return embeddings_ND, state


def check_shape(embeddings_ND: Floats, shape: tuple[int, int], uri: str, advice: str) -> None:
    """Refuse embeddings of another shape than counts and configuration have."""
    if embeddings_ND.shape != shape:
        raise FormatError(
            f"{uri}: embeddings have shape {embeddings_ND.shape}; entity_count and dimension ask "
            f"for {shape}: the checkpoint belongs to other entities or another configuration; {advice}"
        )
