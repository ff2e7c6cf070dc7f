"""Checks that the section `etl` fits the rest of the configuration, before anything is read."""

from etl.steps.index_previous import check_previous
from etl.steps.task_settings import day_of
from graphmill import storage
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig, TableConfig
from graphmill.errors import ConfigError
from graphmill.vocab import TRAIN_SPLIT, Side


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
    for split in etl.splits():
        if storage.absolute(config.split_path(split)).rstrip("/") in before:
            raise ConfigError(
                f"etl.previous_edge_path: {root} is where this run's edges go; give it an `output` of its "
                "own, and keep the earlier one"
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
