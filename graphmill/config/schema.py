"""The typed content of a configuration: one frozen `Config`.

The top level holds PyTorch-BigGraph's keys under PBG's names and defaults, the roots of all paths, and the
seed. The class of each section (`etl`, `train`, ...) lies in `sections`.

Source of the keys: docs/formats/pbg_v1.md.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, field_serializer, model_validator

from graphmill import storage
from graphmill.config import defaults, splits
from graphmill.config.section import AnySection, Fixed, Neutral, Section, Tunable, validated
from graphmill.config.sections import SECTIONS
from graphmill.config.sections.cluster import ClusterConfig, ScheduleConfig
from graphmill.config.sections.etl import EtlConfig
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.config.sections.remap import DriftConfig, RemapConfig
from graphmill.config.sections.train import TrainConfig
from graphmill.config.values import (
    ComparatorName,
    Count,
    Fraction,
    LossName,
    Name,
    OperatorName,
    Positive,
    RegularizerName,
    RelationName,
    Strings,
    TypeName,
)
from graphmill.model import registry
from graphmill.model.operators import operator_of
from graphmill.vocab import MAX_WEIGHT, RECORD, TRAIN_SPLIT, Side


class EntityConfig(Section):
    """One entity type."""

    num_partitions: Fixed[Positive] = Field(
        description="Number of partitions of the type's rows; `auto`, or left out: by the number of ids and "
        "the memory of a worker."
    )
    featurized: Fixed[bool] = Field(
        False, description="An edge has a list of features in place of an id; the entity is their mean."
    )
    dimension: Fixed[Positive | None] = Field(
        None, description="Length of the type's embeddings; null: the global `dimension`."
    )


class RelationConfig(Section):
    """One relation; its position in the list is its number in the bucket files."""

    name: Fixed[RelationName] = Field(description="Name of the relation, as tables of edges have it.")
    lhs: Fixed[Name] = Field(description="Entity type of the left-hand side.")
    rhs: Fixed[Name] = Field(description="Entity type of the right-hand side.")
    weight: Tunable[float] = Field(1.0, gt=0, le=MAX_WEIGHT, description="Factor of the loss of its edges.")
    operator: Fixed[OperatorName] = Field(
        "none",
        description="Transformation of the right-hand side before scores are computed; or a plug-in. PBG "
        "has no `rotation` and cannot read such a checkpoint.",
    )
    all_negs: Tunable[bool] = Field(
        False, description="Use all entities of the partition as negatives, or train.candidates of them."
    )

    def entity_type(self, side: Side) -> str:
        """Name of the entity type on `side`."""
        return self.lhs if side is Side.LHS else self.rhs


class PbgConfig(Section):
    """PyTorch-BigGraph's configuration, key for key, default for default."""

    entities: Fixed[dict[TypeName, EntityConfig]] = Field(description="Entity types by name.")
    relations: Fixed[Annotated[tuple[RelationConfig, ...], Field(strict=False)]] = Field(
        description="Relations in the order of their numbers."
    )
    dimension: Fixed[Positive] = Field(description="Length of the embeddings.")
    init_scale: Tunable[float] = Field(0.001, gt=0, description="Standard deviation of the first embeddings.")
    max_norm: Tunable[float | None] = Field(None, gt=0, description="Largest norm of embeddings; null: none.")
    global_emb: Fixed[bool] = Field(
        True, description="Add one trained vector per entity type to each of its embeddings."
    )
    # Fixed: vectors that are close by one measure are not by another.
    comparator: Fixed[ComparatorName] = Field(
        "cos", description="Similarity of two vectors, which is an edge's score; or a plug-in."
    )
    bias: Fixed[bool] = Field(
        False, description="Use the first element of each embedding as a bias of the score."
    )
    loss_fn: Tunable[LossName] = Field(
        "ranking", description="Loss of an edge's score against the scores of its negatives; or a plug-in."
    )
    margin: Tunable[float] = Field(0.1, description="Margin of the ranking loss.")
    regularization_coef: Tunable[float] = Field(0.0, ge=0, description="Weight of the regularizer; 0: none.")
    regularizer: Tunable[RegularizerName] = Field(
        "N3", description="Regularizer: the cube of the vectors' elements (arXiv:1806.07297), or a plug-in."
    )
    entity_path: Neutral[str] = Field(description="Folder of entity counts and the entity index.")
    edge_paths: Neutral[Strings] = Field(
        description="Folders of bucket files to train on; `etl` writes those whose names its splits have."
    )
    checkpoint_path: Neutral[str] = Field(description="Folder of the checkpoint.")
    init_path: Neutral[str | None] = Field(None, description="Checkpoint to start from; null: random values.")
    checkpoint_preservation_interval: Neutral[Positive | None] = Field(
        None, description="Epochs from one checkpoint that is kept for good to the next; null: none is kept."
    )
    num_epochs: Neutral[Count] = Field(1, description="Epochs in all, those of earlier runs included.")
    # Fixed: a version of the checkpoint is one trained chunk.
    num_edge_chunks: Fixed[Positive | None] = Field(
        None, description="Chunks of edges that each bucket is trained in; null: see max_edges_per_chunk."
    )
    max_edges_per_chunk: Fixed[Positive] = Field(
        1_000_000_000, description="Edges per chunk at most, where num_edge_chunks is not set."
    )
    bucket_order: Tunable[Literal["random", "affinity", "inside_out", "outside_in"]] = Field(
        "inside_out", description="Order in which an epoch visits the buckets."
    )
    workers: Neutral[Positive | None] = Field(None, description="Threads per process; null: one per core.")
    batch_size: Tunable[Positive] = Field(
        1000, description="Edges per batch; with all_negs and softmax, queries."
    )
    num_batch_negs: Tunable[Count] = Field(50, description="Negatives per edge from the same batch.")
    num_uniform_negs: Tunable[Count] = Field(50, description="Negatives per edge from the whole partition.")
    disable_lhs_negs: Tunable[bool] = Field(False, description="Replace no left-hand side by negatives.")
    disable_rhs_negs: Tunable[bool] = Field(False, description="Replace no right-hand side by negatives.")
    lr: Tunable[float] = Field(0.01, ge=0, description="Learning rate.")
    relation_lr: Tunable[float | None] = Field(
        None, ge=0, description="Learning rate of the relations' parameters; null: lr."
    )
    eval_fraction: Tunable[Fraction] = Field(
        0.05, description="Fraction of each bucket's edges that is held out to measure the MRR."
    )
    eval_num_batch_negs: Neutral[Count | None] = Field(
        1000, description="num_batch_negs for held-out edges; null: num_batch_negs."
    )
    eval_num_uniform_negs: Neutral[Count | None] = Field(
        1000, description="num_uniform_negs for held-out edges; null: num_uniform_negs."
    )
    background_io: Neutral[bool] = Field(False, description="Without effect: see train.prefetch.")
    verbose: Neutral[int] = Field(0, description="Without effect: see the option --debug.")
    hogwild_delay: Neutral[float] = Field(2.0, description="Without effect: delay of PBG's threads.")
    dynamic_relations: Fixed[bool] = Field(
        False, description="Number the relations that the tables name; `relations` has one entry for all."
    )
    num_machines: Neutral[int] = Field(1, description="Without effect: see train.num_workers.")
    num_partition_servers: Neutral[int] = Field(-1, description="Without effect: servers of PBG.")
    distributed_init_method: Neutral[str | None] = Field(
        None, description="Without effect: address at which PBG's machines meet."
    )
    distributed_tree_init_order: Neutral[bool] = Field(
        True, description="Without effect: PBG's first order of buckets with several machines."
    )
    num_gpus: Neutral[int] = Field(0, description="GPUs to train, evaluate and predict with; 0: none.")
    num_groups_for_partition_server: Neutral[int] = Field(
        16, description="Without effect: connections of PBG's servers."
    )
    num_groups_per_sharded_partition_server: Neutral[int] = Field(
        1, description="Without effect: connections of PBG's servers."
    )
    partition_shard_size: Neutral[int] = Field(250, description="Without effect: size of PBG's messages.")
    half_precision: Tunable[bool] = Field(
        False,
        description="Compute score products from bfloat16 operands, where the processor has such products.",
    )

    @property
    def num_partitions(self) -> dict[str, int]:
        """Partitions of each entity type."""
        return {name: entity.num_partitions for name, entity in self.entities.items()}

    def entity_dimension(self, entity_type: str) -> int:
        """Length of the embeddings of `entity_type`."""
        return self.entities[entity_type].dimension or self.dimension

    def entry(self, relation: int) -> RelationConfig:
        """Settings of a relation, by number: all dynamic relations have those of the first."""
        return self.relations[0 if self.dynamic_relations else relation]

    def num_side_partitions(self, side: Side) -> int:
        """Partitions of the bucket grid along `side`: the largest of the types that occur there."""
        return max(self.entities[r.entity_type(side)].num_partitions for r in self.relations)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("entities", "relations", "edge_paths"):
            if not getattr(self, key):
                raise ValueError(f"{key}: expected at least one, found none")
        for number, relation in enumerate(self.relations):
            self._check_relation(number, relation)
        names = [relation.name for relation in self.relations]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"relations: two relations are named {twice!r}; names must differ")
        for side in Side:
            self._check_partitions(side)
        if self.disable_lhs_negs and self.disable_rhs_negs:
            raise ValueError(
                "disable_rhs_negs: cannot be used with disable_lhs_negs, as nothing would be trained"
            )
        if self.dynamic_relations and len(self.relations) != 1:
            raise ValueError(
                f"relations: dynamic_relations allows exactly one entry, found {len(self.relations)}"
            )
        if self.dynamic_relations and self.global_emb:
            raise ValueError("global_emb: cannot be used with dynamic_relations; set global_emb: false")
        return self

    def _check_partitions(self, side: Side) -> None:
        types = {relation.entity_type(side) for relation in self.relations}
        cut = {name: num for name, num in self.num_partitions.items() if name in types and num > 1}
        if len(set(cut.values())) > 1:
            counts = ", ".join(f"{name} has {count}" for name, count in cut.items())
            raise ValueError(
                f"entities: {counts}, on the {side} side: partition counts that differ cannot broadcast; "
                "give every partitioned type of a side the same num_partitions, or 1"
            )

    def _check_relation(self, number: int, relation: RelationConfig) -> None:
        where = f"relations[{number}]"
        for side in Side:
            if relation.entity_type(side) not in self.entities:
                raise ValueError(
                    f"{where}.{side}: {relation.entity_type(side)!r} is not among the entities: "
                    f"{', '.join(self.entities)}"
                )
        lhs_dim, rhs_dim = (PbgConfig.entity_dimension(self, relation.entity_type(side)) for side in Side)
        if lhs_dim != rhs_dim:
            raise ValueError(f"{where}: lhs has dimension {lhs_dim} and rhs {rhs_dim}; they must be equal")
        try:
            registry.check_kind(relation.operator, self.dynamic_relations)
        except ValueError as error:
            raise ValueError(f"{where}.operator: {error}") from error
        if rhs_dim % (parts := operator_of(relation.operator).parts):
            kind = "an even dimension" if parts == 2 else f"a dimension that {parts} divides"
            raise ValueError(f"{where}.operator: {relation.operator} needs {kind}, found {rhs_dim}")
        if relation.all_negs and any(self.entities[relation.entity_type(side)].featurized for side in Side):
            raise ValueError(f"{where}.all_negs: a featurized type has no list of all its entities")


