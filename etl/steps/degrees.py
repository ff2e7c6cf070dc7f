"""Degrees of the entities: counted in buckets, for runs that have not read all rows anew; and quantiles.

For quantiles, in memory that does not grow with the number of entities, degrees are counted in bins: one bin
per degree below 128, and above that one bin per leading seven binary digits. A quantile is at most 1/64 too
low.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.steps.task_settings import Partition, TaskSettings
from etl.strings.native import add_counts, take
from graphmill.errors import FormatError
from graphmill.formats import entity_index
from graphmill.formats.edge_buckets.origins import AllRows, open_all_rows
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import TRAIN_SPLIT, Bucket, Side

_PIECE_ROWS = 1 << 20
_DIGITS = 7
_SHOWN_DIGITS = 3
NUM_HIGHEST = 10
MAX_SHOWN_BYTES = 200  # longer ids are not shown in run.json
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, eq=False)
class Degrees:
    """Degrees of some ids in train edges."""

    floors: Int64
    """[bins] smallest degree of each bin that is not empty, ascending."""
    counts: Int64
    """[bins] ids in it."""
    largest: int
    highest: list[tuple[int, str]]
    """Most train edges of an id, and the id, most first."""

    @property
    def num_outside_train(self) -> int:
        """Number of ids without an edge."""
        return int(self.counts[self.floors == 0].sum())


def count_degrees(degrees: Int64, highest: list[tuple[int, str]]) -> Degrees:
    """Count ids by degree."""
    floors, counts = np.unique(_floors(degrees, _DIGITS)[0], return_counts=True)
    return Degrees(floors, counts, int(degrees.max(initial=0)), highest)


def histogram(merged: Degrees) -> list[list[int]]:
    """Count entities by degree, in up to four bins per octave: [first degree, last, entities], ascending."""
    floors, widths = _floors(merged.floors, _SHOWN_DIGITS)
    first, at, places = np.unique(floors, return_index=True, return_inverse=True)
    entities = np.bincount(places, merged.counts).astype(np.int64)
    bins: list[list[int]] = np.stack([first, first + widths[at] - 1, entities], axis=1).tolist()
    return bins


def summarize(merged: Degrees) -> dict[str, int]:
    """Return quantiles of the degrees: min, p50, p90, p99, p99.9, max; nothing of no entity."""
    if not len(merged.floors):
        return {}
    below = np.cumsum(merged.counts)
    at = np.searchsorted(below, [int(np.ceil(quantile * below[-1])) for quantile in QUANTILES])
    names = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    quantiles = dict(zip(names, merged.floors[at].tolist(), strict=True))
    return {"min": int(merged.floors[0]), **quantiles, "max": merged.largest}


def _floors(degrees: Int64, digits: int) -> tuple[Int64, Int64]:
    """Return the smallest degree of the bin of each degree, and the width of that bin."""
    length = np.frexp(degrees.astype(np.float64))[1].astype(np.int64)  # binary digits
    dropped = np.maximum(length - digits, 0)
    return degrees >> dropped << dropped, 1 << dropped


def highest_degrees(ids: pa.Array, degrees: Int64) -> list[tuple[int, str]]:
    """Return the `NUM_HIGHEST` ids with most edges, as `top_degrees`; none with long raw ids."""
    is_shown = pc.less_equal(pc.binary_length(ids), MAX_SHOWN_BYTES).to_numpy(zero_copy_only=False)
    shown = np.where(is_shown, degrees, 0)
    least = int(np.partition(shown, -NUM_HIGHEST)[-NUM_HIGHEST]) if len(shown) > NUM_HIGHEST else 0
    rows = np.flatnonzero(shown >= max(least, 1))  # many, where many have as few edges as the last one
    table = pa.table({"id": ids.take(pa.array(rows)), "degree": shown[rows]})
    order = [("degree", "descending"), ("id", "ascending")]
    table = table.take(pc.select_k_unstable(table, NUM_HIGHEST, order))
    return list(zip(table["degree"].to_pylist(), table["id"].to_pylist(), strict=True))


def top_degrees(pairs: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the `NUM_HIGHEST` ids with most edges; of equal ones the first by raw id."""
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:NUM_HIGHEST]


