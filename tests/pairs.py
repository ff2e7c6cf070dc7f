"""Cases in which any two values of two parameters meet, instead of all combinations of all parameters."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairs(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose few combinations of one value of each parameter."""
    places = product(*(range(len(each)) for each in values))
    meetings = {case: set(combinations(enumerate(case), 2)) for case in places}
    left, chosen = set[Any]().union(*meetings.values()), []
    while left:
        case = max(meetings, key=lambda each: len(meetings[each] & left))
        left -= meetings[case]
        chosen.append(tuple(own[place] for own, place in zip(values, case, strict=True)))
    return chosen
