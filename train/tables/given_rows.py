"""The first rows that `train.init_embeddings` gives, as all workers of a run read them.

    {checkpoint_path}/initial/                  from the start of a run to its end
        given.json                              what they are made from; factor and figures of each type
        {type}/part-{partition:05d}.parquet
            index       int64                   row of the partition
            embedding   fixed_size_list<float32>[W]
        checksums.xxh128

A run that is killed before its first version finds them again, and starts from the same rows. The members
of an ensemble share those of the joined checkpoint. Versions hold all rows: then nothing reads this folder.
No import of torch: the client looks at the folder.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from graphmill import storage
from graphmill.config import Config
from graphmill.errors import FormatError, NotFoundError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.parquet import check_schema, iter_columns, open_parquet
from graphmill.formats.parquet.vectors import ParquetTable, new_table
from graphmill.run.lock import Claim
from graphmill.storage import Checksums
from graphmill.vocab import Partition

FOLDER = "initial"
CONTENT = "given.json"
INDEX, VALUES = "index", "embedding"
_READ_BYTES = 32 << 20

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


class Given(NamedTuple):
    """Rows of a type that are given."""

    first: int  # element of a row that is given: 1 where element 0 is a bias
    width: int  # number of elements that are given
    factor: float  # of their numbers


def schema(width: int) -> pa.Schema:
    """Columns of a part whose rows are given `width` elements."""
    fields = [pa.field(INDEX, pa.int64(), nullable=False)]
    return pa.schema([*fields, pa.field(VALUES, pa.list_(pa.float32(), width), nullable=False)])


def given_paths(config: Config) -> dict[str, str]:
    """The path of the vectors that users give, by type (`train.init_embeddings`)."""
    return {name: path for name, path in sorted(config.train.init_embeddings.items()) if path}


def folder_of(config: Config) -> str:
    """The folder of a run, or of the ensemble that the run belongs to."""
    return config.train.given_at or storage.join(config.checkpoint_path, FOLDER)


def part_uri(folder: str, entity_type: str, partition: int) -> str:
    """The file with the given rows of one partition."""
    return storage.join(folder, entity_type, f"part-{partition:05d}.parquet")


@contextmanager
def new_part(
    folder: str, entity_type: str, partition: int, width: int, checksums: Checksums
) -> Iterator[ParquetTable]:
    """Write a part: the body appends row numbers and the elements that these are given."""
    uri = part_uri(folder, entity_type, partition)
    with (
        storage.atomic_output(uri, is_large=True, checksums=checksums) as stream,
        new_table(stream, schema(width), is_plain=True, compression="zstd") as table,
    ):
        yield table


def content_of(folder: str) -> dict[str, Any] | None:
    """The content of given.json; None where no rows have been made."""
    uri = storage.join(folder, CONTENT)
    return storage.read_json(uri) if storage.exists(uri) else None


def is_made(folder: str, made_from: Any) -> bool:
    """Tell whether a run that was killed has made the rows, from the same."""
    content = content_of(folder)
    return content is not None and bool(content.get("made_from") == made_from)


def figures_of(folder: str) -> dict[str, Any]:
    """Figures of each type for run.json; empty where no rows have been made, or training has ended."""
    content = content_of(folder)
    return {name: made["figures"] for name, made in content["types"].items()} if content else {}


def delete(folder: str, claim: Claim) -> None:
    """Delete the rows, which the versions of the run hold."""
    if content_of(folder) is not None:
        claim.check()
        storage.delete(folder)


def write_content(folder: str, made_from: Any, types: Mapping[str, Any], checksums: Checksums) -> None:
    """Write given.json and the checksums of all parts, after these."""
    storage.write_checksums(storage.manifest_of(folder).uri, checksums)
    content = {"made_from": made_from, "types": types}
    storage.write_json(storage.join(folder, CONTENT), content, indent=1, sort_keys=True)


class EarlierRows:
    """Finds the rows of an earlier run that a run has too: its first ones, in the order of that run.

    They are all rows of the earlier run, unless etl has left out ids that were gone (`etl.forget_after`): the
    entity index then says which row an id had (docs/formats/entity_index.md).
    """

    def __init__(self, entity_path: str) -> None:
        self._entity_path = entity_path
        try:
            self._num_previous = entity_index.read_manifest(entity_path).num_previous
        except NotFoundError:  # entities that etl has not written
            self._num_previous = None

    def kept(self, entity_type: str, partition: Partition, num_earlier: int, uri: str) -> Numbers:
        """Find rows of a partition, ascending, of `num_earlier` rows in the earlier run's `uri`."""
        counts = (self._num_previous or {}).get(entity_type)
        if counts is None:
            return np.arange(num_earlier)
        if counts[partition] != num_earlier:
            raise FormatError(
                f"{uri}: expected {counts[partition]} rows, as the entities have that {self._entity_path} "
                f"follows (etl.previous_entity_path), found {num_earlier}; set init_path to the checkpoint "
                "of that run, or start without init_path"
            )
        num_ids = entity_counts.read_count(self._entity_path, entity_type, partition)
        place = (self._entity_path, entity_type, partition)
        return entity_index.read_previous_index(*place, num_ids, num_earlier)


class GivenRows:
    """Reads the rows in a folder such as `initial/`, of some types; holds none of them."""

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self.folder = folder

    def of(self, entity_type: str, partition: int) -> Iterator[tuple[Numbers, slice, Floats]]:
        """Batches of given rows: their numbers [n], the elements that they are given, and these [n, W]."""
        if entity_type not in self._names:
            return
        given = self._types[entity_type]
        uri = part_uri(self.folder, entity_type, partition)
        where = slice(given.first, given.first + given.width)
        with open_parquet(uri, storage.manifest_of(self.folder)) as parquet:
            check_schema(parquet, {field.name: (field.type,) for field in schema(given.width)}, uri)
            batch_rows = max(1, _READ_BYTES // max(1, 4 * given.width))  # files without rows have no width
            for _, (index, rows) in iter_columns(parquet, uri, [INDEX, VALUES], batch_rows):
                rows_nW = rows.flatten().to_numpy().reshape(len(index), given.width)
                yield index.to_numpy(), where, rows_nW * np.float32(given.factor)

    @cached_property
    def _types(self) -> dict[str, Given]:
        content = content_of(self.folder)
        if content is None:
            raise FormatError(
                f"{self.folder}: expected the first rows of a run, found none; train with the command "
                "`graphmill train`, which makes them first"
            )
        return {name: Given(*entry["given"]) for name, entry in content["types"].items()}
