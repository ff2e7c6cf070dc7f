"""Tensors in `.pt` files, read by rows: files of torch, and damaged files.

Hostile ones: tests/graphmill/checkpoints/test_pbg_legacy.py and tests/remap/graphstorm.
"""

import io
import struct
import zipfile
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphmill.errors import FormatError, NotFoundError
from graphmill.formats.torch_files.read import load_bytes
from graphmill.formats.torch_files.tensor import open_tensor


def read(path: Path, start: int = 0, stop: int = 1 << 30) -> tuple[str, tuple[int, ...], np.ndarray]:
    with open_tensor(str(path)) as tensor:
        return tensor.dtype, tensor.shape, np.array(tensor.read(start, min(stop, tensor.shape[0])))


@given(
    rows=hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
    ),
    start=st.integers(0, 6),
    stop=st.integers(0, 6),
)
def test_tensors_from_torch_save_are_read(tmp_path: Path, rows: np.ndarray, start: int, stop: int) -> None:
    path = tmp_path / "rows.pt"
    torch.save(torch.from_numpy(rows), path)
    start, stop = sorted(min(each, len(rows)) for each in (start, stop))
    dtype, shape, found = read(path, start, stop)
    assert (dtype, shape) == (str(rows.dtype), rows.shape)
    np.testing.assert_array_equal(found, rows[start:stop])


def test_views_and_bfloat16_are_read_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("torch was asked")

    monkeypatch.setattr(torch, "load", refuse)
    torch.save(torch.arange(40.0).reshape(10, 4)[3:7], tmp_path / "view.pt")
    assert read(tmp_path / "view.pt", 1, 3)[2].tolist() == [[16.0, 17, 18, 19], [20, 21, 22, 23]]
    tensor = torch.randn(5, 3).bfloat16()
    torch.save(tensor, tmp_path / "b.pt")
    dtype, shape, found = read(tmp_path / "b.pt")
    assert (dtype, shape, found.dtype) == ("bfloat16", (5, 3), np.float32)
    np.testing.assert_array_equal(found, tensor.float().numpy())


def test_other_forms_are_read_by_torch(tmp_path: Path) -> None:
    path, rows = tmp_path / "other.pt", torch.arange(6.0).reshape(3, 2)
    for tensor, is_zip in ((torch.nn.Parameter(rows), True), (rows.T, True), (rows, False)):
        torch.save(tensor, path, _use_new_zipfile_serialization=is_zip)
        np.testing.assert_array_equal(read(path)[2], tensor.detach().numpy())
    torch.save(rows, path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "big.pt", "w") as turned:
        for name in archive.namelist():
            content = archive.read(name)
            content = b"big" if name.endswith("byteorder") else content
            turned.writestr(name, rows.numpy().astype(">f4").tobytes() if "/data/" in name else content)
    np.testing.assert_array_equal(read(tmp_path / "big.pt")[2], rows.numpy())
    path.unlink()
    with pytest.raises(NotFoundError, match=r"other\.pt"):
        read(path)


def test_counts_and_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The older form counts other elements than it has; a zip has two names for the same bytes."""
    path = tmp_path / "wrong.pt"
    torch.save(torch.arange(6.0), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    number = content.rindex(struct.pack("<q", 6))
    path.write_bytes(content[:number] + struct.pack("<q", 5) + content[number + 8 :])
    with pytest.raises(FormatError, match=r"wrong\.pt"):
        read(path)
    torch.save(torch.arange(1000.0), path)
    with zipfile.ZipFile(path, "a") as archive:
        record = copy(archive.getinfo("wrong/data/0"))
        record.filename = "wrong/data/1"
        archive.filelist.append(record)
        archive.writestr("wrong/more", b"")  # the directory is written again
    with pytest.raises(FormatError, match="found packed ones"):
        read(path)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_in_memory_is_loaded_without_a_copy(is_zip: bool) -> None:
    """Tensors share its memory; where the older form leaves them unaligned, they are copied."""
    table = torch.randn(50, 3)
    written = {"step": 3, "table": table, "part": table[7:9], "odd": torch.ones(3, dtype=torch.int8).bool()}
    written |= {"double": torch.randn(4, dtype=torch.float64), "none": torch.empty(0), "turned": table.T}
    for content in (written, {name: each for name, each in written.items() if name != "turned"}):
        stream = io.BytesIO()
        torch.save(content, stream, _use_new_zipfile_serialization=is_zip)
        memory = np.frombuffer(stream.getvalue(), np.uint8).copy()
        found = load_bytes(memory, "here")
        assert found.keys() == content.keys()
        for name, each in content.items():
            assert each == found[name] if name == "step" else torch.equal(each, found[name])
    first_byte = found["table"].data_ptr() - memory.ctypes.data
    assert 0 < first_byte < len(memory) or not is_zip
    with pytest.raises(FormatError, match=r"here: expected .*, found damage or a part"):
        load_bytes(memory[:-100].copy(), "here")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cut.pt"
    torch.save(torch.arange(100), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut\.pt: expected a file of one tensor, found damage"):
            read(path)


def test_anything_but_a_tensor_with_rows_is_refused(tmp_path: Path) -> None:
    repeated, sparse = torch.ones(1).expand(1 << 40), torch.ones(3).to_sparse()
    for content in ({"a": torch.ones(2)}, [1, 2], sparse, repeated, torch.tensor(1.0)):
        torch.save(content, tmp_path / "no.pt")
        with pytest.raises(FormatError, match=r"no\.pt: expected"):
            read(tmp_path / "no.pt")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\x07K\x03", b"K\x08K\x03"),  # a row more than there is
        (b"K\x15q", b"K\x7fq"),  # a storage longer than its bytes
        (b"FloatStorage", b"EvilsStorage"),
        (b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"),
        (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x00."),  # elements of another record
    ],
)
def test_a_forged_description_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "forged.pt"
    torch.save(torch.zeros(7, 3), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pickled,) = (name for name in members if name.endswith("data.pkl"))
    if old not in members[pickled]:  # what stores follows the length at once in one torch, not in another
        old, new = old[:-1], new[:-1]
    assert old in members[pickled]
    members[pickled] = members[pickled].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(FormatError, match=r"forged\.pt: expected"):
        read(path)
