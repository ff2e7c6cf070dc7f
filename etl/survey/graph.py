"""The graph that tables are taken for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from etl.survey.look import Column, Look
from etl.survey.names import name_of
from graphmill.config.sections.etl import Condition, Filters


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
        """Whether each relation has one type on each side."""
        names = [row.relation for row in self.rows]
        return None not in names and len(set(names)) == len(names)


@dataclass(frozen=True)
class GuessedEdges:
    """A table of edges."""

    look: Look
    lhs: Column
    rhs: Column
    relation: Column | None
    weight: Column | None = None
    time: Column | None = None
    doubts: tuple[str, ...] = ()
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
    type: str = ""


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
