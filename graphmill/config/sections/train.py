"""The section `train`: settings of training beyond PBG's keys."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr

from graphmill import storage
from graphmill.config.plugins import NO_PLUGINS, PluginList
from graphmill.config.section import Fixed, Neutral, Section, Tunable
from graphmill.config.values import Fraction, Positive, Strings
from graphmill.model import registry

SamplerName = Annotated[str, AfterValidator(registry.NEGATIVE_SAMPLERS.check)]
# Absolute, as workers have other folders.
VectorPath = Annotated[str, Field(min_length=1), AfterValidator(storage.absolute)]
# Keys that are not written where they have these values: older checkpoints lack them.
_UNUSED: dict[str, Any] = {
    "freeze": [],
    "plugins": {},
    "negative_sampler": None,
    "relation_prediction": 0.0,
    "ensemble": 1,
    "candidates": None,
    "first_negatives": 1.0,
    "popularity": False,
    "replay": None,
}


class TrainConfig(Section):
    """The section `train`."""

    key = "train"

    on_change: Neutral[Literal["restart", "resume", "refuse"]] = Field(
        "restart",
        description="Treatment of a checkpoint that was trained with other settings. restart moves it aside; "
        "resume continues with it, unless a setting has changed that decides what is learned; refuse stops "
        "the run. A configuration of PBG (.py) has resume by default, as PBG does.",
    )
    relation_init: Tunable[Literal["random", "identity", "small"]] = Field(
        "random",
        description="First values of relation operators: random; small, with init_scale as for embeddings; "
        "or PBG's identity, with which every edge looks like a loop at first.",
    )
    # Tunable: the sums of one optimizer are converted to those of the other.
    optimizer: Tunable[Literal["row_adagrad", "adagrad"]] = Field(
        "row_adagrad",
        description="Optimizer of the embeddings. row_adagrad is PBG's, with one sum per row; adagrad has "
        "one sum per element, takes twice the memory, and fits small graphs better.",
    )
    lr_schedule: Tunable[Literal["constant", "linear", "cosine"]] = Field(
        "constant", description="Decay of lr and relation_lr over the run."
    )
    lr_final: Tunable[Fraction] = Field(
        0.1, description="Learning rate at the end of the run, as a fraction of the first."
    )
    validate_split: Tunable[str | None] = Field(
        None,
        description="Split under edge_root on which versions are ranked as by `evaluate`; the run ends with "
        "the best version. null: no validation.",
    )
    validate_every: Tunable[Positive] = Field(1, description="Epochs between two validations.")
    patience: Tunable[int] = Field(
        0, ge=0, description="Validations without a better MRR after which the run ends; 0: never."
    )
    negative_power: Tunable[float] = Field(
        0.0,
        ge=0,
        description="Uniform negatives are drawn in proportion to (1 + edges)^power, of the bucket's edges "
        "with the entity on that side: 0 draws all alike, 1 in proportion to edges.",
    )
    candidates: Tunable[Positive | None] = Field(
        None,
        description="Entities that the queries of a batch of all_negs are compared with, drawn anew for each "
        "batch, beside the answers of each query; null: all of the partition. Needs softmax, and comparator "
        "dot or cos without bias.",
    )
    first_negatives: Tunable[float] = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of num_uniform_negs, or of candidates, that the first steps draw, which need few. "
        "It doubles from time to time, until the last steps draw all. A negative_sampler and the fused step "
        "on GPUs draw all from the start.",
    )
    popularity: Tunable[bool] = Field(
        False,
        description="Start element 0 of each embedding at 1, and leave it out of the regularizer: it learns "
        "how popular an id is, and the others need not. Needs all_negs, softmax, dot without bias, and "
        "relations without operator.",
    )
    chunk_edges: Tunable[Positive] = Field(
        500,
        description="Edges of a batch that share one set of negatives, or num_batch_negs if that is more. "
        "Many edges make wide matrix products; 1 is PBG's rule.",
    )
    reciprocal_relations: Fixed[bool] = Field(
        False,
        description="Give static relations one operator per direction, as dynamic relations have them. PBG "
        "cannot read such a checkpoint.",
    )
    prefetch: Neutral[bool | None] = Field(
        None,
        description="Read the next bucket's partitions and edges, and write the last one's, during training: "
        "faster, and takes the memory of what is read and written. null: yes, but where memory decides how "
        "many partitions are in memory, they have that memory: they learn better, and are read less often.",
    )
    memory_partitions: Tunable[int | None] = Field(
        None,
        ge=2,
        description="Partitions per type in memory, besides those being read and written. Half of them are "
        "joined to one partition each: fewer partitions are read less often, and learn better. null: as "
        "many as half of the worker's memory holds; with resident: never those of a bucket.",
    )
    commit_interval_s: Neutral[float] = Field(
        30.0,
        ge=0,
        description="Seconds between two versions of the checkpoint, where all rows are in memory: shorter "
        "epochs share one. A killed run loses as much. 0: every epoch is a version.",
    )
    tensorboard: Neutral[bool] = Field(
        False, description="Write event files of the curves to {output}/tensorboard, one per epoch."
    )
    save_embed_path: Neutral[str | None] = Field(
        None, description="Folder for the embeddings as GraphStorm saves them; null: none are written."
    )
    save_model_path: Neutral[str | None] = Field(
        None, description="Folder for the model as GraphStorm saves it (epoch-{E}/); null: none is written."
    )
    index_base: Neutral[Literal["auto", 0, 1]] = Field(
        "auto", description="First number in legacy input and legacy checkpoints; auto: as their names say."
    )
    num_workers: Neutral[Positive] = Field(
        1, description="Dask workers that train at the same time, each on partitions of its own."
    )
    bucket_assignment: Neutral[Literal["dynamic", "tournament"]] = Field(
        "dynamic",
        description="Assignment of buckets to several workers. dynamic gives each worker the next free "
        "bucket; tournament goes in rounds, waits at their ends, and repeats to the last byte.",
    )
    exchange_bytes: Neutral[int | None] = Field(
        None,
        ge=0,
        description="Memory of each of several workers for partitions that no bucket of it needs now, which "
        "other workers fetch from there, in bytes. null: half of the worker's memory without what a bucket "
        "and shared rows need; 0: they read files.",
    )
    all_reduce: Neutral[Literal["auto", "shards", "files", "nccl", "gloo"]] = Field(
        "auto", description="Without effect, for older configurations: workers merge shared rows by shards."
    )
    shared_interval_s: Neutral[float] = Field(
        5.0,
        gt=0,
        description="Seconds between two exchanges with the shards while a bucket is trained; not in a "
        "tournament. At most a tenth of the time goes into exchanges.",
    )
    engine: Neutral[Literal["auto", "plain", "fused"]] = Field(
        "auto",
        description="Implementation of a training step. auto: fused kernels on a GPU for models that they "
        "support, else plain torch. fused on a CPU is for comparisons.",
    )
    resident: Neutral[Literal["auto", "always", "never"]] = Field(
        "auto",
        description="Keep all rows and edges in the memory of the GPU, or of the worker without one: then "
        "partitions are only in files, and cost no quality. auto: if they fit, on a CPU into half of the "
        "worker's memory. Several workers share the partitions.",
    )
    device_partitions: Neutral[int | None] = Field(
        None,
        ge=0,
        description="Partitions in GPU memory, where the whole graph does not fit; the others are in host "
        "memory. 0: all of them in files; null: as many as fit.",
    )
    exact_products: Neutral[bool] = Field(
        False, description="Multiply float32 on a GPU as float32, at an eighth of the speed, instead of tf32."
    )
    deterministic: Neutral[bool] = Field(
        True,
        description="Sum gradients of equal rows on a GPU in a fixed order, so that a run repeats to the "
        "last bit; false is faster.",
    )

    freeze: Tunable[Strings] = Field(
        (),
        description="Entity types and relations, by name, that do not move: with init_path, they stay as "
        "they are there. The global embedding of a frozen type is frozen too.",
    )
    replay: Tunable[float | None] = Field(
        None,
        ge=0,
        description="Train the edges that etl has added to those of `etl.previous_edge_path`, from init_path "
        "on, and for each of them this many of the other edges, drawn anew in each epoch. Rows without added "
        "edges stay as they are; new ids are folded in. null: train all edges.",
    )
    removed_weight: Tunable[float] = Field(
        30.0,
        ge=0,
        description="With replay: weight of edges of `etl.previous_edge_path` that are none any more. Their "
        "ends move apart until they score like other pairs; 0: vectors remember them.",
    )
    plugins: Tunable[PluginList] = Field(
        NO_PLUGINS,
        description="Python files and importable modules that register plug-ins: operators, comparators, "
        "losses, regularizers, negative samplers. Relative paths start at the current folder.",
        json_schema_extra={"default": []},
    )
    relation_prediction: Tunable[float] = Field(
        0.0,
        ge=0,
        description="Weight of an auxiliary loss, the cross entropy of an edge's relation among all "
        "relations. For dynamic relations with diagonal operators and dot, in PyTorch's steps; 0: none.",
    )
    ensemble: Fixed[Positive] = Field(
        1,
        description="Models of `dimension` that are trained apart, with other seeds, and joined into one "
        "checkpoint of that many times the dimension. Needs comparator dot.",
    )
    # Neutral, as init_path: the files are inputs.
    init_embeddings: Neutral[dict[str, VectorPath | None]] = Field(
        {},
        description="Vectors that entities of a type start from, as `{item: PATH}`: a parquet file with the "
        "columns `id` and `embedding`, a folder of such files or a glob pattern. Ids without a vector "
        "are drawn.",
    )
    negative_sampler: Tunable[SamplerName | None] = Field(
        None, description="Plug-in that draws num_uniform_negs negatives per chunk; null: uniformly."
    )

    _given_at: str | None = PrivateAttr(None)

    @property
    def given_at(self) -> str | None:
        """The folder of the rows of init_embeddings, for a member of an ensemble."""
        return self._given_at

    def with_given_at(self, folder: str) -> Self:
        """The same settings, for a member of an ensemble that has the rows of init_embeddings in `folder`."""
        copy = self.model_copy()
        copy._given_at = folder
        return copy

    @classmethod
    def needs_consent(cls, key: str, value: Any) -> bool:
        """Tell whether a setting runs code."""
        return key == "plugins" and value != []

    def result_settings(self) -> dict[str, Any]:
        """The settings that change the result; plug-ins by checksum, and not the keys that are not in use."""
        settings = super().result_settings() | {"plugins": self.plugins.checksums()}
        return {key: value for key, value in settings.items() if key not in _UNUSED or value != _UNUSED[key]}
