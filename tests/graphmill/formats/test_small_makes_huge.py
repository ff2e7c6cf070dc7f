"""A file of a few kilobytes that claims gigabytes is refused before memory is allocated."""

import io
import pickle
import struct
import zipfile
import zlib
from functools import reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from graphmill.formats import edge_buckets
from graphmill.vocab import Bucket
from tests.graphmill.checkpoints.samples import torch_bytes
from tests.graphmill.formats.bounded import LIMIT_BYTES, run

pytestmark = pytest.mark.slow

HUGE = 1 << 29

# Reads each path as its kind, and prints the errors.
_READ_ALL = """
import sys
from graphmill.checkpoints import pbg
from graphmill.checkpoints.legacy import inputs
from graphmill.convert import convert
from graphmill.errors import BadInputError
from graphmill.formats import edge_buckets
from graphmill.formats.torch_files.read import load
from graphmill.formats.torch_files.tensor import open_tensor
from graphmill.vocab import Bucket
reads = {
    "bucket": lambda path: edge_buckets.read_bucket(path, Bucket(0, 0)),
    "legacy": lambda path: list(inputs.iter_edges(path, Bucket(0, 0), 0, 1 << 40)),
    "table": lambda path: pbg.read_embeddings(path, "user", 0, 1),
    "convert": lambda path: convert(path, path + " converted", "graphstorm"),
    "saved": load,
    "tensor": lambda path: open_tensor(path).__enter__(),
}
for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        reads[kind](path)
    except BadInputError as error:
        print(kind, error)
"""

# Ways to make a dataset of 2 GiB in a kilobyte.
_DATASETS: dict[str, dict[str, Any]] = {
    "never written": {"chunks": (1 << 20,)},
    "packed, never written": {"chunks": (1 << 20,), "compression": "gzip"},
    "one chunk for all": {"chunks": (HUGE,), "compression": "gzip"},
    "one that claims its size": {"chunks": (HUGE,), "compression": "gzip"},
    "contiguous": {},
}


