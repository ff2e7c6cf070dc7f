"""What a configuration holds: one frozen, typed `Config`.

The top level holds PyTorch-BigGraph's keys under PBG's names and defaults, plus the roots of all paths
and the seed. The sections `etl`, `train`, `evaluate`, `remap`, `cluster` and `schedule` belong to the code
that acts on them: each has its own typed class there, which `Config.section` fills and checks.

Source of the keys: docs/formats/pbg_v1.md.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from graphmill import storage
from graphmill.config.checking import AnySection, Section, validated
from graphmill.model.operators import OperatorName, operator_of
from graphmill.vocab import Side

_MAX_NAME_BYTES = 200


def _fits_file_name(name: str) -> str:
    if (size := len(name.encode(errors="replace"))) > _MAX_NAME_BYTES:
        raise ValueError(
            f"expected a name of at most {_MAX_NAME_BYTES} bytes, found {size}: {name[:40]!r}..."
        )
    return name


Name = Annotated[
    str,
    Field(
        pattern=r"^[^./\s\x00-\x1f\x7f][^./\x00-\x1f\x7f]*$",
        description="no dot, slash or control character: names become file names",
    ),
    AfterValidator(_fits_file_name),
]
TypeName = Annotated[Name, Field(pattern=r"^[^:]*$", description="also no colon: HDFS refuses it")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0, lt=2**63)]
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class EntityConfig(Section):
    """One entity type."""

    num_partitions: Positive = Field(description="slices that the type's rows are split into")
    featurized: bool = Field(False, description="an edge has a list of features, whose mean is the entity")
    dimension: Positive | None = Field(None, description="overrides the global dimension")


class RelationConfig(Section):
    """One relation; its position in the list is its number in the bucket files."""

    name: Name
    lhs: Name = Field(description="entity type of the left-hand side")
    rhs: Name = Field(description="entity type of the right-hand side")
    weight: float = Field(1.0, gt=0, description="multiplies the loss of this relation's edges")
    operator: OperatorName = Field(
        "none", description="rotation is ours: PBG cannot read a checkpoint that has one"
    )
    all_negs: bool = Field(False, description="every entity of the partition is a negative")

    def entity_type(self, side: Side) -> str:
        """Name of the entity type on `side`."""
        return self.lhs if side is Side.LHS else self.rhs


class PbgConfig(Section):
    """PyTorch-BigGraph's configuration, key for key, default for default."""

    entities: dict[TypeName, EntityConfig]
    relations: Annotated[tuple[RelationConfig, ...], Field(strict=False)]
    dimension: Positive
    init_scale: float = Field(0.001, gt=0)
    max_norm: float | None = Field(None, gt=0)
    global_emb: bool = True
    comparator: Literal["dot", "cos", "l2", "squared_l2"] = "cos"
    bias: bool = False
    loss_fn: Literal["ranking", "logistic", "softmax"] = "ranking"
    margin: float = 0.1
    regularization_coef: float = Field(0.0, ge=0)
    regularizer: Literal["N3"] = "N3"
    entity_path: str
    edge_paths: Strings
    checkpoint_path: str
    init_path: str | None = None
    checkpoint_preservation_interval: Positive | None = None
    num_epochs: Annotated[int, Field(ge=0)] = 1
    num_edge_chunks: Positive | None = None
    max_edges_per_chunk: Positive = 1_000_000_000
    bucket_order: Literal["random", "affinity", "inside_out", "outside_in"] = "inside_out"
    workers: Positive | None = None
    batch_size: Positive = 1000
    num_batch_negs: Annotated[int, Field(ge=0)] = 50
    num_uniform_negs: Annotated[int, Field(ge=0)] = 50
    disable_lhs_negs: bool = False
    disable_rhs_negs: bool = False
    lr: float = Field(0.01, ge=0)
    relation_lr: float | None = Field(None, ge=0)
    eval_fraction: Fraction = 0.05
    eval_num_batch_negs: Annotated[int, Field(ge=0)] | None = 1000
    eval_num_uniform_negs: Annotated[int, Field(ge=0)] | None = 1000
    background_io: bool = False
    verbose: int = 0
    hogwild_delay: float = 2.0
    dynamic_relations: bool = False
    num_machines: int = 1
    num_partition_servers: int = -1
    distributed_init_method: str | None = None
    distributed_tree_init_order: bool = True
    num_gpus: int = 0
    num_groups_for_partition_server: int = 16
    num_groups_per_sharded_partition_server: int = 1
    partition_shard_size: int = 250
    half_precision: bool = False

    def entity_dimension(self, entity_type: str) -> int:
        """Length of the embeddings of `entity_type`."""
        return self.entities[entity_type].dimension or self.dimension

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
        if self.dynamic_relations and len(self.relations) != 1:
            raise ValueError(
                f"relations: dynamic_relations allows exactly one entry, found {len(self.relations)}"
            )
        if self.dynamic_relations and self.global_emb:
            raise ValueError("global_emb: cannot be used with dynamic_relations; set global_emb: false")
        if self.loss_fn == "logistic" and self.comparator == "cos":
            raise ValueError(
                "loss_fn: logistic cannot be used with comparator cos, whose scores lie in [-1, 1]"
            )
        return self

    def _check_partitions(self, side: Side) -> None:
        types = {relation.entity_type(side) for relation in self.relations}
        partitioned = {n: e.num_partitions for n, e in self.entities.items() if n in types}
        partitioned = {name: count for name, count in partitioned.items() if count > 1}
        if len(set(partitioned.values())) > 1:
            found = ", ".join(f"{n} has {p}" for n, p in partitioned.items())
            raise ValueError(
                f"entities: {found}, on the {side} side: partition counts that differ cannot broadcast; "
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
        lhs_dim, rhs_dim = (self.entity_dimension(relation.entity_type(side)) for side in Side)
        if lhs_dim != rhs_dim:
            raise ValueError(f"{where}: lhs has dimension {lhs_dim} and rhs {rhs_dim}; they must be equal")
        if operator_of(relation.operator).is_complex and rhs_dim % 2:
            raise ValueError(
                f"{where}.operator: {relation.operator} needs an even dimension, found {rhs_dim}"
            )
        if relation.all_negs and any(self.entities[relation.entity_type(side)].featurized for side in Side):
            raise ValueError(f"{where}.all_negs: a featurized type has no list of all its entities")


class Config(PbgConfig):
    """The whole configuration of a run: PBG's keys, the roots of all paths, the sections."""

    output: str | None = Field(None, description="root of all paths that are not set on their own")
    input: str | None = Field(None, description="root of relative paths of raw tables")
    edge_root: str = Field(description="folder with one folder of bucket files a split")
    embedding_path: str = Field(description="folder of the embeddings keyed by raw id")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything that is random")
    etl: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)
    evaluate: dict[str, Any] = Field(default_factory=dict)
    remap: dict[str, Any] = Field(default_factory=dict)
    cluster: dict[str, Any] = Field(default_factory=dict)
    schedule: dict[str, Any] = Field(default_factory=dict)

    def section(self, name: str, model: type[AnySection]) -> AnySection:
        """The section `name`, checked and typed as `model`.

        Raises:
            ConfigError: a key is unknown, missing, or of the wrong type.
        """
        return validated(model, getattr(self, name), prefix=(name,))

    def pbg(self) -> dict[str, Any]:
        """PBG's part alone, in PBG's order, as plain JSON types."""
        return {name: self.model_dump(mode="json")[name] for name in PbgConfig.model_fields}

    def split_path(self, split: str) -> str:
        """Folder of the bucket files of `split`."""
        return storage.join(self.edge_root, split)

    def record_uri(self, default_root: str) -> str:
        """Place of run.json: under `output`, else beside what the stage writes."""
        return storage.join(self.output or default_root, "run.json")
