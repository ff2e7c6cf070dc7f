"""Types of ids that columns beside the ends say: `x_id, x_type, y_id, y_type`."""

from collections.abc import Sequence

from etl.survey.graph import TypedEnds, TypedRow
from etl.survey.look import Column
from etl.survey.words import TYPE

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
    relations = relation.values.to_pylist() if relation else [None] * len(lhs.values)
    found = set(zip(lhs_type.values.to_pylist(), rhs_type.values.to_pylist(), relations, strict=True))
    rows = [TypedRow(*each) for each in sorted(found, key=str) if each[0] and each[1]]
    if len(rows) > _MAX_ROWS:
        return None, f"{names}: types of ids, too many to write down, though some ids have several"
    doubt = f"{names}: types of ids, as these rows have them; write the missing ones"
    return TypedEnds(lhs_type, rhs_type, tuple(rows)), doubt


def _says_type(column: Column, end: Column) -> bool:
    """Whether a column is named like an end, with `type` beside or in place of `id`: x_type of x_id."""
    stem = [*column.words[:-1]]
    is_type = column.kind == "text" and bool(TYPE & {*column.words[-1:]})
    return is_type and stem in ([*end.words], [*end.words[:-1]]) and 0 < len(column.distinct) <= _MAX_TYPES
