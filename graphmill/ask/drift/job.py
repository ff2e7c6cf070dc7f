"""The distance that vectors have moved since the run before: one Dask task per partition, and no files.

embeddings of this run, and of the run before     by raw id
edges of this run                                 the degree of each id
run.json                                          figures by type and by degree, the ids that moved most
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from distributed import Client

from graphmill import storage
from graphmill.ask.degrees import Counts, degrees_of, places_of
from graphmill.ask.drift.moved import Moved, moved_of_part
from graphmill.ask.earlier import check_length, parts_of, parts_with
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.config.sections.remap import DriftConfig
from graphmill.errors import ConfigError, DriftError
from graphmill.formats import remapped
from graphmill.run import record
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.outlook import GraphSize, Outlook

Places = tuple[str, str]  # folders of the embeddings of this run and of the run before


def check(config: Config, coming: Collection[str] = ()) -> str:
    """Return the reason why there is nothing to compare, or ""; the folders `coming` are written later.

    Raises:
        ConfigError: remap writes embeddings that cannot be compared.
    """
    settings = config.remap
    if not settings.is_standard or settings.id_maps:
        raise ConfigError(
            "drift: expected embeddings with a row for each row of the checkpoint, as in "
            "docs/formats/embeddings.md; found keys of remap that write others (output_format, vectors, "
            "column_names, rows_per_file, ids_path, id_maps); remove them, or the section drift"
        )
    before = _before(config)
    if before is None:
        return "there is no run before (drift.before, or the run of init_path)"
    if not storage.is_dir(before):
        return f"the run before has no embeddings: {before}"
    return ""


def run(config: Config, client: Client, claim: Claim = NO_CLAIM) -> dict[str, Any]:
    """Compare the vectors of all ids that both runs have; return figures by type.

    Raises:
        DriftError: the ids of a type have moved farther than drift.max_p10.
        BadInputError: the vectors of a type have another length than in the run before.
        FormatError: embeddings or edges are damaged.
    """
    settings = config.section(DriftConfig)
    places = config.embedding_path, _before(config) or ""
    parts = {each: parts_of(places[0], each) for each in config.entities}
    before = {each: parts_of(places[1], each) for each in config.entities}
    types = [each for each in config.entities if parts[each] and before[each]]
    num_before = {each: _num_rows(places[1], each, before[each]) for each in types}
    for each in types:
        check_length(places[1], each, config.entity_dimension(each), "drift")
    degrees = {each: _degrees(config, client, each) for each in types if len(parts[each]) == 1}
    arguments = []
    for each in types:
        for part in parts[each]:
            others = parts_with(part, len(parts[each]), before[each])
            arguments.append((config, places, each, part, others, degrees.get(each), settings.num_moved))
    found: list[Moved] = run_tasks(client, _moved, arguments, description="comparing", unit="partitions")
    figures: dict[str, Any] = {}
    for each in types:
        own = [moved for moved, (_, _, name, *_) in zip(found, arguments, strict=True) if name == each]
        figures[each] = Moved.joined(own, settings.num_moved).figures(num_before[each])
    result = {"before": places[1], "types": figures}
    _check_limit(settings, result)
    return result


def _moved(
    config: Config,
    places: Places,
    entity_type: str,
    part: int,
    parts_before: Sequence[int],
    degree_N: Counts | None,
    num_most: int,
) -> Moved:
    """Compare one partition; its degrees are counted here, unless all edges have them."""
    if degree_N is None:
        num_rows, _ = remapped.shape_of(places[0], entity_type, part)
        degree_N = degrees_of(config, entity_type, num_rows, places_of(config, entity_type, part))
    return moved_of_part(places, entity_type, part, parts_before, degree_N, num_most)


def _degrees(config: Config, client: Client, entity_type: str) -> Counts:
    """Count the edges of each row of a type of one partition: all bucket files have some."""
    num_rows, _ = remapped.shape_of(config.embedding_path, entity_type, 0)
    lines: dict[Any, list[Any]] = {}
    for place in places_of(config, entity_type, 0):
        lines.setdefault((place[0], place[1].lhs), []).append(place)
    arguments = [(config, entity_type, num_rows, line) for line in lines.values()]
    total = np.zeros(num_rows, np.int64)

    def add(counts: Counts) -> None:
        nonlocal total
        total += counts

    run_tasks(client, degrees_of, arguments, description="counting edges", unit="parts", keep=add)
    return total


def _check_limit(settings: DriftConfig, figures: dict[str, Any]) -> None:
    limit = settings.max_p10
    if limit is None:
        return
    drifts = {name: 1 - each["p10"] for name, each in figures["types"].items() if "p10" in each}
    beyond = {name: each for name, each in drifts.items() if each > limit}
    if beyond:
        listed = ", ".join(f"{name} {each:.4g}" for name, each in beyond.items())
        raise DriftError(
            f"drift: a tenth of the ids has moved by more than drift.max_p10 = {limit:g} (1 - cosine) since "
            f"{figures['before']}: {listed}; the embeddings are written, but the run does not count as "
            "finished. See report.html, and run the same command with a higher drift.max_p10 to accept them",
            figures,
        )


def _before(config: Config) -> str | None:
    """Folder of the embeddings of the run before."""
    settings = config.section(DriftConfig)
    if settings.before is not None or config.init_path is None:
        return settings.before
    return storage.join(record.run_of(config.init_path), "embeddings")


def _num_rows(embedding_path: str, entity_type: str, parts: list[int]) -> int:
    return sum(remapped.shape_of(embedding_path, entity_type, part)[0] for part in parts)


def input_uris(config: Config) -> list[str]:
    """The embeddings of both runs, and the edges of this one."""
    before = _before(config)
    return [config.embedding_path, *([] if before is None else [before]), *config.edge_paths]


def fingerprint(config: Config) -> dict[str, Any]:
    """Describe the settings and inputs that the figures depend on."""
    return {
        "drift": config.section(DriftConfig).result_settings(),
        "inputs": record.describe_inputs(input_uris(config)),
    }


def outlook(config: Config, size: GraphSize | None) -> Outlook:
    """Nothing to estimate: it reads what remap wrote."""
    return Outlook({}, size)


def output_uris(config: Config) -> list[str]:
    """No folders: the figures go to run.json."""
    return []


written_uris = output_uris


def check_outputs(config: Config) -> None:
    """Refuse nothing."""
