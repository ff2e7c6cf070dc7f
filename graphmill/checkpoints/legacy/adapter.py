"""PBG's checkpoints from before version 1 as `Checkpoint`."""

from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from graphmill.checkpoints import states
from graphmill.checkpoints.checkpoint import Checkpoint, Iteration, ModelState, PartitionFilesCheckpoint, Rows
from graphmill.checkpoints.legacy import checkpoint as legacy
from graphmill.checkpoints.legacy import index_base as bases
from graphmill.checkpoints.legacy.index_base import IndexBase
from graphmill.errors import FormatError
from graphmill.vocab import Partition

WRITTEN_BASE = 1


class LegacyCheckpoint(PartitionFilesCheckpoint):
    """A version of a legacy outdir, or a loadPath."""

    format = "pbg-legacy"

    def __init__(
        self, uri: str, version: int | None = None, index_base: IndexBase = "auto", **_: object
    ) -> None:
        """Raises FormatError if there is no such version, or if the names fit no index base."""
        super().__init__(uri, legacy.find_version(uri) if version is None else version)
        numbers = legacy.versions_of(uri).get(self.version)
        if not numbers:
            raise FormatError(f"{uri}: version {self.version} has no embeddings")
        declared = states.declared_partitions(self.config, set(numbers))
        self.index_base = bases.of_partitions(
            numbers,
            index_base,
            uri,
            lambda name, number: legacy.embeddings_uri(uri, name, number, self.version),
            declared if declared.keys() >= numbers.keys() else None,
        )
        states.check_complete({name: len(each) for name, each in numbers.items()}, self.config, uri)
        self._num_partitions = {name: declared.get(name, len(numbers[name])) for name in numbers}

    @cached_property
    def _metadata(self) -> legacy.Metadata | None:
        return legacy.read_metadata(self.uri, self.version)

    def open_rows(
        self, entity_type: str, partition: Partition, *, whole: bool = False
    ) -> AbstractContextManager[Rows]:
        """The embeddings of one partition; the format has no checksums."""
        number = partition + self.index_base
        return legacy.open_embeddings(self.uri, entity_type, number, self.version)

    def _read_optimizer_state(self, entity_type: str, partition: Partition) -> dict[str, Any] | None:
        number = partition + self.index_base
        return legacy.read_optimizer_state(self.uri, entity_type, number, self.version)

    def _read_model(self) -> ModelState | None:
        found = self._metadata
        if found is None or found.parameters is None:
            return None
        keys = self._in_order(found.parameters)
        parameters = {key: found.parameters[key] for key in keys}
        return ModelState(parameters, states.reordered(found.optimizer_state, list(found.parameters), keys))

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration in the metadata."""
        return None if self._metadata is None else self._metadata.config

    @property
    def iteration(self) -> Iteration | None:
        """The iteration, from the metadata and the version, which counts finished iterations."""
        found = self._metadata
        if found is None or found.edge_path_count is None or found.edge_chunk is None or not self.version:
            return None
        count, chunk = found.edge_path_count, found.edge_chunk
        edge_paths = list(found.config.get("edge_paths") or [""])
        num_chunks = found.config.get("num_edge_chunks")
        if not num_chunks:  # PBG chose the number of chunks by the number of edges
            num_chunks = max(chunk + 1, (self.version - chunk - 1) // count if count else 1)
        count, chunk = divmod(self.version - 1, num_chunks)
        epoch_idx, edge_path_idx = divmod(count, len(edge_paths))
        return Iteration(
            num_epochs=int(found.config.get("num_epochs", epoch_idx + 1)),
            epoch_idx=epoch_idx,
            num_edge_paths=len(edge_paths),
            edge_path_idx=edge_path_idx,
            edge_path=str(edge_paths[edge_path_idx]),
            num_edge_chunks=num_chunks,
            edge_chunk_idx=chunk,
        )


def write(source: Checkpoint, target_uri: str, **_: object) -> list[str]:
    """Write `source` as a legacy outdir, numbered from 1, and return the lost content: nothing."""
    version = max(source.version, 1)
    for entity_type, partition, shape in source.partitions():
        legacy.write_embeddings(
            target_uri,
            entity_type,
            partition + WRITTEN_BASE,
            version,
            shape,
            source.iter_embeddings(entity_type, partition),
            source.read_optimizer_state(entity_type, partition),
        )
    model = source.read_model() or ModelState({}, None)
    iteration = source.iteration
    metadata = legacy.Metadata(
        source.described_config(),
        iteration.epoch_idx * iteration.num_edge_paths + iteration.edge_path_idx if iteration else None,
        iteration.edge_chunk_idx if iteration else None,
        model.parameters,
        model.optimizer_state,
    )
    legacy.write_metadata(target_uri, version, metadata)
    legacy.commit(target_uri, version)
    return []
