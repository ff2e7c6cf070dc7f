"""Settings that every task of an export gets: the vectors of a type, their codec, and how to write them.

Shapes: N rows of a batch, D dimension.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from graphmill.ask.entities import EntityTable, checked_rows
from graphmill.ask.export.codecs import Codec, EncodedVectors
from graphmill.ask.export.fitting import Prepare, rows_of_batch
from graphmill.config import Config


@dataclass(frozen=True)
class Source:
    """Vectors of one entity type.

    Attributes:
        prepare: what is done to vectors before they are encoded.
        config: the run.
        limit: rows at most, the most frequent first (tensorboard-projector).
        escape_ids: write white space in ids as %20 (word2vec).
    """

    table: EntityTable
    codec: Codec
    prepare: Prepare
    config: Config
    limit: int
    escape_ids: bool

    @property
    def entity_type(self) -> str:
        """The type."""
        return self.table.entity_type

    def batches(self, partition: int) -> Iterator[tuple[pa.Array, EncodedVectors]]:
        """Read a partition: raw ids (string [N]) and encoded vectors; some megabytes at a time."""
        part = self.table.parts[partition]
        trained = replace(self.table.trained, allow_non_finite=False)
        rows = checked_rows(trained, part, rows_of_batch(part.dimension), doing="exporting")
        for ids, vectors_ND in rows:
            yield ids, self.codec.encode(self.prepare(vectors_ND))

    def all_batches(self) -> Iterator[tuple[pa.Array, EncodedVectors]]:
        """Read all partitions, one after the other."""
        for part in self.table.parts:
            yield from self.batches(part.partition)
