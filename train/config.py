"""The section `train`: what PBG's keys do not say."""

from typing import Literal

from pydantic import Field

from graphmill.config import Section


class TrainConfig(Section):
    """Settings of the trainer that are ours."""

    relation_init: Literal["random", "identity"] = Field(
        "random",
        description="how relation operators start: random, or PBG's identity, where every edge looks like a "
        "loop at first and an entity becomes its own best match",
    )
