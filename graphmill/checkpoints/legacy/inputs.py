"""Legacy input: entity counts, edge files, and the index base of a folder: numbers from 0 or from 1.

PBG numbered partitions, buckets and indices from 1 until February 2019, and from 0 since. For three weeks
PBG read both, and guessed from the names of the files. This module makes the same guess, but refuses names
that fit both bases or neither: an off-by-one makes every row wrong, and no row shows it. Readers return
indices from 0. An index below the index base is an error: it shows that the base is wrong.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import edge_buckets
from graphmill.formats.edge_buckets import COLUMNS, Edges
from graphmill.formats.entity_counts import numbers_by_type
from graphmill.formats.hdf5 import DatasetWriter, check_least
from graphmill.vocab import Bucket

IndexBase = Literal["auto", 0, 1]

_SHOWN = 3
_REMEDY = "set index_base to 0 or 1"

RELATION_COUNT = "dynamic_rel_count.pt"

_COUNT, *_OF_V1 = (
    re.compile(rf"^entity_{kind}_(?P<type>.+)_(?P<partition>0|[1-9]\d*)\.{end}$")
    for kind, end in (("count", "pt"), ("count", "txt"), ("names", "json"))
)


def of_partitions(
    numbers: Mapping[str, Set[int]],
    index_base: IndexBase,
    where: str,
    file_of: Callable[[str, int], str],
    num_partitions: Mapping[str, int] | None = None,
) -> int:
    """Number of the first partition, from the partition numbers in the names of each type's files.

    `where` is the folder, for messages, and `file_of` the file of a type's number. `num_partitions` is of
    each type, where known; by default all files count.
    """
    counts = dict(num_partitions or {name: len(files) for name, files in numbers.items()})
    bases = (0, 1) if index_base == "auto" else (index_base,)
    fits = [
        base
        for base in bases
        if all(_has_all(numbers.get(name, set()), base, num) for name, num in counts.items())
    ]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        _check_none_is_lost(numbers, bases, file_of, num_partitions)
    shown = "; ".join(f"{name}: {', '.join(map(str, sorted(number)))}" for name, number in numbers.items())
    if index_base != "auto":
        raise FormatError(f"{where}: partitions from {index_base} on are not complete; found {shown}")
    fit = "fits numbering from 0 and from 1" if fits else "fits neither numbering from 0 nor from 1"
    raise FormatError(f"{where}: cannot tell the index base: {fit}; found partitions {shown}; {_REMEDY}")


def _check_none_is_lost(
    numbers: Mapping[str, Set[int]],
    bases: Iterable[int],
    file_of: Callable[[str, int], str],
    num_partitions: Mapping[str, int] | None,
) -> None:
    """Refuse names that lack a partition, by each base that they may have."""
    lost: list[str] = []
    for base in bases:
        files = (
            f"{file_of(name, number)} (partition {number - base + 1} of {wanted.stop - base} of {name!r})"
            for name, wanted in _wanted(numbers, base, num_partitions).items()
            for number in wanted
            if number not in numbers.get(name, set())
        )
        lost += filter(None, [", ".join(islice(files, _SHOWN))])
    if lost:
        raise FormatError(
            f"{', or '.join(lost)}: this partition is lost, there is no such file; copy it from where the "
            "others came from, or use a version or a copy that is complete"
        )


def _has_all(known: Set[int], base: int, num: int) -> bool:
    return len(known) >= num and all(number in known for number in range(base, base + num))


def _wanted(
    numbers: Mapping[str, Set[int]], base: int, num_partitions: Mapping[str, int] | None
) -> dict[str, range]:
    """Numbers that each type should have by this base; none if a number shows that the base is another one.

    Without `num_partitions`, only gaps show that a partition is lost.
    """
    if num_partitions is None:
        is_other = 1 - base in map(min, numbers.values())
        return {} if is_other else {name: range(base, max(files) + 1) for name, files in numbers.items()}
    wanted = {name: range(base, base + num) for name, num in num_partitions.items()}
    has_others = any(number not in wanted[name] for name in wanted for number in numbers.get(name, ()))
    return {} if has_others else wanted


def of_buckets(buckets: Collection[Bucket], index_base: IndexBase, where: str) -> int:
    """Number of the first bucket on each side, and of the first entity and relation in the edge files."""
    if index_base != "auto":
        return index_base
    if (0, 0) in buckets:
        return 0
    if (1, 1) in buckets:
        return 1
    raise FormatError(
        f"{where}: cannot tell the index base: expected edges_0_0.h5 or edges_1_1.h5, found neither "
        f"among {len(buckets)} buckets; {_REMEDY}"
    )


def partitions_of_ids(entity_path: str) -> dict[str, int]:
    """Number of partitions of each type, as the files of counts and of names in a folder tell."""
    names = [storage.name(entry.uri) for entry in storage.list_dir(entity_path)]
    told: dict[str, int] = {}
    for pattern in (_COUNT, *_OF_V1):
        for name, numbers in numbers_by_type(names, pattern).items():
            told[name] = max(told.get(name, 0), len(numbers))
    return told


def count_uri(entity_path: str, entity_type: str, number: int) -> str:
    """Place of the number of rows of one partition; `number` is the number in the file's name."""
    return storage.join(entity_path, f"entity_count_{entity_type}_{number}.pt")


