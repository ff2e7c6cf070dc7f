"""Makes the first rows of a run from vectors that users bring (`train.init_embeddings`).

    files -> checked batches -> projected, if they are longer than the rows
      -> divided into files on the local disk, by the partition that the hash of the raw id says
      -> partition by partition: joined with the entity index -> {checkpoint_path}/initial/ (`given_rows`)

The files may be larger than memory. Memory takes the raw ids of a partition, a batch of vectors, and L x L
numbers to project vectors of length L; the disk takes W numbers for each vector, in the graph or not.

Shapes: n vectors of a batch, L their length, W elements that a row takes of them, N rows of a partition.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill import storage
from graphmill.ask.ids import IdSearch
from graphmill.ask.principal import Components, moments_of
from graphmill.checkpoints import pbg
from graphmill.checkpoints.id_join import Files
from graphmill.checkpoints.id_maps import MOST_FILES, Numbers
from graphmill.config import Config
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.murmur import HASH_NAME, hash_strings, mix, scale
from graphmill.formats.raw_tables import cut
from graphmill.run import fingerprints
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums, run_folder
from train.model.frozen import Frozen
from train.tables.given_rows import (
    EarlierRows,
    Given,
    figures_of,
    folder_of,
    given_paths,
    is_made,
    new_part,
    write_content,
)
from train.tables.vector_files import VectorFiles, paths_of

SAMPLE = 100_000
"""Vectors, about, that a projection is fitted on, of more: those whose ids have the smallest hashes."""
MOST_LENGTH = 8192  # a matrix of L x L numbers of 8 bytes, and its factors, are in memory
WRITE_BYTES = 32 << 20

log = logging.getLogger("graphmill")


def inputs_of(config: Config) -> list[str]:
    """List what first rows come from, for a fingerprint: init_path, the files and folders of all vectors."""
    vectors = (uri for path in given_paths(config).values() for uri in (paths_of(path) or [path]))
    return [*filter(None, [config.init_path]), *vectors]


def check(config: Config) -> None:
    """Refuse vectors of types that do not exist, and paths where nothing is."""
    for name, path in given_paths(config).items():
        if name not in config.entities:
            known = ", ".join(config.entities)
            raise ConfigError(f"train.init_embeddings.{name}: no such entity type; there are {known}")
        if not paths_of(path):
            raise NotFoundError(
                f"train.init_embeddings.{name}: {path}: no file there to read vectors from; correct the "
                "path, or leave the key out"
            )


def is_needed(config: Config, models: Sequence[Config]) -> bool:
    """Tell whether rows have yet to be made: there is no version, and no killed run has made them."""
    if not given_paths(config) or all(pbg.read_version(model.checkpoint_path) for model in models):
        return False
    return not is_made(folder_of(config), _made_from(config))


def make(config: Config, claim: Claim = NO_CLAIM) -> None:
    """Make the rows of all types in this process; the configuration is that of one model."""
    types, checksums = dict[str, Any](), Checksums()
    made_from = _made_from(config)
    with storage.atomic_directory(folder_of(config)) as folder:
        for name, path in given_paths(config).items():
            types[name] = _Maker(config, name, path).make(folder, checksums)
        write_content(folder, made_from, types, checksums)
        claim.check()


def figures(config: Config) -> dict[str, Any]:
    """Figures of each type for run.json; empty where no rows have been made, or training has ended."""
    return figures_of(folder_of(config)) if given_paths(config) else {}


def told(config: Config) -> list[str]:
    """Tell, one line for each type, what has become of the vectors."""
    lines = []
    for name, entry in figures(config).items():
        kept = entry["num_of_init_path"]
        share = entry.get("explained_variance")
        lines.append(
            f"{name!r}: ids that take a vector: {entry['num_taken']:,} (of {entry['num_vectors']:,}, "
            f"length {entry['length']}); {f'that keep rows of init_path: {kept:,}; ' if kept else ''}"
            f"without one: {entry['num_drawn']:,}; vectors not in the graph: {entry['num_not_in_graph']:,}"
            + ("" if share is None else f"; their principal components explain {share:.1%} of the variance")
        )
    return lines


def _made_from(config: Config) -> dict[str, Any]:
    """All that the rows depend on, as JSON types."""
    return {
        "paths": given_paths(config),
        "inputs": fingerprints.describe_inputs([config.entity_path, *inputs_of(config)]),
        "dimensions": {name: config.entity_dimension(name) for name in given_paths(config)},
        "bias": config.bias,
        "popularity": config.train.popularity,
        "scale": _scale(config),
    }


def _scale(config: Config) -> float:
    """Root mean square of the given elements.

    The first step of Adagrad moves an element by lr, whatever its gradient: smaller vectors would be lost in
    it, and much larger ones, where they are of no use, take epochs to unlearn.
    """
    return max(config.lr, config.init_scale)


class _Maker:
    """Makes the rows of one entity type."""

    def __init__(self, config: Config, entity_type: str, path: str) -> None:
        self.config, self.entity_type = config, entity_type
        self.num_partitions = config.entities[entity_type].num_partitions
        self.manifest = entity_index.read_manifest(config.entity_path)
        self.earlier_rows = EarlierRows(config.entity_path)
        self._check_index()
        counts = entity_counts.read_counts(config.entity_path, {entity_type: self.num_partitions})
        self.num_ids = sum(counts[entity_type])
        self.files = VectorFiles(path)
        self.is_frozen = entity_type in Frozen.of(config).types
        dimension = config.entity_dimension(entity_type)
        has_popularity = config.train.popularity and self.files.length != dimension
        self.first = int(config.bias or has_popularity)
        room = dimension - self.first
        self.width = min(self.files.length, room)
        self._check_frozen(room)
        self.projection = self._fitted() if self.files.length > room else None
        self.num_taken = self.num_known = 0
        self.sum_of_squares = 0.0

    def make(self, folder: str, checksums: Checksums) -> dict[str, Any]:
        """Write all partitions below `folder`; returns what given.json has of the type."""
        with run_folder.temporary() as scratch:
            divided = self._divided(scratch)
            for partition in range(self.num_partitions):
                self._write(folder, partition, divided, checksums)
        self._check_known()
        num_elements = self.num_taken * self.width
        mean = math.sqrt(self.sum_of_squares / num_elements) if num_elements else 0.0
        factor = _scale(self.config) / mean if mean else 1.0
        return {"given": Given(self.first, self.width, factor), "figures": self._figures()}

    def _figures(self) -> dict[str, Any]:
        counted: dict[str, Any] = {
            "num_vectors": sum(self.files.num_rows),
            "length": self.files.length,
            "num_taken": self.num_taken,
            "num_drawn": self.num_ids - self.num_known,
            "num_not_in_graph": sum(self.files.num_rows) - self.num_known,
            "num_of_init_path": self.num_known - self.num_taken,
        }
        if self.projection is not None:
            counted["explained_variance"] = round(float(self.projection.share_K.sum()), 4)
            counted["num_fitted"] = self.num_fitted
        return counted

    def _check_index(self) -> None:
        num_partitions = self.manifest.num_partitions.get(self.entity_type)
        if num_partitions != self.num_partitions or self.manifest.hash_name != HASH_NAME:
            raise FormatError(
                f"{self.config.entity_path}: train.init_embeddings needs an entity index of {HASH_NAME} with "
                f"{self.num_partitions} partitions of {self.entity_type!r}, found {self.manifest.hash_name} "
                f"and {num_partitions}; run etl again"
            )

    def _check_frozen(self, room: int) -> None:
        if self.width < room and self.is_frozen and self.files.length:
            raise ConfigError(
                f"train.init_embeddings.{self.entity_type}: vectors of length {self.files.length} are "
                f"shorter than the rows ({room}), and train.freeze would keep what is drawn for the rest; "
                f"set dimension to {self.files.length + self.first}, or do not freeze {self.entity_type!r}"
            )

    def _check_known(self) -> None:
        num_vectors, num_ids = sum(self.files.num_rows), self.num_ids
        key = f"train.init_embeddings.{self.entity_type}"
        if num_ids and not self.num_known and (num_vectors or self.is_frozen):
            message = (
                f"{key}: expected vectors of the {num_ids:,} ids of the graph, found none of them among "
                f"{num_vectors:,}; ids are compared as text: is this file of another type, or are its ids "
                "written in another way?"
            )
            if self.is_frozen:
                raise ConfigError(f"{message} train.freeze would keep random rows")
            log.warning(message)
        elif self.is_frozen and (num_drawn := num_ids - self.num_known):
            log.warning(
                "%s: ids without a vector keep a random one, as train.freeze says: %d of %d",
                key,
                num_drawn,
                num_ids,
            )

    def _fitted(self) -> Components:
        if self.files.length > MOST_LENGTH:
            raise FormatError(
                f"vectors of length {self.files.length}: expected {MOST_LENGTH} at most to project them to "
                f"{self.width} components; shorten them first"
            )
        num_rows = sum(self.files.num_rows)
        share = min(1.0, SAMPLE / num_rows)
        batches = (
            batch.vectors_nL
            if share == 1
            else batch.vectors_nL[mix(hash_strings(batch.ids, 0)) < np.uint64(share * 2**64)]
            for batch in self.files.batches()
        )
        moments = moments_of(batches)
        assert moments is not None  # a sample of many vectors has some
        self.num_fitted = moments.num
        return Components.of(moments, self.width)

    def _divided(self, scratch: str) -> Files:
        vector = pa.list_(pa.float32(), self.width)
        columns = [("id", pa.string()), ("partition", pa.int64()), ("row", pa.int64()), ("vector", vector)]
        divided = Files(scratch, "vectors", min(self.num_partitions, MOST_FILES), pa.schema(columns))
        firsts = np.cumsum([0, *self.files.num_rows])
        for batch in self.files.batches():
            vectors_nW = batch.vectors_nL if self.projection is None else self.projection(batch.vectors_nL)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_nW.reshape(-1)), type=vector)
            hashes = hash_strings(batch.ids, self.manifest.seed)
            partitions = scale(hashes, self.num_partitions).astype(np.int64)
            rows = firsts[batch.file] + batch.first_row + np.arange(len(batch.ids))
            divided.add([batch.ids, partitions, rows, vectors], partitions % len(divided))
        divided.close()
        return divided

    def _write(self, folder: str, partition: int, divided: Files, checksums: Checksums) -> None:
        index = IdSearch(entity_index.read_part(self.config.entity_path, self.entity_type, partition))
        first_new = self._num_saved(partition)
        read_at = np.full(len(index), -1, np.int64)  # the row of the files that an id was found in
        with new_part(folder, self.entity_type, partition, self.width, checksums) as table:
            batches = (pa.Table.from_batches([batch]) for batch in divided.batches(partition % len(divided)))
            for batch in cut(batches, WRITE_BYTES // (4 * max(self.width, 1))):  # few row groups
                batch = batch.filter(pc.equal(batch["partition"], partition))
                rows, at = index.among(batch["id"].combine_chunks())
                self._refuse_twice(batch, rows, at, read_at)
                self.num_known += len(rows)
                is_new = rows >= first_new
                rows, at = rows[is_new], at[is_new]
                values = batch["vector"].combine_chunks().flatten().to_numpy()
                vectors_nW = values.reshape(-1, self.width)[at]
                self.num_taken += len(rows)
                self.sum_of_squares += float(np.square(vectors_nW, dtype=np.float64).sum())
                table.append([pa.array(rows), vectors_nW])

    def _num_saved(self, partition: int) -> int:
        """First rows of the partition, from the checkpoint at init_path, which stay as they are there."""
        path = self.config.init_path
        if path is None:
            return 0
        version = pbg.read_version(path)
        if partition >= pbg.num_partitions(path, version).get(self.entity_type, 0):
            return 0
        with pbg.open_embeddings(path, self.entity_type, partition, version) as rows:
            num_saved = rows.shape[0]
        uri = pbg.embeddings_uri(path, self.entity_type, partition, version)
        return len(self.earlier_rows.kept(self.entity_type, partition, num_saved, uri))

    def _refuse_twice(self, batch: pa.Table, rows: Numbers, at: Numbers, read_at: Numbers) -> None:
        numbers = batch["row"].to_numpy()[at]
        earlier = read_at[rows]
        order = np.argsort(rows, kind="stable")
        again = np.flatnonzero(rows[order[1:]] == rows[order[:-1]])
        earlier[order[again + 1]] = numbers[order[again]]
        wrong = np.flatnonzero(earlier >= 0)
        if len(wrong):
            first = int(wrong[0])
            raise FormatError(
                f"{self.files.place(int(numbers[first]))}: id {batch['id'][int(at[first])].as_py()!r} "
                f"again, after {self.files.place(int(earlier[first]))}; expected an id once; leave one of "
                "the rows out"
            )
        read_at[rows] = numbers
