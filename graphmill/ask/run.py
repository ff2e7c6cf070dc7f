"""A trained run that can be asked: a committed version of its checkpoint, and the sizes of its tables.

Shapes: N rows of a partition, D dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from graphmill.checkpoints import Floats
from graphmill.checkpoints.finite import check_finite
from graphmill.config import Config
from graphmill.config.partitions import PartitionKey
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, pbg_checkpoint
from graphmill.run.trained_with import check_entities

if TYPE_CHECKING:
    from graphmill.ask.model import Model


@dataclass(frozen=True)
class TrainedRun:
    """A version of a checkpoint of PBG's format; small, because every task receives it.

    Attributes:
        num_rows: rows of each partition of each entity type.
        relation_names: names of all relations, in the order of their numbers.
    """

    config: Config
    version: int
    num_rows: dict[str, list[int]]
    relation_names: list[str]

    @classmethod
    def of(cls, config: Config, purpose: str, version: int | None = None) -> Self:
        """Find a version, by default the committed one.

        Raises:
            NotFoundError: there is no checkpoint; the message names the `purpose`.
            FormatError: the entities are not those of its training.
        """
        check_entities(config.checkpoint_path, config.entity_path)
        version = version or pbg_checkpoint.read_version(config.checkpoint_path)
        if not version:
            raise NotFoundError(f"{config.checkpoint_path}: there is no checkpoint to {purpose}; train first")
        partitions = {name: entity.num_partitions for name, entity in config.entities.items()}
        rows = entity_counts.read_counts(config.entity_path, partitions)
        return cls(config, version, rows, relation_names(config))

    @property
    def num_relations(self) -> int:
        """Number of static or dynamic relations."""
        return len(self.relation_names)

    def load_model(self) -> Model:
        """Load the parameters of relations, and global embeddings.

        Raises:
            FormatError: the file is damaged, or its parameters do not fit the configuration.
        """
        from graphmill.ask.model import Model  # torch: for the tasks that score

        path = self.config.checkpoint_path
        model = Model(self.config, self.num_relations if self.config.dynamic_relations else None)
        parameters = pbg_checkpoint.read_model(path, self.version)[0]
        model.load_state(parameters, pbg_checkpoint.model_uri(path, self.version))
        return model

    def read_embeddings(self, key: PartitionKey) -> Floats:
        """Read the embeddings of a partition, [N, D].

        Raises:
            FormatError: the file is damaged, or belongs to other entities or another configuration.
        """
        path = self.config.checkpoint_path
        embeddings_ND, _ = read_finite(path, key, self.version)
        shape = self.num_rows[key[0]][key[1]], self.config.entity_dimension(key[0])
        advice = "set entity_path and dimension as in its training"
        check_shape(embeddings_ND, shape, pbg_checkpoint.embeddings_uri(path, *key, self.version), advice)
        return embeddings_ND


def relation_names(config: Config) -> list[str]:
    """Name all relations in the order of their numbers; a dynamic one may have only its number."""
    if not config.dynamic_relations:
        return [relation.name for relation in config.relations]
    names = entity_counts.read_relation_names(config.entity_path) or []
    return [*names, *map(str, range(len(names), entity_counts.read_relation_count(config.entity_path)))]


def read_finite(path: str, key: PartitionKey, version: int) -> tuple[Floats, dict[str, Any] | None]:
    """Read the embeddings [N, D] of one file, and the state of their optimizer where there is one.

    Raises:
        FormatError: the file is damaged, or a number is not finite.
    """
    embeddings_ND, state = pbg_checkpoint.read_embeddings(path, *key, version)
    uri = pbg_checkpoint.embeddings_uri(path, *key, version)
    check_finite(embeddings_ND, f"{uri}: {key[0]!r}, partition {key[1]}")
    return embeddings_ND, state


def check_shape(embeddings_ND: Floats, shape: tuple[int, int], uri: str, advice: str) -> None:
    """Refuse embeddings of another shape than counts and configuration have."""
    if embeddings_ND.shape != shape:
        raise FormatError(
            f"{uri}: embeddings have shape {embeddings_ND.shape}; entity_count and dimension ask "
            f"for {shape}: the checkpoint belongs to other entities or another configuration; {advice}"
        )
