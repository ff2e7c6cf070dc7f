"""HDF5 files that may come from anybody: opened, checked and read; datasets filled from the front.

A dataset of a few bytes may claim any shape: elements that were never written read as zeros, and chunks may
be packed. The claim is compared with the stored bytes before memory is allocated. Links and datasets in other
files are refused: they could name any file.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from graphmill import storage
from graphmill.errors import FormatError
from graphmill.storage import ChecksumManifest

Array = npt.NDArray[Any]
NewArray = Callable[[tuple[int, ...], npt.DTypeLike], Array]
"""Makes an array of a shape and dtype, whose values do not matter."""

FORMAT_VERSION = 1
"""PBG's, the root attribute `format_version` of its HDF5 files."""

_KINDS = {"iu": "integers", "iuf": "numbers", "f": "floats"}
_DIMENSIONS = {1: "one dimension", 2: "two dimensions"}

# of deflate, which packs better than HDF5's other filters: one byte becomes 1032 bytes at the most
_MAX_RATIO = 1032
_HARMLESS_BYTES = 64
PIECE_BYTES = 16 << 20
_UNPACKED = (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)


@contextmanager
def open_checked(
    uri: str, manifest: ChecksumManifest | None = None, *, versioned: bool = True
) -> Iterator[h5py.File]:
    """Open the HDF5 file at `uri`; damage that a read in the block meets becomes a `FormatError`.

    With the `manifest` of its checksum, the whole file is read. Unless `versioned` is False, the file must
    have the known format version.
    """
    with storage.open_hdf5(uri, manifest) as hdf5:
        try:
            version = hdf5.attrs.get("format_version")
            if versioned and not np.array_equal(version, FORMAT_VERSION):
                raise FormatError(
                    f"{uri}: attribute 'format_version' is {version}; this reader knows {FORMAT_VERSION}"
                )
            yield hdf5
        except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:  # h5py, of damage inside
            raise FormatError(f"{uri}: the file is damaged: {error}") from error


def find_dataset(hdf5: h5py.File, name: str, uri: str) -> h5py.Dataset | None:
    """The dataset of that name, or None where the file has none."""
    node = hdf5
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise FormatError(f"{uri}: expected a dataset {name!r} in the file, found a link")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        return None
    check_dataset(node, name, uri)
    return node


