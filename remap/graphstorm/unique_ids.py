"""Integer ids that should come once each: in a map, and in the files of all ranks of a type.

A raw id that got two vectors, and another that got none, would look like any table.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from distributed import Client

from graphmill import cluster, storage
from graphmill.checkpoints.graphstorm.saved_ranks import Numbers, RankRows, iter_ids
from graphmill.display import progress
from graphmill.errors import FormatError
from remap.graphstorm.discover import OutputFile

SHARE_IDS = 1 << 27  # ids that a task looks for: a byte each

log = logging.getLogger("graphmill")


class Ids(NamedTuple):
    """Consecutive ids of a file, int64 [n], and the number of the first row."""

    uri: str
    row: int
    ids: Numbers


def first_repeated(batches: Iterable[Ids], start: int, stop: int) -> tuple[str, int, int] | None:
    """Find the first id among start..stop that is repeated: its file, its row, and the id."""
    seen = np.zeros(stop - start, np.bool_)
    for uri, row, ids in batches:
        inside = np.flatnonzero((ids >= start) & (ids < stop))
        own = ids[inside] - start
        is_first = np.zeros(len(own), np.bool_)
        is_first[np.unique(own, return_index=True)[1]] = True
        again = np.flatnonzero(seen[own] | ~is_first)
        if len(again):
            return uri, row + int(inside[again[0]]), int(own[again[0]]) + start
        seen[own] = True
    return None


def check_ranks(client: Client, outputs: Sequence[OutputFile], num_ids: dict[str, int]) -> bool:
    """Refuse an id that two rows of a type have, in embeddings and predictions of nodes; are all there?

    Pairs of ids may come again: a graph may have several edges between two nodes. GraphStorm may save some
    of the ids alone, so missing ones are a warning. `num_ids` are those of each type's map.
    """
    ranks: dict[tuple[str, str, str], dict[str, RankRows]] = {}
    for output in outputs:
        if len(output.ids) == 1:
            place = storage.parent(output.ranked.values_uri), output.values_column, output.ids[0][1]
            ranks.setdefault(place, {})[output.ranked.values_uri] = output.ranked
    arguments = [
        (list(own.values()), start, min(start + SHARE_IDS, num_ids[entity_type]))
        for (_, _, entity_type), own in ranks.items()
        for start in range(0, num_ids[entity_type], SHARE_IDS)
    ]
    cluster.run_tasks(client, check_share, arguments, description="checking the ids", unit="shares")
    are_all_there = True
    for (folder, _, entity_type), own in ranks.items():
        num_rows = sum(rank.num_rows for rank in own.values())
        if num_rows < num_ids[entity_type]:
            are_all_there = False
            log.warning(
                "remap: %s: rows of %d ids; the map of %r has %d, and the others get none",
                folder,
                num_rows,
                entity_type,
                num_ids[entity_type],
            )
    return are_all_there


def check_share(ranks: Sequence[RankRows], start: int, stop: int) -> None:
    """Refuse repeated ids among start..stop in the files of these ranks; a Dask task."""
    seen, num_inside = np.zeros(stop - start, np.bool_), 0
    for _, _, ids in _ids_of(ranks):
        own = ids[(ids >= start) & (ids < stop)] - start
        seen[own] = True
        num_inside += len(own)
    if num_inside == np.count_nonzero(seen):
        return
    repeated_id = first_repeated(_ids_of(ranks), start, stop)
    if repeated_id is None:
        raise FormatError(f"{ranks[0].values_uri}: the ids have changed while they were being read")
    uri, row, again = repeated_id
    first_uri, first_row = next(
        (batch.uri, batch.row + int(np.flatnonzero(batch.ids == again)[0]))
        for batch in _ids_of(ranks)
        if again in batch.ids
    )
    raise FormatError(
        f"{uri}: row {row}: the id {again} comes again, after row {first_row} of {first_uri}; expected each "
        "id once: are these the files of one run?"
    )


def _ids_of(ranks: Sequence[RankRows]) -> Iterator[Ids]:
    for ranked in ranks:
        for row, ids in iter_ids(ranked):
            progress.stop_if_cancelled()
            yield Ids((ranked.nids_uris or (ranked.values_uri,))[0], row, ids)
