"""Similar ids: the cosine of two vectors as a relation between them."""

from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.relation import Relation
from graphmill.config import Config
from graphmill.errors import ConfigError, suggestion
from graphmill.vocab import Side

NAME = "cosine"


def relation_of(config: Config, question: PredictOptions) -> Relation:
    """Make the relation whose score of two ids is the cosine of their vectors."""
    types = list(config.entities)
    if question.id_type is None and len(types) > 1:
        raise ConfigError(f"--type: missing; the run has {', '.join(types[:10])}")
    own = _known_type("--type", question.id_type or types[0], types)
    other = _known_type("--candidates", question.candidate_type or own, types)
    if config.entity_dimension(own) != config.entity_dimension(other):
        raise ConfigError(
            f"--candidates {other}: expected vectors as long as those of {own} "
            f"({config.entity_dimension(own)}), found {config.entity_dimension(other)}"
        )
    return Relation(NAME, 0, {Side.LHS: own, Side.RHS: other}, "none", "cos", False, {Side.RHS: []})


def _known_type(option: str, name: str, types: list[str]) -> str:
    if name not in types:
        raise ConfigError(f"{option} {name}: {suggestion(name, types, 'expected one of')}")
    return name
