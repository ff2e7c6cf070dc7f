"""Guesses the graph in tables: which columns are ends of edges, relations, weights, and ids of entities."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pyarrow.compute as pc

from etl.survey.look import Column, Look
from graphmill.errors import RawTableError

# Names of columns, in lower case, without signs and without a final `id`.
_LHS = {"source", "src", "from", "head", "h", "subject", "subj", "s", "lhs", "u", "start", "left", "in"}
_RHS = {"target", "dst", "dest", "destination", "to", "tail", "t", "object", "obj", "o", "rhs", "v", "end"}
_RHS |= {"right", "out"}
_RELATION = {"relation", "rel", "relationship", "predicate", "p", "r", "edgetype", "reltype", "type", "label"}
_RELATION |= {"edge", "property", "interaction", "kind"}
_WEIGHT = {"weight", "w", "score", "rating", "count", "strength", "confidence", "value", "stars", "amount"}
_TIME = {"timestamp", "time", "date", "ts", "year", "datetime", "createdat", "updatedat", "day", "month"}
_SHARED = 0.1  # of a column's values, for two columns to be of one entity type


@dataclass(frozen=True)
class Edges:
    """A table of edges."""

    look: Look
    lhs: Column
    rhs: Column
    relation: Column | None
    weight: Column | None
    relation_name: str
    """Name for all rows, where no column has relations."""
    lhs_type: str = ""
    rhs_type: str = ""


@dataclass(frozen=True)
class Entities:
    """A table of entities."""

    look: Look
    id: Column
    type: str = ""


@dataclass(frozen=True)
class Graph:
    """The graph that the tables are taken for."""

    edges: tuple[Edges, ...]
    entities: tuple[Entities, ...]

    @property
    def types(self) -> list[str]:
        """Names of the entity types."""
        named = [name for each in self.edges for name in (each.lhs_type, each.rhs_type)]
        return list(dict.fromkeys([*named, *(each.type for each in self.entities)]))


def guess(looks: Sequence[Look]) -> Graph:
    """Guess the graph.

    Raises:
        RawTableError: a table has no two columns of ids, or no table holds edges.
    """
    about = [look for look in looks if len(looks) > 1 and _is_about_entities(look)]
    edges = [_edges(look) for look in looks if look not in about]
    if not edges:
        raise RawTableError(f"{looks[0].path}: expected a table of edges, found tables of entities only")
    edges = [
        replace(each, relation_name=name) for each, name in zip(edges, _relation_names(edges), strict=True)
    ]
    entities = [Entities(look, _candidates(look)[0]) for look in about]
    types = _types([end for each in edges for end in (each.lhs, each.rhs)] + [each.id for each in entities])
    named = [
        replace(each, lhs_type=types[2 * at], rhs_type=types[2 * at + 1]) for at, each in enumerate(edges)
    ]
    known = {name for each in named for name in (each.lhs_type, each.rhs_type)}
    typed = [replace(each, type=types[2 * len(edges) + at]) for at, each in enumerate(entities)]
    return Graph(tuple(named), tuple(each for each in typed if each.type in known))


def plain(name: str | int) -> str:
    """A column's name in lower case, without signs and without a final `id`; "" without a name."""
    if isinstance(name, int):
        return ""
    words = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"(?<=.)(ids?|key|uuid|guid)$", "", words) or words


def _is_named_id(column: Column) -> bool:
    return isinstance(column.name, str) and bool(re.search(r"(?i)(id|key|uuid|guid)s?$", column.name))


def _candidates(look: Look) -> list[Column]:
    """Columns that may hold ids, or relations, in order; those of paths are relations at most."""
    return [
        column
        for column in look.columns
        if column.kind == "id"
        and plain(column.name) not in _TIME
        and (not column.is_of_path or plain(column.name) in _RELATION)
    ]


def _is_about_entities(look: Look) -> bool:
    """Whether each row is about one entity: the first column is a key, and no other column is named an id."""
    found = _candidates(look)
    if len(look.columns) < 3 or not found or {plain(each.name) for each in found} & (_LHS | _RHS):
        return False
    first, *others = found
    is_key = len(first.distinct) == first.num_values > 1
    return is_key and not any(map(_is_named_id, others))


