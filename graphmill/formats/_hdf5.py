"""Check of datasets in HDF5 files that come from others: the file must contain all elements.

A dataset of a few bytes may claim any shape: elements that were never written read as zeros, and chunks may
be packed. The claim is compared with the stored bytes before memory is allocated.
"""

import math

import h5py

from graphmill.errors import FormatError

# deflate packs tightest of HDF5's own filters: one byte becomes 1032 bytes at the most
_MAX_RATIO = 1032
_HARMLESS_BYTES = 64
_UNPACKED = (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)


def check_stored(dataset: h5py.Dataset, uri: str) -> None:
    """Refuse a dataset with elements that are not in the file, or that unpacks to far more than its bytes.

    Raises:
        FormatError: it lies in other files, parts of it were never written, or it is packed beyond measure.
    """
    if dataset.is_virtual or dataset.external:
        raise FormatError(
            f"{uri}: {dataset.name!r}: expected a dataset of this file, found one in other files"
        )
    if not dataset.nbytes:
        if dataset.ndim and dataset.shape[0]:
            raise FormatError(f"{uri}: {dataset.name!r}: expected elements, found the shape {dataset.shape}")
        return
    stored = min(dataset.id.get_storage_size(), dataset.file.id.get_filesize())
    if not stored and dataset.nbytes <= _HARMLESS_BYTES:  # zeros that a writer left out
        return
    expected, most = dataset.nbytes, stored
    if dataset.chunks is not None:
        grid = zip(dataset.shape, dataset.chunks, strict=True)
        num_chunks = math.prod(-(-size // each) for size, each in grid)
        expected = num_chunks * math.prod(dataset.chunks) * dataset.dtype.itemsize
        most = stored * _MAX_RATIO if _is_packed(dataset, uri) else stored
        if dataset.id.get_num_chunks() < num_chunks:
            most = 0
    if expected > most:
        raise FormatError(
            f"{uri}: {dataset.name!r}: expected {expected} bytes of {dataset.dtype} {dataset.shape}, found "
            f"{stored} in the file: parts of it were never written, or are packed beyond measure"
        )


def _is_packed(dataset: h5py.Dataset, uri: str) -> bool:
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    packing = [each for each in filters if each not in _UNPACKED]
    if len(packing) > 1:
        raise FormatError(f"{uri}: {dataset.name!r}: expected one filter that packs, found {len(packing)}")
    return bool(packing)