def sum_degrees(parts: Sequence[Degrees]) -> Degrees:
    """Add up the degrees of several shards or partitions."""
    floors, places = np.unique(np.concatenate([part.floors for part in parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in parts])).astype(np.int64)
    highest = top_degrees(pair for part in parts for pair in part.highest)
    return Degrees(floors, counts, max(part.largest for part in parts), highest)


def count_partition(settings: TaskSettings, partition: Partition, num_entities: int) -> Degrees:
    """Count the rows of each id of a partition in the written buckets.

    Duplicates that were left out count too, unless tables take out edges: edges alone count then.
    """
    counts = np.zeros(num_entities, np.int64)
    for side, is_own, bucket in buckets_of(settings, partition):
        columns = [side] if is_own is None else ["rel", side]
        with open_all_rows(settings.folders.splits[TRAIN_SPLIT], bucket, columns) as rows:
            for at in _indices(rows, side, is_own, edges_only=settings.removes):
                check_indices(at, num_entities, side, rows.uri)
                add_counts(at, counts)
    return count_degrees(counts, _highest(settings, partition, counts))


def _indices(rows: AllRows, side: Side, is_own: Int32 | None, *, edges_only: bool) -> Iterator[Int32]:
    """Read the indices of one side, piece by piece, in rows of the relations that are own; None: all."""
    read = rows.read_edges if edges_only else rows.read
    num_rows = int((rows.origins.starts if edges_only else rows.starts)[-1])
    for start in range(0, num_rows, _PIECE_ROWS):
        stop = min(start + _PIECE_ROWS, num_rows)
        at = read(start, stop, side, np.int32)
        if is_own is not None:
            at = at[are_own(read(start, stop, "rel", np.int32), is_own, rows.uri)]
        yield at


def _highest(settings: TaskSettings, partition: Partition, counts: Int64) -> list[tuple[int, str]]:
    highest: list[tuple[int, str]] = []
    first = 0
    for ids in entity_index.iter_part(settings.folders.entities, *partition, _PIECE_ROWS):
        of_batch = highest_degrees(ids, counts[first : first + len(ids)])
        highest = top_degrees([*highest, *of_batch])
        first += len(ids)
    return highest


def own_relations(settings: TaskSettings, entity_type: str, side: Side) -> Int32 | None:
    """Tell by 1 and 0 which relations [R] have a type on a side; None: all."""
    types = [relation.entity_type(side) == entity_type for relation in settings.relations]
    return None if all(types) else np.array(types, np.int32)


def buckets_of(settings: TaskSettings, partition: Partition) -> Iterator[tuple[Side, Int32 | None, Bucket]]:
    """Yield each side and bucket that may have ids of the partition, with the side's `own_relations`.

    A type with one partition is in all buckets.
    """
    for side in Side:
        is_own = own_relations(settings, partition.entity_type, side)
        if is_own is not None and not is_own.any():
            continue
        slices = range(settings.grid[side is Side.RHS])
        if settings.num_partitions[partition.entity_type] == len(slices):
            slices = range(partition.number, partition.number + 1)
        for own, other in product(slices, range(settings.grid[side is Side.LHS])):
            yield side, is_own, Bucket(own, other) if side is Side.LHS else Bucket(other, own)


def are_own(rel: Int32, is_own: Int32, uri: str) -> npt.NDArray[np.bool_]:
    """Return a mask of rows, by their relations, that are own by `own_relations`."""
    check_indices(rel, len(is_own), "rel", uri)
    owned: npt.NDArray[np.bool_] = take(is_own, rel) == 1
    return owned


def check_indices(values: Int32, limit: int, column: str, uri: str) -> None:
    """Refuse values that a bucket of an earlier run cannot have."""
    if int(values.min(initial=0)) < 0:
        raise FormatError(f"{uri}: {column}: expected no number below 0, found {values.min()}")
    if int(values.max(initial=-1)) >= limit:
        raise FormatError(
            f"{uri}: {column} holds {values.max()}; expected less than {limit}: the edges of "
            "etl.previous_edge_path are not those of etl.previous_entity_path"
        )
