"""Options of a solution, and what a configuration allows; without torch, for the process that coordinates."""

from dataclasses import dataclass

from graphmill.config import Config
from graphmill.errors import ConfigError
from graphmill.model.registry import REGULARIZERS
from graphmill.vocab import Side


@dataclass(frozen=True)
class Options:
    """Settings of a solution.

    Attributes:
        num_candidates: M, entities that an edge's own is compared with.
        num_known_edges: known edges, whose ends should not find a new id in the place of each other.
        num_steps: points that are tried for each id.
        prior_strength: weight of the prior, against one edge of weight 1.
    """

    num_candidates: int = 64
    num_known_edges: int = 512
    num_steps: int = 6
    prior_strength: float = 0.2


def solvable_types(config: Config) -> list[str]:
    """Types that relations join, and whose entities have vectors of their own.

    Raises:
        ConfigError: all of them are featurized.
    """
    types = list(dict.fromkeys(each.entity_type(side) for each in config.relations for side in Side))
    found = [name for name in types if not config.entities[name].featurized]
    if not found:
        raise ConfigError(
            f"fold-in: {', '.join(types)}: an entity of a featurized type is the mean of its features, and "
            "has no vector to solve for"
        )
    return found


def ignores_regularizer(config: Config) -> bool:
    """Whether training has a regularizer of the user's, which solutions leave out."""
    return bool(config.regularization_coef) and config.regularizer not in REGULARIZERS.built_in
