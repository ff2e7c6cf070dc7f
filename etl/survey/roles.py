"""Guesses the graph in tables: columns are scored as ends of edges, and the best pair wins.

A pair of names that belong together (source and target) weighs more than all else.

Types of ids that columns beside the ends say: `x_id, x_type, y_id, y_type`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc

from etl.survey.graph import (
    Entities,
    GuessedEdges,
    GuessedGraph,
    TypedEnds,
    TypedRow,
    relation_names,
    shares_values,
    type_names,
)
from etl.survey.look import Column, Look
from etl.survey.words import CLOCK, LHS, PAIRS, RELATION, RHS, TEXT, TIME, TYPE, WEIGHT, names_id
from graphmill.config.sections.etl import Filters
from graphmill.errors import RawTableError

_PAIR, _SURE, _NO_END = 6.0, 1.0, -9.0
_LONG, _FEW_ROWS, _MOST_ENDS = 64, 1000, 8
_NUMBERS = ("integer", "whole", "number")
_CLOCKS = (5e8, 5e11)  # seconds and milliseconds since 1970, of this time

_MAX_TYPES, _MAX_ROWS = 50, 100


def typed_ends(
    lhs: Column, rhs: Column, relation: Column | None, others: Sequence[Column]
) -> tuple[TypedEnds | None, str]:
    """Find the columns that say the types of both ends, if ids need them; and what to doubt."""
    kinds = [next((column for column in others if _says_type(column, end)), None) for end in (lhs, rhs)]
    lhs_type, rhs_type = kinds
    if lhs_type is None or rhs_type is None or lhs_type is rhs_type:
        return None, ""
    names = f"{lhs_type.name}, {rhs_type.name}"
    types: dict[str, set[str]] = {}
    for end, kind in ((lhs, lhs_type), (rhs, rhs_type)):
        for raw_id, of_id in zip(end.values.to_pylist(), kind.values.to_pylist(), strict=True):
            types.setdefault(raw_id, set()).add(of_id)
    if all(len(of_id) == 1 for raw_id, of_id in types.items() if raw_id is not None):
        return None, f"{names}: types of ids, which are left out, as no id of these rows has two"
    of_rows = relation if relation and not relation.is_of_path else None
    relations = of_rows.values.to_pylist() if of_rows else [None] * len(lhs.values)
    kinds_of_rows = set(zip(lhs_type.values.to_pylist(), rhs_type.values.to_pylist(), relations, strict=True))
    if relation and relation.is_of_path:  # the rows are of one file, whose folder names one relation
        names_of_folders = relation.distinct.to_pylist()
        kinds_of_rows = {(a, b, name) for a, b, _ in kinds_of_rows for name in names_of_folders}
    rows = [TypedRow(*row) for row in sorted(kinds_of_rows, key=str) if row[0] and row[1]]
    if len(rows) > _MAX_ROWS:
        return None, f"{names}: types of ids, too many to write down, though some ids have several"
    doubt = f"{names}: types of ids, as these rows have them; write the missing ones"
    return TypedEnds(lhs_type, rhs_type, tuple(rows)), doubt


def _says_type(column: Column, end: Column) -> bool:
    """Tell whether a column is named like an end, with `type` beside or in place of `id`: x_type of x_id."""
    stem = [*column.words[:-1]]
    if column.is_of_path or end.is_of_path:
        return False
    is_type = column.kind == "text" and bool(TYPE & {*column.words[-1:]})
    return is_type and stem in ([*end.words], [*end.words[:-1]]) and 0 < len(column.distinct) <= _MAX_TYPES


@dataclass(frozen=True)
class AskedColumns:
    """Columns that the user names: by name, or number from 0."""

    lhs: str | None = None
    rhs: str | None = None
    relation: str | None = None


def guess(looks: Sequence[Look], asked: AskedColumns) -> GuessedGraph:
    """Guess the graph; refuse tables without two columns of ids, and tables without edges."""
    several = looks if len(looks) > 1 else ()
    about = [
        look
        for look in several
        if _is_about_entities(look)
        and not {asked.lhs, asked.rhs} <= {str(column.name) for column in look.columns}
    ]
    edges = [_edges(look, asked) for look in looks if look not in about]
    if not edges:
        raise RawTableError(f"{looks[0].path}: expected a table of edges, found tables of entities only")
    ids = [_ranked(look)[0] for look in about]
    types = iter(type_names([end for edge in edges for end in (edge.lhs, edge.rhs)] + ids))
    names = relation_names([edge.look for edge in edges])
    named = tuple(
        replace(edge, relation_name=name, lhs_type=next(types), rhs_type=next(types))
        for edge, name in zip(edges, names, strict=True)
    )
    known = GuessedGraph(named, ()).types
    entities = [Entities(look, column, next(types)) for look, column in zip(about, ids, strict=True)]
    return GuessedGraph(named, tuple(entity for entity in entities if entity.type in known))


def _is_row_number(column: Column) -> bool:
    """Tell whether the values count the rows, as the index of pandas and the row names of R do."""
    if column.kind != "integer" or not column.is_key or column.values.null_count:
        return False
    numbers = column.values.combine_chunks().cast(pa.float64())
    is_run = pc.all(pc.equal(pc.pairwise_diff(numbers)[1:], 1)).as_py()
    return bool(is_run and numbers[0].as_py() in (0, 1))


def _end_score(column: Column) -> float:
    words = {*column.words}
    is_named = names_id(str(column.name))
    if column.kind not in ("text", "integer") or column.is_of_path:
        return _NO_END
    if _is_row_number(column) and column.words[:1] in ((), ("unnamed",), ("index",), ("id",), ("rownames",)):
        return _NO_END
    score = 3.0 if column.kind == "text" else 2.5
    score += 2.0 * (is_named or bool(words & (LHS | RHS)))
    score -= 6.0 * (bool(words & TIME) and not is_named) + 4.0 * (bool(words & WEIGHT) and not is_named)
    score -= 1.5 * (bool(words & (RELATION | TEXT)) and not is_named)
    score -= 2.0 * column.is_key + 2.0 * (len(column.distinct) == 1)
    is_long = column.kind == "text" and pc.mean(pc.utf8_length(column.distinct)).as_py() > _LONG
    return score - 1.5 * is_long


def _ranked(look: Look) -> list[Column]:
    scores = [(_end_score(column) - 0.01 * at, column) for at, column in enumerate(look.columns)]
    return [column for score, column in sorted(scores, key=lambda scored: -scored[0]) if score > _NO_END + 4]


def _is_about_entities(look: Look) -> bool:
    """Tell whether each row is about one entity: the first column is a key, and no other is named an id."""
    able = [column for column in look.columns if column.kind in ("text", "integer") and not column.is_of_path]
    if len(look.columns) < 3 or not able or any({*column.words} & (LHS | RHS) for column in able):
        return False
    return able[0].is_key and not any(names_id(str(column.name)) for column in able[1:])


def _pair_score(one: Column, other: Column) -> float:
    """Score how well two columns belong together: by their names, and the values that they share."""
    if differing := _differing(one, other):
        x, y = differing
        is_counted = x.rstrip("0123456789") == y.rstrip("0123456789")  # node1, node2
        if is_counted or differing in PAIRS or (y, x) in PAIRS:
            return _PAIR
    return 1.0 * (one.kind == other.kind == "text" and shares_values(one, other, smaller=True))


def _differing(one: Column, other: Column) -> tuple[str, str] | None:
    if len(one.words) != len(other.words):
        return None
    differing = [(x, y) for x, y in zip(one.words, other.words, strict=True) if x != y]
    return differing[0] if len(differing) == 1 else None


def _edges(look: Look, asked: AskedColumns) -> GuessedEdges:
    lhs, rhs, relation = (_named(look, name) for name in (asked.lhs, asked.rhs, asked.relation))
    candidates = [column for column in _ranked(look) if column not in (lhs, rhs, relation)]
    if relation is None:
        guessed = _relation(look, [*filter(None, (lhs, rhs)), *candidates])
        relation = guessed if guessed not in (lhs, rhs) else None
    ends, doubt = _first_two([column for column in candidates if column is not relation][:_MOST_ENDS], look)
    pairs = sorted(_pairs(look, lhs, rhs, ends), key=lambda pair: -pair[0])
    if not pairs:
        raise _without_pair(look)
    score, lhs, rhs = pairs[0]
    if filters := _rows_with_ends(look, lhs, rhs):
        kept = _only(look, filters)
        own = replace(asked, lhs=str(lhs.name), rhs=str(rhs.name))
        return replace(_edges(kept, own), filters=filters)
    is_asked = None not in (asked.lhs, asked.rhs)
    doubts = [*look.doubts, *filter(None, [doubt if not is_asked else ""])]
    if len(pairs) > 1 and score - pairs[1][0] < _SURE and not is_asked:
        doubts.append(f"the ends: the next best are {pairs[1][1].name} -> {pairs[1][2].name}")
    rest = [column for column in look.columns if column not in (lhs, rhs, relation)]
    weight, doubt = _weight(rest, relation)
    typed, of_types = typed_ends(lhs, rhs, relation, rest)
    time = next((column for column in rest if _is_time(column)), None)
    doubts += filter(None, (doubt, of_types))
    return GuessedEdges(look, lhs, rhs, relation, weight, time, tuple(doubts), typed=typed)


def _first_two(ends: list[Column], look: Look) -> tuple[list[Column], str]:
    """Choose the first two of columns without names, keys of rows aside; and what to doubt."""
    if len(ends) < 3 or any(column.words for column in ends):
        return ends, ""
    is_other = {column: column.is_key or len(column.distinct) == 1 for column in ends}
    ordered = sorted(ends, key=lambda column: (is_other[column], look.columns.index(column)))
    others = [str(column.name) for column in ordered[2:] if column.kind == "text" and not is_other[column]]
    return ordered[:2], f"the ends: there are ids in column {', '.join(others)} too" if others else ""


def _weight(rest: Sequence[Column], relation: Column | None) -> tuple[Column | None, str]:
    """Choose the column of weights, by its name or as the last one without names; and what to doubt."""
    able = [column for column in rest if column.kind in _NUMBERS and not _is_time(column)]
    named = next((column for column in able if {*column.words} & WEIGHT), None)
    if named or not able or able[-1].words:
        return named, ""
    doubt = f"column {able[-1].name}: weights; if it has relations: --relation {able[-1].name}"
    return able[-1], "" if relation or able[-1].kind == "number" else doubt


def _is_time(column: Column) -> bool:
    if column.is_of_path or len(column.distinct) < 2 or column.kind not in ("time", *_NUMBERS):
        return False
    if column.kind == "time" or column.words:
        return column.kind == "time" or bool({*column.words} & CLOCK - {"delay"})
    ends = pc.min_max(column.distinct.cast(pa.float64())).as_py()
    return any(low <= ends["min"] and ends["max"] < 10 * low for low in _CLOCKS)


def _pairs(
    look: Look, lhs: Column | None, rhs: Column | None, ends: Sequence[Column]
) -> Iterator[tuple[float, Column, Column]]:
    given = [column for column in (lhs, rhs) if column]
    for pair in combinations([*given, *ends], 2):
        points = sum(_end_score(column) for column in pair if column not in given)
        if any(column not in pair for column in given) or (points <= 0 and len(given) < 2):
            continue
        first, second = sorted(pair, key=look.columns.index)
        is_turned = _is_turned(first, second) if not given else first is rhs or second is lhs
        yield points + _pair_score(*pair), *((second, first) if is_turned else (first, second))


def _is_turned(first: Column, second: Column) -> bool:
    if differing := _differing(first, second):
        return differing not in PAIRS and (differing[1], differing[0]) in PAIRS
    return bool({*first.words} & (RHS - LHS)) and not {*second.words} & RHS


def _named(look: Look, name: str | None) -> Column | None:
    if name is None:
        return None
    at = int(name) if name.isdecimal() and int(name) < len(look.columns) else None
    column = next((known for known in look.columns if str(known.name) == name), None)
    if column is None and at is None:
        known = ", ".join(str(known.name) for known in look.columns)
        raise RawTableError(f"{look.path}: expected a column {name!r}, found the columns {known}")
    return column or look.columns[at or 0]


def _without_pair(look: Look) -> RawTableError:
    columns = ", ".join(f"{column.name} ({column.type})" for column in look.columns)
    whole = next((column for column in look.columns if column.kind == "whole"), None)
    way_out = "name them with --lhs and --rhs"
    if len(look.columns) == 1:
        way_out = "if a character divides its fields, write the configuration by hand, with its delimiter"
    elif whole is not None:
        way_out = (
            f"{whole.name} has whole numbers as fractions ({whole.distinct[0]}), in pandas because of an "
            f'empty cell; write them as integers: df["{whole.name}"].astype("Int64"); or {way_out}'
        )
    found = "; ".join([columns, *look.doubts, way_out])
    return RawTableError(f"{look.path}: expected two columns of ids, found the columns {found}")


def _relation(look: Look, candidates: Sequence[Column]) -> Column | None:
    """Choose the column of relations: by its name, or the one with few values among three without names."""
    able = [*candidates, *(column for column in look.columns if column.is_of_path and len(column.distinct))]
    named = [
        column
        for column in able
        if {*column.words} & RELATION and {*column.words} <= RELATION | TEXT | {"id", "edge", "display"}
    ]
    if named and len(able) > 2:
        return min(named, key=lambda column: (len(column.distinct) == 1, column.is_key, len(column.distinct)))
    several = [column for column in candidates if not column.is_key and len(column.distinct) > 1]
    ordered = sorted(several, key=look.columns.index)
    if len(ordered) != 3 or any(column.words for column in ordered):
        return None
    fewest = min(ordered, key=lambda column: len(column.distinct))
    if fewest is ordered[2] and fewest.kind == "integer":
        return None  # weights
    if all(2 * len(fewest.distinct) <= len(column.distinct) for column in ordered if column is not fewest):
        return fewest
    return ordered[1] if look.num_rows < _FEW_ROWS and ordered[1].kind == "text" else None


def _rows_with_ends(look: Look, lhs: Column, rhs: Column) -> Filters:
    """Find a filter for rows with both ends: Neo4j's APOC writes nodes and edges into one table."""
    if lhs.is_of_path or rhs.is_of_path:
        return ()
    has_ends = pc.and_(pc.is_valid(lhs.values), pc.is_valid(rhs.values))
    if pc.all(has_ends).as_py() or not pc.any(has_ends).as_py():
        return ()
    for column in look.columns:
        if column in (lhs, rhs) or column.is_of_path or not 1 < len(column.distinct) <= 10:
            continue
        inside = pc.unique(column.values.filter(has_ends))
        outside = pc.unique(column.values.filter(pc.invert(has_ends)))
        if len(inside) == 1 and inside[0].is_valid and not pc.any(pc.is_in(inside, outside)).as_py():
            return (((str(column.name), "==", inside[0].as_py()),),)
    return ()


def _only(look: Look, filters: Filters) -> Look:
    name, _, value = filters[0][0]
    mask = pc.equal(next(column for column in look.columns if str(column.name) == name).values, value)
    mask = pc.fill_null(mask, False)
    columns = [
        column if column.is_of_path else replace(column, values=column.values.filter(mask))
        for column in look.columns
    ]
    return replace(look, columns=tuple(columns), num_rows=pc.sum(mask).as_py())