def check_dataset(dataset: h5py.Dataset, name: str, uri: str) -> None:
    """Refuse a dataset in other files, or one that claims more than the file stores."""
    if dataset.is_virtual or dataset.external:
        raise FormatError(f"{uri}: expected a dataset {name!r} in the file, found one in other files")
    if not dataset.nbytes:
        if dataset.ndim and dataset.shape[0]:
            raise FormatError(f"{uri}: {dataset.name!r}: expected elements, found the shape {dataset.shape}")
        return
    stored = min(dataset.id.get_storage_size(), dataset.file.id.get_filesize())
    if not stored and dataset.nbytes <= _HARMLESS_BYTES:  # a writer may leave out zeros
        return
    expected, most = dataset.nbytes, stored
    if dataset.chunks is not None:
        grid = zip(dataset.shape, dataset.chunks, strict=True)
        num_chunks = math.prod(-(-size // chunk) for size, chunk in grid)
        expected = num_chunks * math.prod(dataset.chunks) * dataset.dtype.itemsize
        most = stored * _MAX_RATIO if _is_packed(dataset, uri) else stored
        if dataset.id.get_num_chunks() < num_chunks:
            most = 0
    if expected > most:
        raise FormatError(
            f"{uri}: {dataset.name!r}: expected {expected} bytes of {described(dataset)}, found {stored} in "
            "the file: parts of it were never written, or are packed beyond measure"
        )


def checked_dataset(hdf5: h5py.File, name: str, kinds: str, uri: str, num_dims: int = 1) -> h5py.Dataset:
    """The dataset of that name, with `num_dims` axes and a dtype of `kinds`."""
    dataset = find_dataset(hdf5, name, uri)
    if dataset is None:
        raise FormatError(
            f"{uri}: expected a dataset {name!r} in the file, found {', '.join(hdf5) or 'none'}"
        )
    if dataset.ndim != num_dims or dataset.dtype.kind not in kinds:
        raise FormatError(
            f"{uri}: dataset {name!r}: expected {_KINDS[kinds]} in {_DIMENSIONS[num_dims]}, "
            f"found {described(dataset)}"
        )
    return dataset


def described(dataset: h5py.Dataset) -> str:
    """dtype and shape, for messages."""
    return f"{dataset.dtype} {dataset.shape}"


def read_rows(
    dataset: h5py.Dataset, start: int, stop: int, dtype: npt.DTypeLike, new: NewArray = np.empty
) -> Any:
    """Rows [start, stop) as an array of `dtype`, which `new` makes."""
    values = new((stop - start, *dataset.shape[1:]), dtype)
    if values.size:
        dataset.read_direct(values, np.s_[start:stop])  # HDF5 converts on the way
    return values


def write_rows(dataset: h5py.Dataset, start: int, values: Array) -> None:
    """Write rows from `start` on, in pieces, between which other threads may use other files.

    h5py has one lock for all files, and keeps it for a whole read or write.
    """
    step = max(1, PIECE_BYTES // max(1, values[:1].nbytes))
    for first in range(0, len(values), step):
        piece = values[first : first + step]
        dataset[start + first : start + first + len(piece)] = piece
        time.sleep(0)  # else this thread has the lock again before one that waits for it


def check_least(values: Array, least: int, column: str, uri: str, first_row: int, remark: str) -> None:
    """Refuse integers below `least`; the first value is in row `first_row` of the column."""
    if len(values) and int(values.min()) < least:
        row = int(np.flatnonzero(values < least)[0])
        raise FormatError(
            f"{uri}: {column}[{first_row + row}] is {values[row]}; expected {least} or more{remark}"
        )


def new_dataset(hdf5: h5py.File, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> h5py.Dataset:
    """A new contiguous dataset; without times, equal content has equal bytes."""
    return hdf5.create_dataset(name, shape=shape, dtype=np.dtype(dtype), track_times=False)


class DatasetWriter:
    """Fills new datasets of one length from the front; `rows` is the word for their rows in messages."""

    def __init__(
        self,
        hdf5: h5py.File,
        uri: str,
        num_rows: int,
        dtypes: Mapping[str, npt.DTypeLike],
        row_shape: tuple[int, ...] = (),
        rows: str = "rows",
    ) -> None:
        self._uri, self._num_rows, self._rows = uri, num_rows, rows
        self.num_written = 0
        self.datasets = {
            name: new_dataset(hdf5, name, (num_rows, *row_shape), dtype) for name, dtype in dtypes.items()
        }

    def append(self, columns: Mapping[str, Array]) -> None:
        """Write some rows of every dataset after the rows written so far."""
        for name, values in columns.items():
            stop = self.num_written + len(values)
            if stop > self._num_rows:
                raise self._wrong_number(f"at least {stop}")
            write_rows(self.datasets[name], self.num_written, values)
        self.num_written = stop

    def check_full(self) -> None:
        """Refuse to end with fewer rows than announced."""
        if self.num_written != self._num_rows:
            raise self._wrong_number(str(self.num_written))

    def _wrong_number(self, found: str) -> FormatError:
        return FormatError(f"{self._uri}: expected {self._num_rows} {self._rows}, found {found}")

    def fill(self, batches: Iterable[Mapping[str, Array]]) -> None:
        """Write all rows."""
        for columns in batches:
            self.append(columns)
        self.check_full()


def _is_packed(dataset: h5py.Dataset, uri: str) -> bool:
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    packing = [number for number in filters if number not in _UNPACKED]
    if len(packing) > 1:
        raise FormatError(f"{uri}: {dataset.name!r}: expected one filter that packs, found {len(packing)}")
    return bool(packing)
