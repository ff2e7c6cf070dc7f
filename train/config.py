"""The sections `train` and `evaluate`: what PBG's keys do not say."""

from typing import Literal

from pydantic import Field

from graphmill.config import Fraction, Positive, Section, Strings


class TrainConfig(Section):
    """Settings of the trainer that are ours; train/run/kinds.py says of which kind each is."""

    on_change: Literal["restart", "resume", "refuse"] = Field(
        "restart",
        description="what becomes of a checkpoint that was trained with other settings: restart moves it "
        "aside; resume goes on with it, where how it learns has changed and not what; refuse ends the run. A "
        "configuration of PBG (.py) has resume by default, as PBG does",
    )
    relation_init: Literal["random", "identity", "small"] = Field(
        "random",
        description="how relation operators start: random; or small, of init_scale as embeddings are; or "
        "PBG's identity, where every edge looks like a loop at first and an entity is its own best match",
    )
    optimizer: Literal["row_adagrad", "adagrad"] = Field(
        "row_adagrad",
        description="how embeddings move: row_adagrad is PBG's, one number of state a row; adagrad has "
        "one an element, twice the memory, and fits small graphs better",
    )
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how lr and relation_lr fall over the run, to lr_final times what they were"
    )
    lr_final: Fraction = Field(0.1, description="what is left of the learning rates at the end of the run")
    validate_split: str | None = Field(
        None,
        description="split under edge_root that versions are ranked on, as by `evaluate`; the best one is "
        "what the run ends with",
    )
    validate_every: Positive = Field(1, description="epochs from one ranking to the next")
    patience: int = Field(
        0, ge=0, description="rankings without a better MRR after which the run ends; 0: num_epochs ends it"
    )
    negative_power: float = Field(
        0.0,
        ge=0,
        description="entities are drawn as negatives in proportion to (1 + edges)^power, of the "
        "bucket's edges that have them on that side: 0 draws all alike, 1 as the edges do",
    )
    chunk_edges: Positive = Field(
        500,
        description="edges of a batch that share one set of negatives, or num_batch_negs where that is more: "
        "many make wide products; 1 is PBG's rule, as many as num_batch_negs",
    )
    reciprocal_relations: bool = Field(
        False,
        description="give static relations an operator for each direction, as dynamic relations have it: "
        "one asks for lhs, the other for rhs; PBG cannot read such a checkpoint",
    )
    prefetch: bool = Field(
        True,
        description="read the next bucket's partitions and edges, and write the last one's, while this one "
        "is trained: faster, and takes the memory of what comes in or goes out",
    )
    memory_partitions: int | None = Field(
        None,
        ge=2,
        description="partitions of a type in memory at a time, besides those that come in or go out; by "
        "default the bucket's. More of them are read less often, in an order of their own, not bucket_order",
    )
    tensorboard: bool = Field(
        False, description="write event files of the curves to {output}/tensorboard, one an epoch"
    )
    save_embed_path: str | None = Field(
        None, description="after training, also write the embeddings here as GraphStorm saves them"
    )
    save_model_path: str | None = Field(
        None, description="after training, also write the model here as GraphStorm saves it: epoch-{E}/"
    )
    index_base: Literal["auto", 0, 1] = Field(
        "auto", description="first number in legacy input and legacy checkpoints; auto: as their names say"
    )
    num_workers: Positive = Field(1, description="Dask workers that train, each on buckets of its own")
    bucket_assignment: Literal["dynamic", "tournament"] = Field(
        "dynamic",
        description="with several workers, how they get their buckets: dynamic gives each the next one that "
        "is free; tournament goes in rounds, waits at their ends, and ends with the same bytes every time",
    )
    all_reduce: Literal["auto", "files", "nccl", "gloo"] = Field(
        "auto",
        description="with several workers, how relations and types with one partition come together: files "
        "merges them in the checkpoint's storage, one bucket after the other; nccl and gloo sum them up "
        "between the workers at the end of a round; auto takes nccl for GPUs in a tournament, else files",
    )
    engine: Literal["auto", "plain", "fused"] = Field(
        "auto",
        description="what takes the steps: auto takes fused kernels on a GPU for what they know, else plain "
        "torch; fused on a CPU is for comparing the two",
    )
    resident: Literal["auto", "always", "never"] = Field(
        "auto",
        description="keep the whole graph on the device, without partitions: auto does on a GPU, if it fits",
    )
    device_partitions: int | None = Field(
        None,
        ge=0,
        description="partitions that a GPU holds at once where it does not hold the graph; the others are in "
        "the host's memory. 0 has them in files alone; by default as many as fit in half of its memory",
    )
    exact_products: bool = Field(
        False,
        description="on a GPU: float32 operands multiply as float32, at an eighth of the speed, not in tf32",
    )
    deterministic: bool = Field(
        True,
        description="on a GPU: gradients of equal rows are summed in one order, so that a run repeats to the "
        "last bit; false lets each occurrence move its row by itself, which is faster",
    )


class EvaluateConfig(Section):
    """The section `evaluate`."""

    split: str = Field("test", description="folder under edge_root whose edges are ranked")
    filtered: bool = Field(True, description="no known edge is a rival of another one")
    filter_paths: Strings | None = Field(
        None, description="folders of known edges; default: edge_paths and all splits under edge_root"
    )
    checkpoint_version: Positive | None = Field(None, description="default: the latest")
    block_bytes: Positive | None = Field(
        None, ge=1 << 10, description="scores in memory at once, a thread; default: 4 MiB, on a GPU 256 MiB"
    )
    query_bytes: Positive = Field(1 << 30, description="embeddings of ranked edges in memory at once")
