"""The options of `graphmill fold-in`, and what a configuration allows; without torch."""

from typing import Annotated

from pydantic import Field

from graphmill.config import Config
from graphmill.config.section import Flag, Section
from graphmill.errors import ConfigError
from graphmill.model.registry import REGULARIZERS
from graphmill.vocab import Side


class FoldInOptions(Section):
    """Settings of a solution."""

    max_edges: int = Field(256, ge=1, description="Edges of an id that count; of more, a fixed choice.")
    num_candidates: Annotated[int, Flag("--candidates")] = Field(
        64, ge=1, description="Entities that the ends of an edge are compared with."
    )
    num_known_edges: int = 512
    """Known edges, whose ends should not find a new id in the place of each other."""
    num_steps: Annotated[int, Flag("--steps")] = Field(6, ge=1, description="Steps per id.")
    prior_strength: float = Field(
        0.2, ge=0, description="Weight of what is likely before an id's edges are seen, against one edge."
    )


def solvable_types(config: Config) -> list[str]:
    """List the types that relations join, and whose entities have vectors of their own."""
    types = list(dict.fromkeys(relation.entity_type(side) for relation in config.relations for side in Side))
    solvable = [name for name in types if not config.entities[name].featurized]
    if not solvable:
        raise ConfigError(
            f"fold-in: {', '.join(types)}: an entity of a featurized type is the mean of its features, and "
            "has no vector to solve for"
        )
    return solvable


def ignores_regularizer(config: Config) -> bool:
    """Tell whether training has a regularizer of the user's, which solutions leave out."""
    return bool(config.regularization_coef) and config.regularizer not in REGULARIZERS.built_in