Tables = Annotated[EtlConfig | None, BeforeValidator(lambda given: None if given == {} else given)]
"""The section `etl`; a run without tables need not have it, and run.json has it empty then."""

_TRAIN = "train."  # before the names of chosen keys of that section


class Config(PbgConfig):
    """The whole configuration of a run: PBG's keys, the roots of all paths, the sections."""

    output: Neutral[str | None] = Field(
        None, description="Root folder of all outputs whose paths are not set."
    )
    input: Neutral[str | None] = Field(None, description="Root folder of relative paths of raw tables.")
    edge_root: Neutral[str] = Field(
        description="Folder with one folder of bucket files per split that is not among `edge_paths`."
    )
    embedding_path: Neutral[str] = Field(description="Folder of the embeddings by raw id.")
    seed: Tunable[int] = Field(0, ge=0, lt=2**63, description="Seed of all random numbers.")
    defaults: Neutral[Literal["graphmill", "pbg"]] = Field(
        "pbg",
        description="Values of the keys that are left out: graphmill's own, by the sizes of the tables, or "
        "PBG's. Default in YAML: graphmill; in Python configurations: pbg.",
    )
    etl: Tables = Field(None, description="Raw tables, and how they become buckets.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="Settings of training beyond PBG's.")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="Edges to rank, and how.")
    remap: RemapConfig = Field(default_factory=RemapConfig, description="Form of the embeddings by raw id.")
    drift: DriftConfig | None = Field(None, description="Drift of the vectors since the run before.")
    cluster: Neutral[ClusterConfig] = Field(
        default_factory=ClusterConfig, description="Processes that do the work."
    )
    schedule: Neutral[ScheduleConfig] = Field(default_factory=ScheduleConfig, description="Runs by date.")

    _chosen: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def chosen(self) -> Mapping[str, Any]:
        """Keys that YAML has left out, with the values that `defaults` has chosen."""
        return self._chosen

    @property
    def uncut_types(self) -> tuple[str, ...]:
        """Entity types whose number of partitions YAML has left out."""
        start = defaults.ENTITIES
        return tuple(key.removeprefix(start) for key in self._chosen if key.startswith(start))

    def recorded(self) -> dict[str, Any]:
        """Return the configuration as JSON types, without the keys that the data have still to decide."""
        content = self.model_dump(mode="json")
        for key in (key for key, value in self._chosen.items() if value == defaults.AUTO):
            section, _, name = key.rpartition(".")
            if key.startswith(defaults.ENTITIES):
                del content["entities"][key.removeprefix(defaults.ENTITIES)]["num_partitions"]
            elif key == defaults.ALL_NEGS:
                for relation in content["relations"]:
                    del relation[key]
                for negs in defaults.NUM_NEGS:
                    del content[negs]
            else:
                del (content[section] if section else content)[name]
        return content

    def with_chosen(self, chosen: Mapping[str, Any]) -> Self:
        """Return the same configuration, with chosen values of its keys."""
        values = {key: value for key, value in chosen.items() if value != defaults.AUTO}
        entities = {
            name: entity.model_copy(
                update={"num_partitions": values.get(f"{defaults.ENTITIES}{name}", entity.num_partitions)}
            )
            for name, entity in self.entities.items()
        }
        updates: dict[str, Any] = {key: values[key] for key in type(self).model_fields if key in values}
        of_train = {
            key.removeprefix(_TRAIN): value for key, value in values.items() if key.startswith(_TRAIN)
        }
        if of_train:
            updates["train"] = self.train.model_copy(update=of_train)
        if defaults.ALL_NEGS in values:
            own = {defaults.ALL_NEGS: values[defaults.ALL_NEGS]}
            updates["relations"] = tuple(relation.model_copy(update=own) for relation in self.relations)
        copy = self.model_copy(update={**updates, "entities": entities})
        copy._chosen = dict(chosen)
        return copy

    @field_serializer(*SECTIONS)
    def _as_given(self, section: Section | None, field: Any) -> dict[str, Any] | None:
        """Write a section with the keys that the user has set."""
        if section is None:
            return {} if field.field_name == "etl" else None
        return section.model_dump(mode="json", exclude_unset=True)

    def section(self, model: type[AnySection]) -> AnySection:
        """Return the section of class `model`, or its defaults if the configuration has no such section."""
        own = getattr(self, model.key)
        return own if isinstance(own, model) else validated(model, {}, prefix=(model.key,))

    def num_compared(self, largest_type: int) -> int:
        """Count the entities that training compares with a side; the largest type has `largest_type`."""
        if not any(relation.all_negs for relation in self.relations):
            return self.num_batch_negs + self.num_uniform_negs
        candidates = self.train.candidates
        return largest_type if candidates is None else min(largest_type, 2 * candidates)

    def entity_dimension(self, entity_type: str) -> int:
        """Length of the embeddings of `entity_type` in the checkpoint: that of all models together."""
        return self.train.ensemble * super().entity_dimension(entity_type)

    def with_section(self, section: Section) -> Self:
        """Return the same configuration with another `section`."""
        return self.model_copy(update={section.key: section})

    def pbg(self) -> dict[str, Any]:
        """Return PBG's part alone, in PBG's order, as plain JSON types: the model of the checkpoint."""
        content = self.model_dump(mode="json", include=set(PbgConfig.model_fields))
        for model in (content, *content["entities"].values()):
            if model["dimension"] is not None:
                model["dimension"] *= self.train.ensemble
        return content

    def split_path(self, split: str) -> str:
        """Folder of the bucket files of `split`: one of `edge_paths`, or one in `edge_root`."""
        return splits.folder_of(split, self.edge_paths, self.edge_root)

    @property
    def edge_path_splits(self) -> list[str]:
        """The split that each of `edge_paths` holds."""
        train = self.split_path(TRAIN_SPLIT)
        names = zip(self.edge_paths, splits.names_of(self.edge_paths), strict=True)
        return [TRAIN_SPLIT if path == train else name for path, name in names]

    @property
    def split_root(self) -> str | None:
        """Folder that holds the splits of this graph alone, under their names; None beside PBG's folders."""
        is_ours = self.split_path(TRAIN_SPLIT) == storage.join(self.edge_root, TRAIN_SPLIT)
        return self.edge_root if is_ours else None

    def record_uri(self, default_root: str) -> str:
        """URI of run.json: under `output`, else under `default_root`."""
        return storage.join(self.output or default_root, RECORD)
