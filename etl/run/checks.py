"""Checks that the section `etl` fits the configuration, and warnings about legal but unintended tables."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from etl.steps.chunks import Encoded
from etl.steps.index_previous import check_previous
from etl.steps.task_settings import day_of
from etl.tables.files import TableFiles
from etl.tables.formats import FORMATS, format_of
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.display.readable import quoted
from graphmill.errors import ConfigError
from graphmill.vocab import TRAIN_SPLIT, Side

MANY_PARTITIONS = 8
IDS_OF_PARTITION = 1000
MANY_EDGES = 100

_COLUMN_NAME = re.compile(
    r"(?:\w+[_ -])?id|src|source|from|head|subject|lhs|dst|dest|destination|target|to|tail|object|rhs|node"
    r"|entity|user|customer|item|product|movie",
    re.IGNORECASE,
)

log = logging.getLogger("graphmill")


def warn_of_headers(inputs: Sequence[TableFiles]) -> None:
    """Warn of a table of edges without a header whose first row reads like column names."""
    for of_table in inputs:
        table = of_table.table
        if table.header or not isinstance(table, TableConfig) or not of_table.plain:
            continue
        uri = of_table.plain[0].uri
        kind = format_of(uri, table)
        if "header" in kind.ignores:
            continue
        names = kind.read_head(uri, table.model_copy(update={"header": True}), 1).names
        places = [at for at in (table.lhs, table.rhs) if isinstance(at, int) and at < len(names)]
        if len(places) == 2 and all(_COLUMN_NAME.fullmatch(names[at]) for at in places):
            log.warning(
                f"etl: {uri}: the first row looks like column names ({', '.join(names[:5])}), and "
                f"becomes an edge; if it is a header, set etl.{of_table.label}.header: true"
            )


def warn_of_ignored(inputs: Sequence[TableFiles]) -> None:
    """Warn of keys for text files in tables of other formats."""
    for of_table in inputs:
        keys = {
            key: f"etl.{of_table.label}.{key}" for key in of_table.table.model_dump(exclude_defaults=True)
        }
        if ignored := _ignored(of_table, keys):
            log.warning(f"etl: {ignored}")


def refuse_ignored(inputs: TableFiles, given: Mapping[str, Any]) -> None:
    """Refuse options of a command that have no effect on the files of its table."""
    options = {key: f"--no-{key}" if value is False else f"--{key}" for key, value in given.items()}
    if ignored := _ignored(inputs, options):
        raise ConfigError(ignored)


def _ignored(inputs: TableFiles, names: Mapping[str, str]) -> str:
    """Name the keys that have no effect on any file; empty: all have one."""
    kinds = {file.uri: format_of(file.uri, inputs.table) for file in inputs.plain}
    ignored = [name for key, name in names.items() if all(key in kind.ignores for kind in kinds.values())]
    if not (kinds and ignored):
        return ""
    uri, first = next(iter(kinds.items()))
    kind = next(name for name, kind in FORMATS.items() if kind is first)
    return f"{', '.join(ignored)}: no effect on {uri}, which is read as {kind}; is its format another?"


def warn_of_left_out(inputs: Sequence[TableFiles]) -> None:
    """Warn of paths without files, unfinished files and duplicate names, which the run skips."""
    for of_table in inputs:
        for paths, reason in (
            (of_table.missing, "paths without files are skipped"),
            (of_table.unfinished, "files and folders that writers are at work on are left out"),
            (of_table.twice, "links to files that are there under other names are left out"),
        ):
            if paths:
                log.warning(f"etl: {of_table.label}: {reason} ({len(paths)}): {', '.join(paths[:10])}")


def warn_of_empty(labels: Collection[str]) -> None:
    """Warn of tables without a file to read, by their names in figures."""
    for label in sorted(labels):
        log.warning(f"etl: {label}: no row of the snapshot may pass the filters; the table adds nothing")


def warn_of_null_words(encoded: Iterable[Encoded]) -> None:
    """Warn of ids such as `NULL`: all rows without a value would get the same entity."""
    by_type: dict[str, set[str]] = {}
    for group in encoded:
        for entity_type, words in group.null_words.items():
            by_type.setdefault(entity_type, set()).update(words)
    for entity_type, ids in sorted(by_type.items()):
        log.warning(
            f"etl: entities.{entity_type}: ids that other systems write for null: {quoted(sorted(ids))}; "
            "if they stand for nothing, leave their rows out: filters: [[COLUMN, not in, [WORD]]]; in text, "
            "null_values: [WORD]"
        )


def warn_of_counts(numbers: dict[str, Any]) -> None:
    """Warn of doubtful figures of the stage: no edges to train on, many partitions, ids of one edge each."""
    num_edges = numbers["num_edges"][TRAIN_SPLIT]
    if not num_edges:
        log.warning(
            f"etl: no edge is in {TRAIN_SPLIT}, so training learns nothing; look at etl.holdout, and at "
            "the split of each of etl.tables"
        )
    for name, counts in numbers["num_entities"].items():
        num_ids = sum(counts)
        if len(counts) >= MANY_PARTITIONS and num_ids < IDS_OF_PARTITION * len(counts):
            log.warning(
                f"etl: entities.{name}: {len(counts)} partitions for {num_ids:,} ids make small buckets, "
                "slow and worse to train; leave num_partitions out, or set it to 1"
            )
        if num_edges >= MANY_EDGES <= num_ids and numbers["train_degree"][name].get("max") == 1:
            log.warning(
                f"etl: entities.{name}: each of {num_ids:,} ids has one edge only, so their vectors can "
                "learn little; is the column the id of a row (an order, an event) rather than of a thing?"
            )


def check_config(config: Config) -> None:
    """Refuse a section `etl` that does not fit."""
    etl = config.section(EtlConfig)
    for number, table in enumerate(etl.tables):
        _check_table(config, table, f"etl.tables[{number}]")
    if etl.tables[0].removes:
        raise ConfigError(
            "etl.tables[0].removes: expected tables of edges before it, whose edges it takes out, found none"
        )
    for number, entities in enumerate(etl.entities):
        _check_type(config, entities.type, f"etl.entities[{number}].type")
    if not isinstance(etl.min_entity_count, int):
        for name in etl.min_entity_count:
            _check_type(config, name, "etl.min_entity_count")
    _check_features(config, etl)
    if etl.forget_after is not None:
        day_of(config)
    if etl.previous_entity_path is not None:
        check_previous(config, etl.previous_entity_path)
    if etl.previous_edge_path is not None:
        _check_previous_edges(config, etl, etl.previous_edge_path)


def _check_previous_edges(config: Config, etl: EtlConfig, root: str) -> None:
    if etl.previous_entity_path is None:
        raise ConfigError(
            "etl.previous_edge_path: expected etl.previous_entity_path too, the entities of the same "
            "run, found none: the edges are numbers of those entities"
        )
    before = {storage.absolute(storage.join(root, split)).rstrip("/") for split in etl.splits()}
    if any(storage.absolute(config.split_path(split)).rstrip("/") in before for split in etl.splits()):
        raise ConfigError(
            f"etl.previous_edge_path: {root} is where this run's edges go; give it an `output` of its own, "
            "and keep the earlier one"
        )
    if not storage.list_dir(trained := storage.join(root, TRAIN_SPLIT)):
        raise ConfigError(
            f"etl.previous_edge_path: expected the folder `edges` of an earlier run, nothing is in {trained}"
        )


def _check_type(config: Config, name: str, key: str) -> None:
    if name not in config.entities:
        raise ConfigError(f"{key}: {name!r} is not among the entities: {', '.join(config.entities)}")


def _check_table(config: Config, table: TableConfig, key: str) -> None:
    known = [relation.name for relation in config.relations]
    if table.relation is not None and table.relation not in known and not config.dynamic_relations:
        raise ConfigError(
            f"{key}.relation: {table.relation!r} is not among the relations: {', '.join(known)}"
        )
    entries = [r for r in config.relations if config.dynamic_relations or table.relation in (None, r.name)]
    for side in Side:
        types = {relation.entity_type(side) for relation in entries}
        if len(types) > 1 and any(config.entities[name].featurized for name in types):
            raise ConfigError(
                f"{key}.{side}: rows of types {', '.join(sorted(types))}, some of them featurized, "
                "cannot share a column; give each relation a table of its own"
            )


def _check_features(config: Config, etl: EtlConfig) -> None:
    featurized = [name for name, entity in config.entities.items() if entity.featurized]
    for name in featurized:
        if config.entities[name].num_partitions > 1:
            raise ConfigError(
                f"entities.{name}.num_partitions: a featurized type has one partition, as its features may "
                f"lie anywhere; found {config.entities[name].num_partitions}, expected 1"
            )
        if etl.min_count(name):
            raise ConfigError(
                f"etl.min_entity_count: {name} is featurized, and features are not filtered; set the "
                "count by type, and leave it out"
            )
    if featurized and etl.duplicates == "drop":
        raise ConfigError("etl.duplicates: edges of featurized entities are not compared; set it to keep")
    for number, table in enumerate(etl.tables):
        if featurized and table.removes:
            raise ConfigError(f"etl.tables[{number}].removes: edges of featurized entities are not compared")