def write_bucket(path: Path, how: str) -> None:
    """`two filters` would pack a million bytes into one: they are refused for a file that packs few."""
    with h5py.File(path, "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        for column in ("lhs", "rel", "rhs"):
            if how in _DATASETS:
                made = hdf5.create_dataset(column, shape=(HUGE,), dtype=np.int32, **_DATASETS[how])
                if how.startswith("one"):
                    made.id.write_direct_chunk((0,), b"packed")
                continue
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_chunk((64,))
            plan.set_deflate(9)
            plan.set_deflate(9)
            space = h5py.h5s.create_simple((64,))
            two = h5py.h5d.create(hdf5.id, column.encode(), h5py.h5t.NATIVE_INT32, space, plan)
            h5py.Dataset(two)[:] = 0
    if "claims" in how:  # of a chunk: the packed bytes, a mask, the place in the dataset
        size, place = (struct.pack("<I", number) for number in (len(b"packed"), 0))
        path.write_bytes(path.read_bytes().replace(size + 3 * place, struct.pack("<I", HUGE) + 3 * place))
    assert path.stat().st_size < 16 << 10


def write_checkpoint(folder: Path, how: str) -> None:
    """128 GiB of zeros, which convert would write."""
    with h5py.File(folder / "embeddings_user_0.v1.h5", "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        shape = (1 << 31, 0) if how == "no columns" else (1 << 31, 16)
        more: dict[str, Any] = {"chunks": (1 << 16, 16)} if how == "never written" else {}
        hdf5.create_dataset("embeddings", shape=shape, dtype=np.float32, **more)
    with h5py.File(folder / "model.v1.h5", "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        hdf5.create_group("model")
    (folder / "checkpoint_version.txt").write_text("1")


def test_zeros_packed_tightly_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "edges_0_0.h5", "w") as hdf5:
        hdf5.attrs["format_version"] = 1
        for column in ("lhs", "rel", "rhs"):
            zeros = np.zeros(1 << 20, np.int64)
            hdf5.create_dataset(column, data=zeros, chunks=(1 << 19,), compression="gzip", shuffle=True)
    assert len(edge_buckets.read_bucket(str(tmp_path), Bucket(0, 0))) == 1 << 20


def _zipped(pickled: bytes) -> bytes:
    """A file in torch's form with this pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for name, content in (("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"a/{name}", content)
    return stream.getvalue()


def _packed() -> bytes:
    """A real file whose 2 GiB of zeros are deflated."""
    pattern = zipfile.ZipFile(io.BytesIO(torch_bytes(torch.zeros(1 << 20))))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in pattern.namelist():
            archive.writestr(each, pattern.read(each))
    return stream.getvalue()


def _nested() -> Any:
    value: Any = [0.0]
    for _ in range(40):
        value = [value, value]
    return value


def _huge(kind: bytes) -> bytes:
    """A pickle of so many of them."""
    return b"\x80\x02c" + kind + b"\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R."


_HUGE_BYTES = _huge(b"builtins\nbytearray")
_CHECKSUM = struct.pack("<I", zlib.crc32(_HUGE_BYTES))
# The beginning of a file in the form before zip.
_OLD_FORM = b"".join(pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {}))
BYTES, SPARSE = "found the type builtins.bytearray", "found the type torch._utils._rebuild_sparse_tensor"
_TENSORS = {
    "repeats itself": (lambda: torch_bytes(torch.zeros(1).expand(1 << 31, 16)), "repeats itself"),
    "has no elements": (lambda: torch_bytes(torch.zeros(1 << 31, 16, device="meta")), "found a shape alone"),
    "is sparse": (lambda: torch_bytes(torch.zeros(4).to_sparse()), SPARSE),
    "is packed": (_packed, "found packed ones"),
    "is made by its length": (lambda: _zipped(_HUGE_BYTES), BYTES),
    "is not even written": (lambda: _zipped(_huge(b"torch\nFloatTensor")), "the type torch.FloatTensor"),
    "holds itself many times": (lambda: torch_bytes(_nested()), "hold each other endlessly"),
    "holds itself too deep": (
        lambda: torch_bytes(reduce(lambda value, _: [value], range(300), [0.0])),
        "hold each other endlessly",
    ),
    "in the old form": (lambda: _OLD_FORM + _HUGE_BYTES, BYTES),
    "in the old form, as its keys": (lambda: _OLD_FORM + pickle.dumps(0, 2) + _HUGE_BYTES, BYTES),
    "in the old form, with a zip behind": (
        lambda: _OLD_FORM + _HUGE_BYTES + torch_bytes(torch.zeros(1)),
        BYTES,
    ),
    "without its checksum": (lambda: _zipped(_HUGE_BYTES).replace(_CHECKSUM, bytes(4)), BYTES),
}


def test_small_files_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """All in one process, as torch takes seconds to import."""
    asked = [("bucket", how) for how in (*_DATASETS, "two filters")] + [("legacy", "never written")]
    asked += [("table", how) for how in ("never written", "contiguous", "no columns")]
    expected = []  # each kind and path, and the parts of its message
    for number, (kind, how) in enumerate([*asked, ("convert", "contiguous")]):
        folder, file, dataset = tmp_path / str(number), "embeddings_user_0.v1.h5", "/embeddings"
        folder.mkdir()
        if kind in ("bucket", "legacy"):
            file, dataset = "edges_0_0.h5", "/lhs"
            write_bucket(folder / file, how)
        else:
            write_checkpoint(folder, how)
        expected.append((kind, folder, f"{kind} {folder}/{file}: '{dataset}': expected", how))
    for number, (how, (make, message)) in enumerate(_TENSORS.items()):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(make())
        assert path.stat().st_size < 16 << 10
        of_one = "" if how.startswith("holds itself") else message  # one tensor is expected there
        expected += [("saved", path, message, how), ("tensor", path, of_one, how)]
    done = run(_READ_ALL, *(word for kind, path, *_ in expected for word in (kind, path)))
    assert done.code == 0, done.told[-2000:]
    for (kind, path, message, how), line in zip(expected, done.told.splitlines(), strict=True):
        assert line.startswith(f"{kind} {path}"), how
        assert message in line, how
    assert done.peak_bytes < LIMIT_BYTES
