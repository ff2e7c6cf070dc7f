"""Values of the keys that a configuration leaves to the data, once the data are counted."""

from collections.abc import Mapping, Sequence

from graphmill import storage
from graphmill.config import Config, defaults
from graphmill.errors import BadInputError, NotFoundError
from graphmill.formats import edge_buckets, entity_counts
from graphmill.formats.edge_buckets.origins import has_added

_COUNTED_BUCKETS = 64


def resolve_auto_values(config: Config) -> Config:
    """Fill in the keys that depend on entities and edges; without sound data, return `config` itself."""
    if not config.chosen or not storage.is_dir(config.entity_path):
        return config
    try:
        counts = entity_counts.list_counts(config.entity_path)
        total = sum(map(num_edges, config.edge_paths))
        has_origins = all(map(has_added, config.edge_paths))
    except (BadInputError, NotFoundError):
        return config
    num_entities = {name: counts[name] for name in config.entities if name in counts}
    return with_sizes(config, num_entities, total, has_origins=has_origins)


def with_sizes(
    config: Config, num_entities: Mapping[str, Sequence[int]], num_edges: int, *, has_origins: bool = True
) -> Config:
    """Fill in the keys by counts of entities and edges; `has_origins`: edges tell which of them are new."""
    relations = config.relations
    return config.with_chosen(
        defaults.decided(
            config.chosen,
            num_entities,
            num_edges,
            ends=() if config.dynamic_relations else [(relation.lhs, relation.rhs) for relation in relations],
            all_negs=config.loss_fn == "softmax" and all(relation.all_negs for relation in relations),
            has_operators=any(relation.operator != "none" for relation in relations),
            is_delta=has_origins and bool(config.init_path) and config.train.replay is not None,
        )
    )


def describe(config: Config) -> str:
    """Tell in one line what was chosen for the keys that the configuration leaves out, and why."""
    num_entities = entity_counts.read_counts(config.entity_path, config.num_partitions)
    return defaults.summary_line(config.chosen, num_entities, sum(map(num_edges, config.edge_paths)))


def num_edges(edge_path: str) -> int:
    """Count the edges of a folder; of many buckets, count some and extrapolate."""
    if not storage.is_dir(edge_path):
        return 0
    buckets = edge_buckets.list_buckets(edge_path)
    counted = buckets[:: -(-len(buckets) // _COUNTED_BUCKETS) or 1]
    num_counted = sum(edge_buckets.count_all(edge_path, counted).values())
    return num_counted * len(buckets) // max(len(counted), 1)
