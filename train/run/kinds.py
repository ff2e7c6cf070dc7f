"""Which kind each setting is: whether a checkpoint goes on when it changes (docs/training.md)."""

from enum import StrEnum


class Kind(StrEnum):
    """Meaning of a changed setting for the checkpoint."""

    WHAT = "what"
    """Decides what is learned, or counts versions: no checkpoint goes on with another value."""
    HOW = "how"
    """Decides how it is learned: a checkpoint may go on with another value."""
    WAY = "way"
    """Decides how the work is done, or how much of it: the checkpoint is the same."""
    PATH = "path"
    """Names a place: inputs are compared by their content."""


_WHAT, _HOW, _WAY, _PATH = Kind.WHAT, Kind.HOW, Kind.WAY, Kind.PATH

PBG = {
    "entities": _WHAT,
    "relations": _WHAT,  # but for some keys of each: RELATION
    "dimension": _WHAT,
    "init_scale": _HOW,
    "max_norm": _HOW,
    "global_emb": _WHAT,
    "comparator": _WHAT,  # vectors that are near by one measure are not by another
    "bias": _WHAT,
    "loss_fn": _HOW,
    "margin": _HOW,
    "regularization_coef": _HOW,
    "regularizer": _HOW,
    "entity_path": _PATH,
    "edge_paths": _PATH,
    "checkpoint_path": _PATH,
    "init_path": _PATH,
    "checkpoint_preservation_interval": _WAY,
    "num_epochs": _WAY,
    "num_edge_chunks": _WHAT,  # a version is a chunk trained
    "max_edges_per_chunk": _WHAT,
    "bucket_order": _HOW,
    "workers": _WAY,
    "batch_size": _HOW,
    "num_batch_negs": _HOW,
    "num_uniform_negs": _HOW,
    "disable_lhs_negs": _HOW,
    "disable_rhs_negs": _HOW,
    "lr": _HOW,
    "relation_lr": _HOW,
    "eval_fraction": _HOW,
    "eval_num_batch_negs": _WAY,
    "eval_num_uniform_negs": _WAY,
    "background_io": _WAY,
    "verbose": _WAY,
    "hogwild_delay": _WAY,
    "dynamic_relations": _WHAT,
    "num_machines": _WAY,
    "num_partition_servers": _WAY,
    "distributed_init_method": _WAY,
    "distributed_tree_init_order": _WAY,
    "num_gpus": _WAY,
    "num_groups_for_partition_server": _WAY,
    "num_groups_per_sharded_partition_server": _WAY,
    "partition_shard_size": _WAY,
    "half_precision": _HOW,
    "seed": _HOW,  # ours
}
RELATION = {
    "name": _WHAT,
    "lhs": _WHAT,
    "rhs": _WHAT,
    "weight": _HOW,
    "operator": _WHAT,
    "all_negs": _HOW,
}
TRAIN = {
    "on_change": _WAY,
    "relation_init": _HOW,
    "optimizer": _HOW,  # one's sums are turned into the other's
    "lr_schedule": _HOW,
    "lr_final": _HOW,
    "validate_split": _HOW,
    "validate_every": _HOW,
    "patience": _HOW,
    "negative_power": _HOW,
    "chunk_edges": _HOW,
    "reciprocal_relations": _WHAT,
    "prefetch": _WAY,
    "memory_partitions": _HOW,
    "tensorboard": _WAY,
    "save_embed_path": _WAY,
    "save_model_path": _WAY,
    "index_base": _WAY,
    "num_workers": _WAY,
    "bucket_assignment": _WAY,
    "all_reduce": _WAY,
    "engine": _WAY,
    "resident": _WAY,
    "device_partitions": _WAY,
    "exact_products": _WAY,
    "deterministic": _WAY,
}
