"""The Python functions of PyTorch-BigGraph that its users call, on top of this trainer.

    from train.pbg_api import ConfigSchema, EntitySchema, RelationSchema, do_eval, evolve, train

    train(config)     as torchbiggraph.train.train: goes on from checkpoint_path up to num_epochs
    do_eval(config)   as torchbiggraph.eval.do_eval: ranks the edges of edge_paths bucket by bucket, among
                      the number of candidates in the configuration, unfiltered

Keys, defaults and `to_dict()` are those of PBG's schema. Dask replaces machines, ranks and partition servers:
rank 0 trains, other ranks return at once.
"""

import dataclasses
import json
import logging
import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import PrivateAttr

from graphmill.config import Config, EntityConfig, PbgConfig, RelationConfig, from_mapping
from graphmill.plugins import (
    COMPARATORS,
    DYNAMIC_OPERATORS,
    LOSS_FUNCTIONS,
    NEGATIVE_SAMPLERS,
    OPERATORS,
    REGULARIZERS,
    AbstractComparator,
    AbstractDynamicOperator,
    AbstractLossFunction,
    AbstractNegativeSampler,
    AbstractOperator,
    AbstractRegularizer,
)
from train import job
from train.edges import batches, seeds
from train.edges.partitions import PartitionKey, keys_of
from train.evaluation import held_out
from train.run.bucket import read_edges, with_tables
from train.run.claim import claim_checkpoint
from train.run.ignored_keys import log_ignored_keys
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.run_context import RunContext

Operator = StrEnum(
    "Operator", ["NONE", "DIAGONAL", "TRANSLATION", "LINEAR", "AFFINE", "COMPLEX_DIAGONAL", "ROTATION"]
)
Comparator = StrEnum("Comparator", ["DOT", "COS", "L2", "SQUARED_L2"])
LossFunction = StrEnum("LossFunction", ["RANKING", "LOGISTIC", "SOFTMAX"])
BucketOrder = StrEnum("BucketOrder", ["RANDOM", "AFFINITY", "INSIDE_OUT", "OUTSIDE_IN"])

__all__ = [
    "COMPARATORS",
    "DYNAMIC_OPERATORS",
    "LOSS_FUNCTIONS",
    "NEGATIVE_SAMPLERS",
    "OPERATORS",
    "REGULARIZERS",
    "AbstractComparator",
    "AbstractDynamicOperator",
    "AbstractLossFunction",
    "AbstractNegativeSampler",
    "AbstractOperator",
    "AbstractRegularizer",
    "BucketOrder",
    "Comparator",
    "ConfigSchema",
    "EntitySchema",
    "LossFunction",
    "Operator",
    "RelationSchema",
    "do_eval",
    "evolve",
    "run_partition_server",
    "train",
]

log = logging.getLogger("graphmill")


class _Schema:
    """Base of the three schemas; train and do_eval check the values."""

    def to_dict(self) -> dict[str, Any]:
        """All keys, in PBG's order, as plain JSON types."""
        content = dataclasses.asdict(self)  # type: ignore[call-overload]
        return dict(json.loads(json.dumps(content, default=lambda each: each.value)))  # of enumerations

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Make a schema of a mapping."""
        return cls(**raw)


def _schema(name: str, model: type[EntityConfig | RelationConfig | PbgConfig]) -> Any:
    """A class with the fields and defaults of `model`, unchecked."""
    fields: list[Any] = [
        (key, Any) if field.is_required() else (key, Any, dataclasses.field(default=field.default))
        for key, field in model.model_fields.items()
    ]
    made = dataclasses.make_dataclass(name, fields, bases=(_Schema,), kw_only=True)
    made.__module__ = __name__  # for pickles
    return made


EntitySchema = _schema("EntitySchema", EntityConfig)
RelationSchema = _schema("RelationSchema", RelationConfig)
ConfigSchema = _schema("ConfigSchema", PbgConfig)
evolve = dataclasses.replace  # attr.evolve of PBG's attrs classes


def train(config: Any, rank: int = 0) -> None:
    """Train until num_epochs are done, from the checkpoint at checkpoint_path on.

    Raises:
        ConfigError: a value does not fit, or the checkpoint is of another model or graph.
    """
    if rank:
        log.info("training: rank %d has nothing to do: rank 0 trains, or Dask's workers do", rank)
        return
    settings = _settings(config)
    log_ignored_keys(settings)
    claim_checkpoint(settings)
    job.train(settings)


def run_partition_server(config: Any, rank: int = 0) -> None:
    """Wait until the process is ended: partitions are files of the checkpoint."""
    log.info("training: there is nothing to serve: partitions are files of %s", config.checkpoint_path)
    threading.Event().wait()


def do_eval(config: Any) -> dict[str, Any]:
    """Rank the edges of edge_paths; returns {count, metrics} over all edges.

    Raises:
        NotFoundError: there is no checkpoint.
    """
    settings = _settings(config)
    # the numbers of negatives are those of training, as in PBG
    settings = settings.model_copy(update={"eval_num_batch_negs": None, "eval_num_uniform_negs": None})
    context = RunContext.of_checkpoint(settings, "evaluate")
    model, files = context.load_trained_model(), PartitionFiles(context)
    tables: dict[PartitionKey, Table] = {}
    generator = seeds.generator(settings.seed, "eval")
    parts = []
    for (number, bucket), num_edges in context.schedule.num_edges.items():
        needed = keys_of(settings, bucket)
        tables = {key: tables[key] for key in tables.keys() & needed}  # the others leave before these come
        tables |= {key: files.load(key, context.version) for key in sorted(needed - tables.keys())}
        edges = read_edges(context, settings.edge_paths[number], bucket, (0, num_edges))
        pairs = with_tables(settings, batches.cut(settings, edges, generator), bucket, tables)
        parts.append(held_out.rank(settings, model, pairs, generator))
    count = sum(part["count"] for part in parts)
    sums = {name: sum(part["metrics"][name] * part["count"] for part in parts) for name in held_out.NAMES}
    metrics = {name: total / max(count, 1) for name, total in sums.items()}
    log.info("evaluation of %d edges: %s", count, metrics)
    return {"count": count, "metrics": metrics}


class _AsGiven(Config):
    """A configuration whose PBG part is written as given, with the keys of any release of PBG."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def pbg(self) -> dict[str, Any]:
        return self._given


def _settings(config: Any) -> Config:
    """Our configuration, made of a schema (ours or PBG's own) or of a mapping like its to_dict()."""
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    ours = from_mapping(given | {"train": {"on_change": "resume"}})
    settings = _AsGiven.model_construct(**dict(ours))  # validated already
    settings._given = given
    return settings
