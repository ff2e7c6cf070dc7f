"""The Python functions of PyTorch-BigGraph that its users call, on top of this trainer.

    from train.pbg_api import ConfigSchema, EntitySchema, RelationSchema, do_eval, evolve, train

    train(config)        what torchbiggraph.train.train does: goes on from checkpoint_path up to num_epochs
    do_eval(config)      what torchbiggraph.eval.do_eval does: ranks the edges of edge_paths bucket by bucket,
                         among the candidates that the configuration says, unfiltered

Keys, defaults and `to_dict()` are those of PBG's schema. Machines, ranks and partition servers are left to
Dask: rank 0 trains, whoever else is called has nothing to do.
"""

import dataclasses
import logging
import threading
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Self

import torch
from pydantic import PrivateAttr

from graphmill.config import Config, EntityConfig, PbgConfig, RelationConfig, from_mapping
from graphmill.errors import NotFoundError
from graphmill.formats import edge_buckets, pbg_checkpoint
from graphmill.vocab import Bucket, Side
from train import job
from train.edges import batches, seeds
from train.edges.schedule import Key, key_of, rows_of
from train.evaluation import held_out
from train.model.model import Model
from train.run.ignored_keys import tell_replaced
from train.step.table import Table
from train.tables.partition_files import PartitionFiles
from train.tables.start import Start

Operator = StrEnum(
    "Operator", ["NONE", "DIAGONAL", "TRANSLATION", "LINEAR", "AFFINE", "COMPLEX_DIAGONAL", "ROTATION"]
)
Comparator = StrEnum("Comparator", ["DOT", "COS", "L2", "SQUARED_L2"])
LossFunction = StrEnum("LossFunction", ["RANKING", "LOGISTIC", "SOFTMAX"])
BucketOrder = StrEnum("BucketOrder", ["RANDOM", "AFFINITY", "INSIDE_OUT", "OUTSIDE_IN"])

log = logging.getLogger("graphmill")


class _Schema:
    """What the three schemas share; values are checked when they are used, by train and do_eval."""

    def to_dict(self) -> dict[str, Any]:
        """All keys, in PBG's order, as plain JSON types."""
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: _plain(getattr(self, field.name)) for field in fields}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The schema that a mapping describes."""
        return cls(**raw)


def _plain(value: Any) -> Any:
    if isinstance(value, _Schema):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


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
    """Train until num_epochs are done, going on from the checkpoint that is there.

    Raises:
        ConfigError: a value does not fit, or the checkpoint is of another model or graph.
    """
    if rank:
        log.info("training: rank %d has nothing to do: rank 0 trains, or Dask's workers do", rank)
        return
    settings = _settings(config)
    tell_replaced(settings)
    job.claim_checkpoint(settings)
    job.train(settings)


def run_partition_server(config: Any, rank: int = 0) -> None:
    """Wait to be ended: partitions are files of the checkpoint."""
    log.info("training: there is nothing to serve: partitions are files of %s", config.checkpoint_path)
    threading.Event().wait()


def do_eval(config: Any) -> dict[str, Any]:
    """Rank the edges of edge_paths; {count, metrics} over all of them.

    Raises:
        NotFoundError: there is no checkpoint.
    """
    settings = _settings(config)
    # the numbers of negatives are those of training, as PBG has it
    settings = settings.model_copy(update={"eval_num_batch_negs": None, "eval_num_uniform_negs": None})
    start = Start(settings)
    if not start.version:
        raise NotFoundError(f"{settings.checkpoint_path}: there is no checkpoint to evaluate; train first")
    model = Model(settings, start.num_dynamic)
    model_uri = pbg_checkpoint.model_uri(settings.checkpoint_path, start.version)
    model.load_state(pbg_checkpoint.read_model(settings.checkpoint_path, start.version)[0], model_uri)
    files = PartitionFiles(start)
    tables: dict[Key, Table] = {}
    generator = seeds.generator(settings.seed, "eval")

    def sides_of(relation: int, bucket: Bucket) -> dict[Side, Table]:
        entry = settings.relations[relation]
        keys = {side: key_of(settings, entry.entity_type(side), side, bucket) for side in Side}
        for key in keys.values():
            if key not in tables:
                tables[key] = files.load(key, start.version)
        return {side: tables[key] for side, key in keys.items()}

    found = []
    for number, bucket in start.schedule.num_edges:
        edges = _read(settings, start, settings.edge_paths[number], bucket)
        cut = batches.cut(settings, edges, generator)
        tables.clear()
        pairs = ((batch, sides_of(batch.relation, bucket)) for batch in cut)
        found.append(held_out.rank(settings, model, pairs, generator))
    whole = _joined(found)
    log.info("evaluation of %d edges: %s", whole["count"], whole["metrics"])
    return whole


def _read(config: Config, start: Start, edge_path: str, bucket: Bucket) -> batches.EdgeTensors:
    num_rows = rows_of(config, start.num_rows, bucket)
    rows = 0, edge_buckets.count_edges(edge_path, bucket)
    num_rel = len(config.relations) if start.num_dynamic is None else start.num_dynamic
    return batches.read(config, edge_path, bucket, rows, num_rows, num_rel, torch.device("cpu"))


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over all edges."""
    count = sum(part["count"] for part in parts)
    metrics = {
        name: sum(part["metrics"][name] * part["count"] for part in parts) / max(count, 1)
        for name in held_out.NAMES
    }
    return {"count": count, "metrics": metrics}


class _AsGiven(Config):
    """A configuration whose PBG part is written as given: of any release, with the keys that it has."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def pbg(self) -> dict[str, Any]:
        return self._given


def _settings(config: Any) -> Config:
    """Our configuration, of a schema (PBG's own will do) or of a mapping like its to_dict()."""
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    ours = from_mapping(given | {"train": {"on_change": "resume"}})
    settings = _AsGiven.model_validate(ours.model_dump())
    settings._given = given
    return settings
