"""Legacy input: entity counts and edge files.

Readers return indices from 0. An index below the index base is an error: it shows that the base is wrong.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.checkpoints.legacy.index_base import IndexBase, of_buckets, of_partitions
from graphmill.errors import FormatError
from graphmill.formats.hdf5 import DatasetWriter, check_least, checked_dataset, open_checked, read_rows
from graphmill.formats.partition_numbers import numbers_by_type
from graphmill.vocab import Bucket

RELATION_COUNT = "dynamic_rel_count.pt"
COLUMNS = ("lhs", "rel", "rhs")

_COUNT = re.compile(r"^entity_count_(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.pt$")
_BUCKET = re.compile(r"^edges_(?P<lhs>0|[1-9]\d*)_(?P<rhs>0|[1-9]\d*)\.h5$")
_NOT_READ = ("lhsd_offsets", "rhsd_offsets", "weight")

Indices = npt.NDArray[np.int64]


def count_uri(entity_path: str, entity_type: str, number: int) -> str:
    """Place of the number of rows of one partition; `number` is the number in the file's name."""
    return storage.join(entity_path, f"entity_count_{entity_type}_{number}.pt")


def bucket_uri(edge_path: str, bucket: Bucket, index_base: int) -> str:
    """Place of a bucket, which is counted from 0."""
    return storage.join(edge_path, f"edges_{bucket.lhs + index_base}_{bucket.rhs + index_base}.h5")


def find_index_base(entity_path: str, edge_paths: Sequence[str], index_base: IndexBase) -> int:
    """The index base, from the names of the count files and of the edge files.

    Raises:
        FormatError: the names fit no base, or disagree.
    """
    base = of_partitions(
        _partition_numbers(entity_path), index_base, entity_path, partial(count_uri, entity_path)
    )
    bases_by_uri = {entity_path: base}
    for edge_path in edge_paths:
        bases_by_uri[edge_path] = of_buckets(_bucket_numbers(edge_path), index_base, edge_path)
    if len(set(bases_by_uri.values())) > 1:
        described = "; ".join(f"{uri} from {base}" for uri, base in bases_by_uri.items())
        raise FormatError(f"numbers start differently: {described}; set index_base to 0 or 1")
    return bases_by_uri[entity_path]


def read_counts(entity_path: str, index_base: int) -> dict[str, list[int]]:
    """Rows of every partition of every entity type."""
    return {
        entity_type: [
            _read_integer(count_uri(entity_path, entity_type, number))
            for number in range(index_base, index_base + len(numbers))
        ]
        for entity_type, numbers in _partition_numbers(entity_path).items()
    }


def read_relation_count(entity_path: str) -> int | None:
    """Number of dynamic relations; None where relations are static."""
    uri = storage.join(entity_path, RELATION_COUNT)
    return _read_integer(uri) if storage.exists(uri) else None


def list_buckets(edge_path: str, index_base: int) -> list[Bucket]:
    """The buckets with a file in the folder, counted from 0."""
    return [Bucket(lhs - index_base, rhs - index_base) for lhs, rhs in sorted(_bucket_numbers(edge_path))]


def count_edges(edge_path: str, bucket: Bucket, index_base: int) -> int:
    """Number of edges in the bucket."""
    with _open_bucket(bucket_uri(edge_path, bucket, index_base)) as datasets:
        return len(datasets[0])


def iter_edges(
    edge_path: str, bucket: Bucket, index_base: int, batch_edges: int
) -> Iterator[tuple[Indices, Indices, Indices]]:
    """lhs, rel, rhs of the bucket's edges, counted from 0, int64 [<= batch_edges] at a time."""
    uri = bucket_uri(edge_path, bucket, index_base)
    with _open_bucket(uri) as datasets:
        num_edges, remark = len(datasets[0]), f": is index_base {index_base} right?"
        for start in range(0, num_edges, batch_edges):
            stop = min(start + batch_edges, num_edges)
            batch = [read_rows(dataset, start, stop, np.int64) for dataset in datasets]
            for column, values in zip(COLUMNS, batch, strict=True):
                check_least(values, index_base, column, uri, start, remark)
            lhs, rel, rhs = (values - index_base for values in batch)
            yield lhs, rel, rhs


def write_count(entity_path: str, entity_type: str, number: int, count: int) -> None:
    """Write the number of rows of a partition."""
    _write_integer(count_uri(entity_path, entity_type, number), count)


def write_relation_count(entity_path: str, count: int) -> None:
    """Write the number of dynamic relations."""
    _write_integer(storage.join(entity_path, RELATION_COUNT), count)


def write_bucket(
    edge_path: str,
    bucket: Bucket,
    index_base: int,
    num_edges: int,
    batches: Iterable[tuple[Indices, Indices, Indices]],
) -> None:
    """Write a bucket of `num_edges` edges, from batches of lhs, rel, rhs, counted from 0."""
    uri = bucket_uri(edge_path, bucket, index_base)
    with storage.create_hdf5(uri) as hdf5:
        writer = DatasetWriter(hdf5, uri, num_edges, dict.fromkeys(COLUMNS, np.int64), rows="edges")
        writer.fill(
            {name: values + index_base for name, values in zip(COLUMNS, batch, strict=True)}
            for batch in batches
        )


@contextmanager
def _open_bucket(uri: str) -> Iterator[list[h5py.Dataset]]:
    """lhs, rel, rhs of the file, checked."""
    with open_checked(uri, versioned=False) as hdf5:
        if others := [name for name in _NOT_READ if name in hdf5]:
            raise FormatError(f"{uri}: expected lhs, rel and rhs alone, found {', '.join(others)} too")
        datasets = [checked_dataset(hdf5, column, "iu", uri) for column in COLUMNS]
        if len({len(dataset) for dataset in datasets}) > 1:
            raise FormatError(f"{uri}: expected datasets of one length, found {list(map(len, datasets))}")
        yield datasets


def _partition_numbers(entity_path: str) -> dict[str, set[int]]:
    names = (storage.name(entry.uri) for entry in storage.list_dir(entity_path))
    if not (numbers := numbers_by_type(names, _COUNT)):
        raise FormatError(f"{entity_path}: expected entity_count_*.pt files, found none")
    return numbers


def _bucket_numbers(edge_path: str) -> set[tuple[int, int]]:
    matches = (_BUCKET.match(storage.name(entry.uri)) for entry in storage.list_dir(edge_path))
    return {(int(match["lhs"]), int(match["rhs"])) for match in matches if match}


def _write_integer(uri: str, number: int) -> None:
    from graphmill.formats.torch_files.write import save  # imports torch, which takes a second

    save(uri, number)


def _read_integer(uri: str) -> int:
    from graphmill.formats.torch_files.read import load  # imports torch, which takes a second

    number = load(uri)
    if type(number) is not int or number < 0:
        raise FormatError(f"{uri}: expected one integer that is not negative, found {number!r:.40}")
    return number
