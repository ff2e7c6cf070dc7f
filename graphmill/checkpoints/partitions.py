"""Partitions of tables that are stored without: integer id = rows of the partitions before + index."""

from collections.abc import Mapping, Sequence

from graphmill.errors import FormatError
from graphmill.formats import entity_counts


def partition_counts(
    totals: Mapping[str, int],
    recorded: Mapping[str, Sequence[int]] | None,
    entity_path: str | None,
    where: str,
) -> dict[str, list[int]]:
    """Rows of each partition of each entity type.

    Args:
        totals: rows of each type.
        recorded: what the checkpoint itself says.
        entity_path: counts that take its place; with neither a type has one partition.
        where: the checkpoint, for messages.

    Raises:
        FormatError: the partitions of a type have more or fewer rows together than it has.
    """
    told = recorded if entity_path is None else entity_counts.list_counts(entity_path)
    if told is None:
        return {name: [total] for name, total in totals.items()}
    source = entity_path or where
    if entity_path is None and (unknown := told.keys() - totals.keys()):
        raise FormatError(
            f"{where}: expected a table for each count, found counts of {sorted(unknown)[0]!r}, of "
            "which there are no rows"
        )
    for name, total in totals.items():
        if name not in told:
            raise FormatError(f"{where}: {name!r} has no counts in {source}, which has {', '.join(told)}")
        counts = told[name]
        if not (isinstance(counts, list | tuple) and all(type(each) is int and each >= 0 for each in counts)):
            raise FormatError(
                f"{where}: {name!r}: expected the rows of each partition from 0 on, found {counts!r:.80}"
            )
        if sum(counts) != total:
            raise FormatError(
                f"{where}: {name!r} has {total} rows; expected {sum(told[name])}, as {source} counts"
            )
    return {name: list(told[name]) for name in totals}
