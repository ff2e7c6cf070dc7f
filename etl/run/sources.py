"""The raw files of a run, and which of them an earlier run has turned into edges already.

A file is the same if its name, size and time of change (or checksum), its deletes, and all settings of its
table are the same that decide which rows it gives. Edges of such files come from the earlier buckets, unless
a setting of the whole run has changed, or edges are left out by counts of all edges.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from etl.steps.bucket_rows import EarlierIds
from etl.steps.chunks import Encoded
from etl.steps.task_settings import TaskSettings
from etl.tables.files import TableFiles
from etl.tables.formats import FileRange
from etl.tables.ranges import NumberedFile
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EntityTableConfig, EtlConfig, TableConfig
from graphmill.formats import entity_index
from graphmill.formats.edge_buckets.origins import ORIGINS, Origins, SourceFile, read_origins, write_origins
from graphmill.formats.murmur import HASH_NAME
from graphmill.run import fingerprints
from graphmill.run.fingerprints import content_of
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_bytes
from graphmill.vocab import TRAIN_SPLIT

# They choose the files, which are compared one by one.
_OF_PATHS = {"path", "filters", "snapshot", "catalog", "data_path", "missing_paths"}
_SHOWN = 3

log = logging.getLogger("graphmill")


@dataclass(frozen=True)
class SourcePlan:
    """The raw files of a run."""

    files: list[SourceFile]
    """All files, in reading order, with the counts of those that are kept."""
    ranges: list[FileRange]
    """Ranges to read, of files that are not kept."""
    earlier: EarlierIds | None = None
    reason: str = ""
    """Why the run takes no edges from the earlier run that is named."""
    gone: list[SourceFile] = field(default_factory=list)
    """Files of the earlier run that this run does not have."""
    read_again: frozenset[int] = frozenset()
    """Numbers of files that are read whether the earlier run had them or not."""
    labels: list[str] = field(default_factory=list)
    """Name of the table of each file, in figures."""

    @property
    def kept(self) -> frozenset[int]:
        """Numbers of the files whose edges come from the earlier run."""
        numbers = self.earlier.numbers if self.earlier else np.zeros(0, np.int32)
        return frozenset(numbers[numbers >= 0].tolist())

    @property
    def added(self) -> list[int] | None:
        """Numbers of the files that the earlier run did not have; None without one."""
        if self.earlier is None:
            return None
        others = self.kept | self.read_again
        return [number for number in range(len(self.files)) if number not in others]


def numbered(inputs: Sequence[TableFiles]) -> list[NumberedFile]:
    """List the files of all tables in reading order, with their numbers."""
    files = [(of_table.label, of_table.table, file) for of_table in inputs for file in of_table.files()]
    return [(number, *file) for number, file in enumerate(files)]


def source_files(files: Sequence[NumberedFile]) -> list[SourceFile]:
    """Describe the files."""
    of_table: dict[int, dict[str, Any]] = {}
    described = []
    for _, _, table, file in files:
        if id(table) not in of_table:
            of_table[id(table)] = table.model_dump(mode="json", exclude=_OF_PATHS)
        size_bytes, state = file.state()
        content = {
            "uri": file.uri,
            "size_bytes": size_bytes,
            "mtime_ns": state,
            "table": [type(table).__name__, of_table[id(table)]],
            "values": dict(file.values),
            "filters": file.filters,
            "deletes": [asdict(delete) for delete in file.deletes],
            "schema": None if file.schema is None else file.schema.serialize().to_pybytes().hex(),
        }
        source = SourceFile(
            uri=file.uri,
            size_bytes=size_bytes,
            mtime_ns=file.mtime_ns,
            digest=of_bytes(json.dumps(content, sort_keys=True).encode()),
            removes=isinstance(table, TableConfig) and table.removes,
        )
        described.append(source)
    return described


def run_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide how a row becomes an edge, as JSON types; not those of the tables."""
    etl = config.section(EtlConfig)
    settings = {
        "hash": HASH_NAME,
        "seed": config.seed,
        "entities": list(config.entities),
        "featurized": sorted(name for name, entity in config.entities.items() if entity.featurized),
        "relations": [[relation.name, relation.lhs, relation.rhs] for relation in config.relations],
        "dynamic_relations": config.dynamic_relations,
        "splits": list(etl.splits()),
        "holdout": list(etl.holdout.items()),
        "weighted": any(table.weight is not None for table in etl.tables),
        "self_loops": etl.self_loops,
        "duplicates": etl.duplicates,
        "on_bad_row": etl.on_bad_row,
        "min_relation_count": etl.min_relation_count,
        "min_entity_count": etl.min_entity_count,
    }
    as_json: dict[str, Any] = json.loads(json.dumps(settings))
    return as_json


