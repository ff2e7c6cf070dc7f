"""The section `evaluate`."""

from typing import Annotated, Literal

from pydantic import Field

from graphmill.config.section import Fixed, Flag, Neutral, Section
from graphmill.config.values import Positive, Strings

Share = Annotated[float, Field(gt=0)]


class EvaluateConfig(Section):
    """The section `evaluate`."""

    key = "evaluate"

    enabled: Neutral[bool] = Field(
        True, description="Evaluate in a run of all stages; false leaves the stage out."
    )
    split: Fixed[Annotated[str, Flag(metavar="NAME")]] = Field(
        "test", description="Split whose edges are ranked: one of edge_paths, or under edge_root."
    )
    filtered: Fixed[Annotated[bool, Flag("--filtered/--unfiltered")]] = Field(
        True, description="Leave other known edges out of the ranking of an edge."
    )
    leave_out_itself: Fixed[bool] = Field(
        False,
        description="Leave an entity out of its own candidates where no training edge of the relation is a "
        "loop, as `predict` does; false: rank it too, as published figures do.",
    )
    filter_paths: Fixed[Strings | None] = Field(
        None, description="Folders of known edges; null: edge_paths and all splits under edge_root."
    )
    checkpoint_version: Fixed[Positive | None] = Field(
        None, description="Version of the checkpoint to evaluate; null: the latest."
    )
    calibrate: Fixed[str | None] = Field(
        "valid",
        description="Split that probabilities of answers (`predict --calibrated`) are fitted on, and "
        "measured on the ranked split; not where it is trained on or ranked itself. null: none are fitted.",
    )
    sample: Fixed[Positive | None] = Field(
        None, description="Edges to rank, drawn from the split; null: as many as evaluate.budget allows."
    )
    candidates: Neutral[Positive | None] = Field(
        None, description="Without effect, for older configurations: edges are ranked among all entities."
    )
    budget: Fixed[Share | Literal["unlimited"]] = Field(
        0.1,
        description="Scores of a ranking, as a share of those that training computes; 10^13 products of two "
        "numbers, minutes of work, are always allowed. A larger split is sampled. unlimited: rank all edges.",
    )
    precision: Neutral[Literal["auto", "bfloat16", "float32"]] = Field(
        "auto",
        description="Products on a CPU. bfloat16 computes again in float32 what is too close to tell, so the "
        "ranks are the same; auto: bfloat16 where the CPU has instructions for it (AMX, AVX512-BF16).",
    )
    block_bytes: Neutral[Positive | None] = Field(
        None,
        ge=1 << 10,
        description="Memory of scores per thread, in bytes; null: 8 MiB, on a GPU 256 MiB, and 64 MiB of "
        "vectors where it keeps no scores.",
    )
    query_bytes: Neutral[Positive] = Field(
        1 << 30, description="Memory of the embeddings of ranked edges, in bytes."
    )