def _edges(look: Look) -> Edges:
    found = _candidates(look)
    relation = _relation(look, found)
    ends = [column for column in found if column is not relation]
    lhs = next((column for column in ends if plain(column.name) in _LHS), None)
    rhs = next((column for column in ends if plain(column.name) in _RHS and column is not lhs), None)
    rest = [column for column in ends if column not in (lhs, rhs)]
    missing = (lhs is None) + (rhs is None)
    chosen = iter(_best(rest, missing))
    lhs = lhs or next(chosen, None)
    rhs = rhs or next(chosen, None)
    if lhs is None or rhs is None:
        columns = ", ".join(f"{column.name} ({column.type})" for column in look.columns)
        raise RawTableError(f"{look.path}: expected two columns of ids, found the columns {columns}")
    weights = (c for c in look.columns if plain(c.name) in _WEIGHT and c not in (lhs, rhs, relation))
    weight = next((column for column in weights if column.kind == "number" or column.is_integer), None)
    return Edges(look, lhs, rhs, relation, weight, "")


def _relation(look: Look, found: Sequence[Column]) -> Column | None:
    """Choose the column of relations: by its name, or the one with few values among three without names."""
    if len(found) < 3:
        return None
    named = [column for column in found if plain(column.name) in _RELATION]
    few = min(named, key=lambda column: len(column.distinct), default=None)
    if few is not None:
        return few
    if len(found) == 3 and not any(plain(column.name) for column in found):
        fewest = min(found, key=lambda column: len(column.distinct))
        if all(2 * len(fewest.distinct) <= len(c.distinct) for c in found if c is not fewest):
            return fewest
        return found[1] if look.num_rows < 1000 else None
    return None


def _best(columns: Sequence[Column], number: int) -> list[Column]:
    """Choose the columns that are ends of edges, in their order: named as ids first, keys of rows last."""

    def rank(column: Column) -> tuple[bool, bool, bool]:
        is_key = len(column.distinct) == column.num_values > 1
        return (plain(column.name) in _WEIGHT, is_key and len(columns) > number, not _is_named_id(column))

    chosen = sorted(columns, key=rank)[:number]
    return [column for column in columns if column in chosen]


def name_of(text: str) -> str:
    """Make a name of a type or a relation: words joined by `_`."""
    return re.sub(r"[^\w-]+", "_", text).strip("_") or "edge"


def _relation_names(edges: Sequence[Edges]) -> list[str]:
    stems = [name_of(each.look.path.rstrip("/").split("/")[-1].partition(".")[0]) for each in edges]
    if len(edges) > 1 and all(each.look.split for each in edges):
        return ["edge"] * len(edges)
    return [stem if stems.count(stem) == 1 else f"{stem}_{at}" for at, stem in enumerate(stems)]


def _types(ends: Sequence[Column]) -> list[str]:
    """Name the entity type of each column; columns of one name or with common values are of one type."""
    group = list(range(len(ends)))
    for a, b in combinations(range(len(ends)), 2):
        if group[a] != group[b] and _is_one_type(ends[a], ends[b]):
            group = [group[a] if each == group[b] else each for each in group]
    names: dict[int, str] = {}
    for each in dict.fromkeys(group):
        names[each] = _free(_type_name([ends[at] for at in range(len(ends)) if group[at] == each]), names)
    return [names[each] for each in group]


def _is_one_type(one: Column, other: Column) -> bool:
    names = plain(one.name), plain(other.name)
    are_words = all(name and name not in _LHS | _RHS for name in names)
    if are_words and names[0] == names[1]:
        return True
    if are_words and one.is_integer and other.is_integer:
        return False  # numbers of different things are alike
    common = pc.sum(pc.is_in(one.distinct, other.distinct)).as_py() or 0
    sizes = sorted((len(one.distinct), len(other.distinct)))
    return bool(common > _SHARED * sizes[are_words])  # a few sections have names of packages


def _type_name(columns: Sequence[Column]) -> str:
    """Name a type as its columns are named, if they agree."""
    names = [column.name for column in columns if isinstance(column.name, str)]
    telling = [name for name in names if plain(name) not in _LHS | _RHS] or names
    words = {name_of(re.sub(r"(?i)(?<=.)[ _.-]?(ids?|key|uuid|guid)$", "", name)).lower() for name in telling}
    return words.pop() if len(words) == 1 else "entity"


def _free(name: str, names: dict[int, str]) -> str:
    taken = set(names.values())
    return next(each for each in (name, *(f"{name}_{n}" for n in range(2, 10**6))) if each not in taken)
