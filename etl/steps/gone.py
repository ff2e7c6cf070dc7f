"""Ids that no edge has any more: since when they are gone, and which of them are forgotten.

An id is gone while no row names it, neither of a table of edges (of any split) nor of entities. After
`etl.forget_after` days it is forgotten: the next run leaves it out, and the ids after it move up. If it comes
back later, it is new.

Shapes: P ids of a partition of the earlier index, K of them that are not forgotten.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from etl.steps.bucket_rows import EarlierIds, KeptRows
from etl.steps.degrees import are_own, buckets_of, check_indices, own_relations
from etl.steps.task_settings import Partition, TaskSettings
from etl.strings.native import NOWHERE, take
from graphmill import storage
from graphmill.errors import FormatError
from graphmill.formats import entity_counts, entity_index
from graphmill.formats.edge_buckets.origins import open_all_rows
from graphmill.formats.entity_index import HERE, History
from graphmill.storage.as_json import Int32, Int64
from graphmill.vocab import Bucket, Side

Bools = npt.NDArray[np.bool_]


def gone_since(settings: TaskSettings, partition: Partition) -> Int32:
    """Return the day since which each id of the earlier index is gone, or `HERE`: [P]."""
    uri = settings.etl.previous_entity_path
    if uri is None or partition.entity_type not in entity_index.read_manifest(uri).num_partitions:
        return np.zeros(0, np.int32)
    num_ids = entity_counts.read_count(uri, *partition)
    days = entity_index.read_gone_since(uri, *partition, num_ids)
    return np.full(num_ids, HERE, np.int32) if days is None else days


def kept_rows(settings: TaskSettings, partition: Partition) -> Int64 | None:
    """Return the rows [K] of the earlier index that are not forgotten; None: none is forgotten."""
    if settings.forget_until is None:
        return None
    is_kept = gone_since(settings, partition) > settings.forget_until
    return None if is_kept.all() else np.flatnonzero(is_kept)


def history_of(
    settings: TaskSettings, partition: Partition, named: Iterable[Int32], earlier: EarlierIds | None
) -> History:
    """Return the history [K] of the ids that were in the earlier index and are not forgotten.

    `named` are indices, in this run, of ids that its chunks name; `earlier` has the edges that it takes over.
    """
    gone_P = gone_since(settings, partition)
    until = settings.forget_until
    row_K = np.arange(len(gone_P)) if until is None else np.flatnonzero(gone_P > until)
    is_named_K, gone_K = np.zeros(len(row_K), bool), gone_P[row_K]
    if earlier is not None:
        is_named_K |= _named_by_kept_rows(settings, partition, earlier, len(gone_P))[row_K]
    for index in named:
        is_named_K[index] = True
    today = settings.today if settings.today is not None else HERE
    gone_K[gone_K == HERE] = today
    return History(np.where(is_named_K, HERE, gone_K).astype(np.int32), row_K)


def history_within(known: History, start: int, stop: int) -> History:
    """Return the history of the ids [start, stop) of a partition; ids after the `known` ones are new."""
    gone_N, row_N = (column[start:stop] for column in known)
    num_new = stop - start - len(row_N)
    return History(
        np.append(gone_N, np.full(num_new, HERE, np.int32)), np.append(row_N, np.full(num_new, -1, np.int64))
    )


def _named_by_kept_rows(
    settings: TaskSettings, partition: Partition, earlier: EarlierIds, num_ids: int
) -> Bools:
    """Return a mask [P] of the ids in rows of the earlier buckets whose files this run has too."""
    is_named = np.zeros(num_ids, bool)
    for side in Side:
        is_own = own_relations(settings, partition.entity_type, side)
        if is_own is not None and not is_own.any():
            continue
        columns = ["rel", side]
        for split in settings.splits:
            for bucket in buckets_of(settings, partition, side):
                with open_all_rows(storage.join(earlier.edge_root, split), bucket, columns) as rows:
                    kept = KeptRows.of(rows, earlier.numbers, columns)
                    for piece in kept.read(0, len(kept.numbers)):
                        rel, at = np.ascontiguousarray(piece.records.T)
                        if is_own is not None:
                            at = at[are_own(rel, is_own, rows.uri)]
                        check_indices(at, num_ids, side, rows.uri)
                        is_named[at] = True
    return is_named


class Renumbering:
    """Gives rows of earlier buckets the indices that their ids have in this run."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._indices: dict[Partition, Int32 | None] = {}

    def apply(self, records: Int32, bucket: Bucket, uri: str, *, drops: bool = False) -> Int32:
        """Return records [N, W] of rel, lhs, rhs and more, own in place.

        With `drops`, rows that name an id which is forgotten are left out.
        """
        if self._settings.forget_until is None:
            return records
        is_kept_N = np.ones(len(records), bool)
        for side, column in ((Side.LHS, 1), (Side.RHS, 2)):
            for name in {relation.entity_type(side): None for relation in self._settings.relations}:
                is_single = self._settings.num_partitions[name] == 1
                index = self._index_of(Partition(name, 0 if is_single else getattr(bucket, side)))
                if index is None:
                    continue
                is_own = own_relations(self._settings, name, side)
                rows = slice(None) if is_own is None else are_own(records[:, 0].copy(), is_own, uri)
                at = np.ascontiguousarray(records[rows, column])
                check_indices(at, len(index), side, uri)
                own = take(index, at)
                if drops:
                    is_kept_N[rows] &= own != NOWHERE
                elif int(own.min(initial=0)) == NOWHERE:
                    raise FormatError(
                        f"{uri}: {side} names row {at[own == NOWHERE][0]} of {name!r}, which is gone, as "
                        f"{self._settings.etl.previous_entity_path} says: they are not of the same run"
                    )
                records[rows, column] = own
        return records[is_kept_N] if drops else records

    def _index_of(self, partition: Partition) -> Int32 | None:
        """Return the index in this run of each row of the earlier index [P]; None: all are the same."""
        if partition not in self._indices:
            uri, row_K = self._settings.etl.previous_entity_path or "", kept_rows(self._settings, partition)
            if row_K is None:
                self._indices[partition] = None
            else:
                index = np.full(entity_counts.read_count(uri, *partition), NOWHERE, np.int32)
                index[row_K] = np.arange(len(row_K), dtype=np.int32)
                self._indices[partition] = index
        return self._indices[partition]
