"""Entity types and relations that do not move: `train.freeze`.

    a type       its rows, their sums, its global embedding
    a relation   the parameters of its operators, their sums and steps; of dynamic relations, all together

No import of torch: commands check the names before anything starts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from graphmill.config import Config
from graphmill.errors import ConfigError, suggestion
from graphmill.model.parameters import parse_global_key, parse_operator_key
from graphmill.vocab import Side


@dataclass(frozen=True)
class Frozen:
    """Types and relations that do not move."""

    types: frozenset[str] = frozenset()
    relations: frozenset[int] = frozenset()  # positions in the configuration's list

    @classmethod
    def of(cls, config: Config) -> Self:
        """Find what the configuration freezes. A name of both a type and a relation freezes both."""
        given = config.train.freeze
        known = [*config.entities, *(relation.name for relation in config.relations)]
        for number, name in enumerate(given):
            if name not in known:
                hint = suggestion(name, known)
                raise ConfigError(f"train.freeze[{number}]: no entity type or relation {name!r}; {hint}")
        relations = [number for number, relation in enumerate(config.relations) if relation.name in given]
        frozen = cls(frozenset(given) & config.entities.keys(), frozenset(relations))
        if given:
            frozen._check_rest(config)
        return frozen

    def sides(self, config: Config, relation: int) -> frozenset[Side]:
        """The sides of a relation whose entities do not move."""
        entry = config.relations[relation]
        return frozenset(side for side in Side if entry.entity_type(side) in self.types)

    def keys(self, parameters: Iterable[str]) -> frozenset[str]:
        """The keys among those of `parameters` that do not move."""
        return frozenset(
            key
            for key in parameters
            if ((parsed := parse_operator_key(key)) and parsed.relation in self.relations)
            or parse_global_key(key) in self.types
        )

    def _check_rest(self, config: Config) -> None:
        used = {relation.entity_type(side) for relation in config.relations for side in Side}
        moving = {entry.operator for at, entry in enumerate(config.relations) if at not in self.relations}
        if used <= self.types and moving <= {"none"}:
            raise ConfigError(
                "train.freeze: nothing is left to train: expected an entity type, or a relation with an "
                "operator, that is not frozen"
            )
