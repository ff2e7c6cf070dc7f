"""Sets of numbers as sorted arrays.

Sorting takes a hundredth of the time of `np.unique` where most of many numbers are distinct: without counts
or an inverse, that builds a hash table (since NumPy 2.3), and `np.isin` calls it.
Shapes: N numbers, K wanted.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)


def distinct(numbers: npt.NDArray[Number], *, overwrite: bool = False) -> npt.NDArray[Number]:
    """Return the distinct ones of numbers [N], ascending; `overwrite` sorts in place, and saves a copy."""
    ascending = numbers if overwrite else numbers.copy()
    ascending.sort()
    is_first = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    found: npt.NDArray[Number] = ascending[is_first]
    return found


def positions(ascending: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the place of each wanted number [K] among sorted ones [N]; -1 for one that is not there."""
    if not len(ascending):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[place] == wanted, place, -1)


def ranges(first: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers first..first + count of each of K ranges, one range after the other."""
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())


def joined_ranges(first: npt.NDArray[np.int64], past: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Join those of K ascending ranges first..past that touch: [J, 2]."""
    begins = np.append(True, first[1:] != past[:-1])[: len(first)]
    return np.stack([first[begins], past[np.append(begins[1:], True)[: len(past)]]], axis=1)


def contains(ascending: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which wanted numbers [K] are among sorted ones [N]."""
    return positions(ascending, wanted) >= 0
