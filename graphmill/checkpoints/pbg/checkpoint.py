"""PBG v1 checkpoints as `Checkpoint`."""

from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg, states
from graphmill.checkpoints.checkpoint import (
    Checkpoint,
    Floats,
    Iteration,
    ModelState,
    PartitionFilesCheckpoint,
    Rows,
)
from graphmill.errors import FormatError, NotFoundError
from graphmill.model.parameters import global_key
from graphmill.vocab import Partition


class PbgCheckpoint(PartitionFilesCheckpoint):
    """A version of a PBG v1 checkpoint."""

    def __init__(self, uri: str, version: int | None = None, **_: object) -> None:
        """Raises FormatError if there is no such version, or a file of it is lost.

        Version 0 holds the user's initial values, of parameters or of none.
        """
        super().__init__(uri, pbg.read_version(uri) if version is None else version)
        self._num_partitions = pbg.num_partitions(uri, self.version)
        if not self._num_partitions:
            raise FormatError(f"{uri}: version {self.version} has no embeddings")
        states.check_complete(self._num_partitions, self.config, f"{uri}: version {self.version}")
        self._has_model = storage.exists(self.model_uri)
        if self.version and not self._has_model:
            raise FormatError(
                f"{self.model_uri}: expected the parameters of relations, found no such file; bring it back, "
                "go back to a preserved epoch, or train again"
            )

    def open_rows(
        self, entity_type: str, partition: Partition, *, whole: bool = False
    ) -> AbstractContextManager[Rows]:
        """The embeddings of one partition."""
        return pbg.open_embeddings(self.uri, entity_type, partition, self.version, whole=whole)

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        return pbg.read_optimizer_state(self.uri, entity_type, partition, self.version)

    def _read_model(self) -> ModelState | None:
        if not self._has_model:
            return None
        parameters, optimizer_state, _ = pbg.read_model(self.uri, self.version)
        # HDF5 sorts parameters by name.
        return ModelState({key: parameters[key] for key in self._in_order(parameters)}, optimizer_state)

    def _read_parameters(self) -> dict[str, Floats] | None:
        if not self._has_model:
            return None
        parameters = pbg.read_parameters(self.uri, self.version)
        return {key: parameters[key] for key in self._in_order(parameters)}

    @property
    def model_uri(self) -> str:
        """URI of the version's model file."""
        return pbg.model_uri(self.uri, self.version)

    def embeddings_uri(self, entity_type: str, partition: Partition) -> str:
        """URI of the partition's file."""
        return pbg.embeddings_uri(self.uri, entity_type, partition, self.version)

    def global_embedding(self, entity_type: str) -> Floats | None:
        """The vector in the version's model file, read without torch."""
        key = global_key(entity_type)
        return pbg.read_parameters(self.uri, self.version, key).get(key) if self._has_model else None

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """Content of config.json."""
        with suppress(NotFoundError):
            return pbg.read_config(self.uri)
        return None

    @cached_property
    def iteration(self) -> Iteration | None:
        """The iteration in the version's model file."""
        return pbg.read_model_iteration(self.uri, self.version) if self._has_model else None


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write `source` as a checkpoint of one version, and return the lost content: nothing."""
    version = max(source.version, 1)
    config = source.described_config()
    checksums = pbg.write_config(target_uri, config)
    for entity_type, partition, shape in source.partitions():
        pbg.write_embeddings(
            target_uri,
            entity_type,
            partition,
            version,
            source.iter_embeddings(entity_type, partition),
            source.read_optimizer_state(entity_type, partition),
            config,
            source.iteration,
            checksums,
            shape=shape,
        )
    model = source.read_model() or ModelState({}, None)
    pbg.write_model(
        target_uri, version, model.parameters, model.optimizer_state, config, source.iteration, checksums
    )
    pbg.commit(target_uri, version, preserve_epoch=None, checksums=checksums)
    return []
