"""Columns that a request makes of vectors: principal components, similarities to ids, ids folded in."""

import pyarrow as pa
from distributed import Client

from graphmill import storage
from graphmill.ask import given
from graphmill.ask.entities import UNKNOWN, EntityTable
from graphmill.ask.features.columns import MOST_SIMILAR, Similar
from graphmill.ask.features.joined import find_vectors
from graphmill.ask.features.settings import FeaturesOptions
from graphmill.ask.principal import Components, Moments, moments_of_partition
from graphmill.cluster import run_tasks
from graphmill.errors import ConfigError
from graphmill.formats import remapped

_SHOWN = 5


def components_of(request: FeaturesOptions, table: EntityTable, client: Client) -> Components | None:
    """Compute the principal components of a type, in the order of its partitions."""
    if request.components is None:
        return None
    waiting: dict[int, Moments | None] = {}
    total: Moments | None = None
    num_added = 0

    def add(part: tuple[int, Moments | None]) -> None:
        nonlocal total, num_added
        waiting[part[0]] = part[1]
        while num_added in waiting:
            moments = waiting.pop(num_added)
            num_added += 1
            if moments is not None:
                total = moments if total is None else total.merged(moments)

    tasks = [(table, partition) for partition in range(len(table.parts))]
    run_tasks(client, moments_of_partition, tasks, description="components", unit="partitions", keep=add)
    if total is None:
        raise ConfigError(f"--components: expected vectors of {table.entity_type!r}, found none")
    return Components.of(total, request.components)


def similar_of(request: FeaturesOptions, table: EntityTable, client: Client) -> Similar | None:
    """Read the ids to compare with, and their vectors."""
    if request.similar_to is None:
        return None
    uri, names = request.similar_to, dict[str, None]()
    for batch in given.iter_ids(uri):
        names.update(dict.fromkeys(batch["id"].to_pylist()))
        if len(names) > MOST_SIMILAR + 1:  # the first may be a header
            break
    ids = list(names)
    arguments = [(table, pa.array(ids, pa.string()))]
    numbers, vectors_QD = run_tasks(client, find_vectors, arguments, description="finding the ids")[0]
    if given.may_have_header(uri) and numbers[0] == UNKNOWN:
        ids, numbers, vectors_QD = ids[1:], numbers[1:], vectors_QD[1:]
    if not 0 < len(ids) <= MOST_SIMILAR:
        count = f"at least {len(ids)}" if ids else "none"
        raise ConfigError(f"--similar-to {uri}: expected 1 to {MOST_SIMILAR} ids, found {count}")
    unknown = [name for name, number in zip(ids, numbers.tolist(), strict=True) if number == UNKNOWN]
    if unknown:
        shown = ", ".join(map(repr, unknown[:_SHOWN]))
        raise ConfigError(
            f"--similar-to {uri}: expected ids of {table.entity_type!r}, found {len(unknown)} others: {shown}"
        )
    return Similar(ids, vectors_QD)


def folded_parts(folder: str, entity_type: str, dimension: int) -> list[str]:
    """Files of folded ids of a type."""
    uri = storage.join(folder, entity_type)
    files = sorted(entry.uri for entry in storage.list_dir(uri) if remapped.is_part(entry.uri))
    if files and (length := remapped.shape_of(folder, entity_type, 0)[1]) != dimension:
        raise ConfigError(
            f"--fold-in {folder}: expected vectors of {entity_type!r} of length {dimension}, found {length}; "
            "give the result of `graphmill fold-in` with this run"
        )
    return files
