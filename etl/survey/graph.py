"""The graph that tables are taken for, and the names of its entity types and relations."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, count
from typing import NamedTuple

import pyarrow.compute as pc

from etl.survey.look import Column, Look
from etl.survey.words import ID, LHS, RHS
from graphmill.config.sections.etl import Condition, Filters

_SHARED = 0.1  # of a column's values, for two columns to be of one entity type


class TypedRow(NamedTuple):
    """Ends, types and relation that rows of one kind share."""

    lhs: str
    rhs: str
    relation: str | None


@dataclass(frozen=True)
class TypedEnds:
    """Columns that say the types of both ends, and which types occur together."""

    lhs: Column
    rhs: Column
    rows: tuple[TypedRow, ...]

    @property
    def is_told_by_relation(self) -> bool:
        """Tell whether each relation has one type on each side."""
        names = [row.relation for row in self.rows]
        return None not in names and len(set(names)) == len(names)


@dataclass(frozen=True)
class GuessedEdges:
    """A table of edges."""

    look: Look
    lhs: Column
    rhs: Column
    relation: Column | None
    weight: Column | None
    time: Column | None
    doubts: tuple[str, ...]
    """Names what may be otherwise; none: the guess is sure."""
    filters: Filters = ()
    """Rows that are edges."""
    typed: TypedEnds | None = None
    """Types of single rows, where one id is of several types."""
    relation_name: str = ""
    """Name for all rows, where no column has relations."""
    lhs_type: str = ""
    rhs_type: str = ""

    def entries(self) -> list[tuple[str, str, str]]:
        """Return name, type of the lhs and of the rhs of each relation."""
        if self.typed:
            return [(self._name(row), name_of(row.lhs), name_of(row.rhs)) for row in self.typed.rows]
        names = sorted(self.relation.distinct.to_pylist()) if self.relation else [self.relation_name]
        return [(name, self.lhs_type, self.rhs_type) for name in names]

    def by_filters(self) -> Iterator[tuple[str | None, Sequence[Condition]]]:
        """Yield the relation of rows (None: a column has it) and the conditions that select them."""
        if self.typed is None or self.typed.is_told_by_relation:
            yield (None if self.relation else self.relation_name), ()
            return
        for row in self.typed.rows:
            ends = [(self.typed.lhs, row.lhs), (self.typed.rhs, row.rhs), (self.relation, row.relation)]
            yield (
                self._name(row),
                [(str(column.name), "==", value) for column, value in ends if column is not None],
            )

    def _name(self, row: TypedRow) -> str:
        if self.typed and self.typed.is_told_by_relation:
            return str(row.relation)
        return f"{row.lhs}-{row.relation or self.relation_name}-{row.rhs}"

    def summary_line(self) -> str:
        """Tell what the columns were taken for, and how sure that is."""
        relation = f"relations: {self.relation.name}" if self.relation else "one relation"
        sure = f"not sure of {'; '.join(self.doubts)}" if self.doubts else "sure"
        return f"{self.lhs.name} -> {self.rhs.name}, {relation}: {sure}"


@dataclass(frozen=True)
class Entities:
    """A table of entities."""

    look: Look
    id: Column
    type: str


@dataclass(frozen=True)
class GuessedGraph:
    """The graph."""

    edges: tuple[GuessedEdges, ...]
    entities: tuple[Entities, ...]

    @property
    def types(self) -> list[str]:
        """Names of the entity types."""
        named = [name for edge in self.edges for _, lhs, rhs in edge.entries() for name in (lhs, rhs)]
        return list(dict.fromkeys([*named, *(entity.type for entity in self.entities)]))


def name_of(text: str) -> str:
    """Make a name of a type or a relation: words joined by `_`."""
    return re.sub(r"[^\w-]+", "_", text).strip("_") or "edge"


def relation_names(looks: Sequence[Look]) -> list[str]:
    """Name the one relation of each table without a column of relations, as its file is called."""
    stems = [name_of(look.path.rstrip("/").split("/")[-1].partition(".")[0]) for look in looks]
    if len(looks) > 1 and all(look.split for look in looks):
        return ["edge"] * len(looks)
    return [stem if stems.count(stem) == 1 else f"{stem}_{at}" for at, stem in enumerate(stems)]


def type_names(ends: Sequence[Column]) -> list[str]:
    """Name the entity type of each column; columns of one name or with common values are of one type."""
    group = list(range(len(ends)))
    for a, b in combinations(range(len(ends)), 2):
        if group[a] != group[b] and _is_one_type(ends[a], ends[b]):
            group = [group[a] if number == group[b] else number for number in group]
    names: dict[int, str] = {}
    for number in dict.fromkeys(group):
        name = _type_name([ends[at] for at in range(len(ends)) if group[at] == number])
        candidates = chain([name], (f"{name}_{n}" for n in count(2)))
        names[number] = next(candidate for candidate in candidates if candidate not in names.values())
    return [names[number] for number in group]


def telling(column: Column) -> tuple[str, ...]:
    """Return the words of a name that tell an entity type: neither a side nor an id."""
    words = [re.sub(r"(?<=[a-z])\d+$", "", word) for word in column.words]
    words = [re.sub(r"(?<=..)(id|key|uuid|guid)s?$", "", word) for word in words]
    return tuple(word for word in words if word not in LHS | RHS | ID | {"node", "vertex"})


def shares_values(one: Column, other: Column, *, smaller: bool) -> bool:
    """Tell whether a tenth of the values of the smaller or the larger column are in both."""
    common = pc.sum(pc.is_in(one.distinct, other.distinct)).as_py() or 0
    sizes = sorted((len(one.distinct), len(other.distinct)))
    return bool(common > _SHARED * sizes[0 if smaller else 1])


def _is_one_type(one: Column, other: Column) -> bool:
    names = telling(one), telling(other)
    are_words = all(names)
    if are_words and names[0] == names[1]:
        return True
    if are_words and one.kind == other.kind == "integer":
        return False  # numbers of different things are alike
    return shares_values(one, other, smaller=not are_words)  # a few sections have names of packages


def _type_name(columns: Sequence[Column]) -> str:
    """Name a type as its columns are named, if they agree."""
    named = [column for column in columns if isinstance(column.name, str)]
    words = {"_".join(telling(column)) for column in named} - {""} or {
        "_".join(column.words) for column in named
    }
    return name_of(words.pop()) if len(words) == 1 else "entity"
