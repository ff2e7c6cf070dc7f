"""Candidates in lists of similar vectors: a query is compared with those of the lists nearest to it.

    made_from.json      what the lists were made from
    centers.h5          centers [L, D]: the mean of each list, roughly
    sizes.h5            first [L + 1]: place of the first candidate of each list
    part-{number}.h5    vectors [N, D], numbers [N]: the candidates of some lists, list by list
    places-{number}.h5  places [N]: place of each candidate of a block, by its number
    lists.json          lists of each part and candidates of each block; written last

The place of a candidate counts through all lists. Vectors are prepared for scores. All datasets have HDF5's
checksums (Fletcher32), which it compares whenever it reads them.

Shapes: L lists, N candidates, D dimension.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.checkpoints import Floats
from graphmill.errors import FormatError

Numbers = npt.NDArray[np.int64]

MADE_FROM, LISTS, BLOCKS = "made_from.json", "lists.json", "blocks"
CENTERS, SIZES, PART, PLACES = "centers", "sizes", "part", "places"
BLOCK = f"{BLOCKS}/block"  # a block of candidates, list by list, until the parts are written
CHUNK_BYTES = 1 << 19
"""Size of a chunk, which has one checksum; HDF5 keeps a chunk in memory while its rows are written."""
NAMES = rf"{MADE_FROM}|{LISTS}|centers\.h5|sizes\.h5|(?:part|places|block)-[0-9]{{5,}}\.h5|{BLOCKS}"


@dataclass(frozen=True)
class Lists:
    """Finished lists; small, because every task receives it.

    Attributes:
        block_first: number of the first candidate of each block of candidates, and of all.
        part_first: first list of each part, and the number of lists.
        num_probed: lists that a query is compared with.
    """

    folder: str
    block_first: tuple[int, ...]
    part_first: tuple[int, ...]
    num_probed: int = 1

    @property
    def num_lists(self) -> int:
        """L."""
        return self.part_first[-1]

    def centers(self) -> Floats:
        """The centers, [L, D]."""
        return read(uri_of(self.folder, CENTERS), "centers")

    def first(self) -> Numbers:
        """Place of the first candidate of each list, and the number of candidates, [L + 1]."""
        return read(uri_of(self.folder, SIZES), "first")

    def windows(self, part: int, rows: int) -> Iterator[tuple[int, Floats, Numbers]]:
        """Read a part, at most `rows` at a time: the first row, vectors [N, D] and numbers [N]."""
        with opened(uri_of(self.folder, PART, part)) as hdf5:
            vectors, numbers = hdf5["vectors"], hdf5["numbers"]
            for start in range(0, len(numbers), rows):
                yield start, vectors[start : start + rows], numbers[start : start + rows]

    def places(self, numbers: Numbers) -> Numbers:
        """The places of candidates, whose numbers ascend."""
        bounds = np.searchsorted(numbers, self.block_first).tolist()
        places = [np.empty(0, np.int64)]
        for block, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                own = numbers[start:stop] - self.block_first[block]
                places.append(read(uri_of(self.folder, PLACES, block), "places")[own])
        return np.concatenate(places)


def open_lists(folder: str, made_from: Mapping[str, Any]) -> Lists | None:
    """Open finished lists; None if there are none that were made from this."""
    uri, other = storage.join(folder, LISTS), storage.join(folder, MADE_FROM)
    if not (storage.exists(uri) and storage.exists(other)) or storage.read_json(other) != made_from:
        return None
    content = storage.read_json(uri)
    try:
        block_first, part_first = (tuple(map(int, content[key])) for key in ("block_first", "part_first"))
    except (LookupError, TypeError, ValueError) as error:
        raise FormatError(f"{uri}: expected block_first and part_first, found others; delete it") from error
    if any(sorted({0, *firsts}) != list(firsts) for firsts in (block_first, part_first)):
        raise FormatError(f"{uri}: expected numbers from 0 on, ascending, found others; delete it")
    return Lists(folder, block_first, part_first)


@contextmanager
def opened(uri: str) -> Iterator[h5py.File]:
    """Open a file of lists."""
    with storage.open_hdf5(uri) as hdf5:
        try:
            yield hdf5
        except (OSError, LookupError, RuntimeError) as error:  # h5py, of damage inside
            raise FormatError(
                f"{uri}: the file is damaged: {error}; delete the folder, and the lists are made anew"
            ) from error


def read(uri: str, name: str) -> npt.NDArray[Any]:
    """Read a whole dataset of a small file."""
    with opened(uri) as hdf5:
        return np.asarray(hdf5[name][:])


def write(hdf5: h5py.File, **arrays: npt.NDArray[Any]) -> None:
    """Write datasets."""
    for name, array in arrays.items():
        new_dataset(hdf5, name, array.shape, array.dtype)[...] = array


def new_dataset(hdf5: h5py.File, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> h5py.Dataset:
    """A new dataset with checksums, one for each chunk of rows."""
    if not all(shape):
        return hdf5.create_dataset(name, shape, dtype)  # nothing to compare
    row_bytes = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    chunk_rows = min(shape[0], max(1, CHUNK_BYTES // row_bytes))
    return hdf5.create_dataset(name, shape, dtype, chunks=(chunk_rows, *shape[1:]), fletcher32=True)


def uri_of(folder: str, name: str, number: int | None = None) -> str:
    """A file of lists: of the centers, of sizes, or with a number of a part, of places, or of a block."""
    ending = "" if number is None else f"-{number:05d}"
    return storage.join(folder, f"{name}{ending}.h5")