def plan_files(config: Config, files: Sequence[NumberedFile]) -> SourcePlan:
    """Describe the files, and find those that the earlier run had; the plan has no ranges yet."""
    etl = config.section(EtlConfig)
    root = etl.previous_edge_path
    sources, labels = source_files(files), [label for _, label, _, _ in files]
    if root is None:
        return SourcePlan(sources, [], labels=labels)
    root = storage.absolute(root)
    origins = read_origins(storage.join(root, TRAIN_SPLIT))
    reason = _obstacle(config, root, origins)
    if reason or origins is None:
        return SourcePlan(sources, [], reason=reason, labels=labels)
    # Of a table that removes, ids may have edges now, which they had not before; and buckets do not tell
    # which ids a table of entities names.
    read_again = {
        number
        for number, _, table, _ in files
        if sources[number].removes or (etl.forget_after is not None and isinstance(table, EntityTableConfig))
    }
    unmatched: dict[str, list[int]] = defaultdict(list)
    for number, source in reversed(list(enumerate(sources))):
        if number not in read_again:
            unmatched[source.digest].append(number)
    numbers = [unmatched[file.digest].pop() if unmatched[file.digest] else -1 for file in origins.files]
    matched = {number: file for number, file in zip(numbers, origins.files, strict=True) if number >= 0}
    again = {sources[number].digest for number in read_again}
    return SourcePlan(
        [matched.get(number, source) for number, source in enumerate(sources)],
        [],
        EarlierIds(root, np.array(numbers, np.int32)),
        gone=[
            file
            for number, file in zip(numbers, origins.files, strict=True)
            if not (number >= 0 or file.removes or file.digest in again)
        ],
        read_again=frozenset(read_again),
        labels=labels,
    )


def _obstacle(config: Config, root: str, origins: Origins | None) -> str:
    """Say why the edges of an earlier run cannot be reused; empty: they can."""
    etl = config.section(EtlConfig)
    if origins is None:
        return f"{root} has no {ORIGINS}: an older version has written it"
    if featurized := [name for name, entity in config.entities.items() if entity.featurized]:
        return f"entities.{featurized[0]} is featurized"
    if etl.min_relation_count or any(map(etl.min_count, config.entities)):
        return "min_entity_count and min_relation_count depend on all edges"
    if changes := fingerprints.changes(origins.settings, run_settings(config)):
        return f"settings have changed: {'; '.join(changes[:_SHOWN])}"
    if others := [split for split in etl.splits() if read_origins(storage.join(root, split)) != origins]:
        return f"{root}: {others[0]} and {TRAIN_SPLIT} are of different runs"
    previous = etl.previous_entity_path or ""
    if content_of(previous) != origins.entities:
        return f"{root} and {previous} are of different runs"
    return ""


def with_counts(plan: SourcePlan, encoded: Sequence[Encoded]) -> list[SourceFile]:
    """Return all files of the run with their counts."""
    by_number = dict(enumerate(plan.files))
    for file_range in plan.ranges:
        of_file = by_number[file_range.number]
        columns = sorted({*of_file.integer_columns, *file_range.integer_columns})
        by_number[file_range.number] = of_file.model_copy(update={"integer_columns": columns})
    for group in encoded:
        for number, counts in group.files.items():
            before = by_number[number]
            by_number[number] = before.model_copy(
                update={
                    "num_rows": before.num_rows + counts.num_rows,
                    "num_edges": before.num_edges + counts.num_edges,
                    "num_self_loops": before.num_self_loops + counts.num_self_loops,
                    "num_bad": dict(sorted((counts.num_bad + Counter(before.num_bad)).items())),
                    "num_unknown": dict(sorted((counts.num_unknown + Counter(before.num_unknown)).items())),
                }
            )
    return [by_number[number] for number in range(len(by_number))]


def log_delta(plan: SourcePlan) -> None:
    """Log what the run reuses of the earlier run, or why it reuses nothing."""
    if plan.earlier is not None:
        log.info(
            f"etl: files that are in {plan.earlier.edge_root} already: {len(plan.kept)}; "
            f"read: {len(plan.added or [])}; gone: {len(plan.gone)}"
        )
        if plan.gone and not plan.kept:
            log.warning(
                f"etl: none of the {len(plan.gone)} files that {plan.earlier.edge_root} comes from is there "
                f"any more, such as {plan.gone[0].uri}: all edges count as new. A file is the same by its "
                "URI, size, time of change (or checksum: etl.compare_files), and the settings of its table"
            )
    elif plan.reason:
        log.info("etl: reads all files anew, without etl.previous_edge_path: %s", plan.reason)


def write_sources(
    config: Config, settings: TaskSettings, plan: SourcePlan, files: list[SourceFile], checksums: Checksums
) -> None:
    """Write the files of the run into the folder of each split; `checksums` has those of the entity index."""
    folder = settings.folders.entities + "/"
    of_entities = {
        uri.removeprefix(folder): checksum for uri, checksum in checksums.items() if uri.startswith(folder)
    }
    origins = Origins(
        settings=run_settings(config),
        entities=entity_index.digest_of(of_entities),
        files=files,
        added=plan.added,
    )
    for split in settings.folders.splits.values():
        write_origins(split, origins, checksums)