def named(bucket: Bucket, index_base: int) -> Bucket:
    """A bucket, which is counted from 0, as the name of its file counts it."""
    return Bucket(bucket.lhs + index_base, bucket.rhs + index_base)


def find_index_base(entity_path: str, edge_paths: Sequence[str], index_base: IndexBase) -> int:
    """The index base, from the names of the count files and of the edge files."""
    base = of_partitions(
        _partition_numbers(entity_path), index_base, entity_path, partial(count_uri, entity_path)
    )
    bases_by_uri = {entity_path: base} | {
        uri: of_buckets(edge_buckets.list_buckets(uri), index_base, uri) for uri in edge_paths
    }
    if len(set(bases_by_uri.values())) > 1:
        described = "; ".join(f"{uri} from {base}" for uri, base in bases_by_uri.items())
        raise FormatError(f"numbers start differently: {described}; set index_base to 0 or 1")
    return base


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


def iter_edges(edge_path: str, bucket: Bucket, index_base: int, batch_edges: int) -> Iterator[Edges]:
    """The bucket's edges, counted from 0, at most `batch_edges` at a time."""
    stored, remark = named(bucket, index_base), f": is index_base {index_base} right?"
    uri = edge_buckets.bucket_uri(edge_path, stored)
    num_edges = edge_buckets.count_edges(edge_path, stored, versioned=False)
    for start in range(0, num_edges, batch_edges):
        edges = edge_buckets.read_bucket(edge_path, stored, start, start + batch_edges, versioned=False)
        if edges.weight is not None:
            raise FormatError(f"{uri}: expected lhs, rel and rhs alone, found weight too")
        for column in COLUMNS:
            check_least(getattr(edges, column), index_base, column, uri, start, remark)
        yield Edges(edges.lhs - index_base, edges.rel - index_base, edges.rhs - index_base)


def write_bucket(
    edge_path: str, bucket: Bucket, index_base: int, num_edges: int, batches: Iterable[Edges]
) -> None:
    """Write a bucket of `num_edges` edges, which are counted from 0, from batches of them."""
    uri = edge_buckets.bucket_uri(edge_path, named(bucket, index_base))
    with storage.create_hdf5(uri) as hdf5:
        writer = DatasetWriter(hdf5, uri, num_edges, dict.fromkeys(COLUMNS, np.int64), rows="edges")
        writer.fill({name: getattr(edges, name) + index_base for name in COLUMNS} for edges in batches)


def _partition_numbers(entity_path: str) -> dict[str, set[int]]:
    names = (storage.name(entry.uri) for entry in storage.list_dir(entity_path))
    if not (numbers := numbers_by_type(names, _COUNT)):
        raise FormatError(f"{entity_path}: expected entity_count_*.pt files, found none")
    return numbers


def _read_integer(uri: str) -> int:
    from graphmill.formats.torch_files.read import load  # imports torch, which takes a second

    number = load(uri)
    if type(number) is not int or number < 0:
        raise FormatError(f"{uri}: expected one integer that is not negative, found {number!r:.40}")
    return number
