"""Checksums of streams equal those of the files; large files go to disk and HDFS while they are written."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.errors import FormatError, StorageError
from graphmill.storage import checksums, fs
from graphmill.storage.checksums import HashedInput, HashedOutput
from tests.waiting import wait_until

MIB = 1 << 20


@given(
    size=st.integers(0, 5 * MIB),
    reads=st.lists(st.tuples(st.integers(0, 5 * MIB), st.integers(0, 2 * MIB)), max_size=8),
)
def test_reading_in_any_order_gives_the_checksum(size: int, reads: list[tuple[int, int]]) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    hashed = HashedInput(pa.BufferReader(content))
    file = pa.PythonFile(hashed, "r")
    for start, length in reads:
        file.seek(min(start, size))
        assert file.read(length) == content[min(start, size) :][:length]
    assert hashed.checksum("it") == xxhash.xxh3_128_hexdigest(content)


@given(st.lists(st.binary(max_size=100)))
def test_writing_gives_the_checksum(pieces: list[bytes]) -> None:
    sink = pa.BufferOutputStream()
    hashed = HashedOutput(sink)
    file = pa.PythonFile(hashed, "w")
    for piece in pieces:
        file.write(piece)
    written = sink.getvalue().to_pybytes()
    assert written == b"".join(pieces)
    assert hashed.checksum() == xxhash.xxh3_128_hexdigest(written)


def test_reading_in_order_reads_each_byte_once() -> None:
    """Small gaps are read too."""

    class Counted(io.BytesIO):
        num_read = 0

        def readinto(self, buffer: memoryview) -> int:
            size = super().readinto(buffer)
            self.num_read += size
            return size

        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size)
            self.num_read += len(content)
            return content

    counted = Counted(bytes(4 * MIB))
    hashed = HashedInput(counted)
    for start, length in ((0, 8), (0, 512), (2048, MIB), (2048 + MIB, 2 * MIB)):
        hashed.seek(start)
        hashed.readinto(bytearray(length))
    assert hashed.checksum("it") == xxhash.xxh3_128_hexdigest(bytes(4 * MIB))
    assert counted.num_read <= 4 * MIB + 8


@given(
    found=st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(lambda name: name[0] != "/"),
        st.binary(min_size=16, max_size=16).map(bytes.hex),
        min_size=1,
    )
)
def test_a_manifest_is_read_as_written(tmp_path: Path, found: dict[str, str]) -> None:
    uri = str(tmp_path / storage.CHECKSUMS)
    storage.write_checksums(uri, found)
    assert storage.read_checksums(uri) == found


@pytest.mark.parametrize("text", ["", "x\n", f"{'0' * 31}  name\n", f"{'0' * 32}  name", f"{'0' * 32} n\n"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / storage.CHECKSUMS).write_text(text)
    (tmp_path / "name").write_text("any")
    with pytest.raises(FormatError, match=r"checksums\.xxh128: line 1: expected a checksum"):
        checksums.read_bytes(str(tmp_path / "name"), storage.manifest_of(str(tmp_path)))


def test_a_manifest_has_the_format_of_xxhsum(tmp_path: Path) -> None:
    known: dict[str, str] = {}
    folder = str(tmp_path)
    storage.write_text(f"{folder}/b", "", known)
    with storage.atomic_output(f"{folder}/deep/a", checksums=known) as stream:
        stream.write(b"ab")
        stream.write(b"c")
    storage.write_checksums(storage.manifest_of(folder).uri, known)
    assert (tmp_path / storage.CHECKSUMS).read_text() == (
        # of https://github.com/Cyan4973/xxHash, xxhsum -H2
        "99aa06d3014798d86001c324468d497f  b\n06b05ab6733a618578af5f94892f3950  deep/a\n"
    )


def test_a_changed_file_is_compared_again(tmp_path: Path) -> None:
    known: dict[str, str] = {}
    uri, manifest = str(tmp_path / "file"), storage.manifest_of(str(tmp_path))
    storage.write_text(uri, "right", known)
    storage.write_checksums(manifest.uri, known)
    for _ in range(2):
        with storage.open_compared(uri, manifest) as stream:
            assert stream.read() == b"right"
    before = (tmp_path / "file").stat().st_mtime_ns
    (tmp_path / "file").write_text("wrong")
    os.utime(tmp_path / "file", ns=(before + 1, before + 1))  # a kernel's clock may tick more slowly
    again = r"file: expected the checksum .* run the stage that wrote it again"
    with pytest.raises(FormatError, match=again):
        checksums.read_bytes(uri, manifest)
    (tmp_path / "other").write_text("unknown")
    assert checksums.read_bytes(str(tmp_path / "other"), manifest) == b"unknown"
    Path(manifest.uri).unlink()
    assert checksums.read_bytes(uri, manifest) == b"wrong"


WRITER = """
import os, signal, sys
from graphmill import storage
with storage.create_hdf5(sys.argv[1]) as file:
    file["x"] = [1, 2]
    if sys.argv[2:] == ["killed"]:
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.hdfs
def test_the_next_process_removes_what_a_killed_one_has_staged(tmp_path: Path, hdfs_uri: str) -> None:
    uri, environment = f"{hdfs_uri}/rows.h5", os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", WRITER, uri]
    killed = subprocess.run([*command, "killed"], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.rglob("*.h5")] != []
    assert not storage.exists(uri)
    subprocess.run(command, env=environment, check=True)
    assert storage.exists(uri)
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_goes_to_the_disk_while_it_is_written(tmp_path, monkeypatch):
    begun: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def noted(descriptor: int, start: int, size: int, advice: int) -> None:
        begun.append((start, start + size))
        advise(descriptor, start, size, advice)

    monkeypatch.setattr("graphmill.storage.atomic.WRITE_BACK_S", 0.001)
    monkeypatch.setattr(os, "posix_fadvise", noted)
    content, before = np.random.default_rng(0).bytes(1 << 20), set(threading.enumerate())
    with storage.atomic_output(str(tmp_path / "a"), is_large=True) as stream:
        for number in range(1, 4):
            stream.write(content)
            wait_until(lambda size=number << 20: begun != [] and begun[-1][1] >= size)
    assert (tmp_path / "a").read_bytes() == content * 3
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]
    with pytest.raises(KeyError), storage.atomic_output(str(tmp_path / "b"), is_large=True) as stream:
        stream.write(content)
        (writing,) = set(threading.enumerate()) - before
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not writing.is_alive()


def test_a_file_that_vanishes_is_an_error_of_its_writer(tmp_path, monkeypatch):
    """Not of a thread, whose error nobody sees."""
    opened = fs.open_output

    def open_and_lose(uri: str) -> Any:
        stream = opened(uri)
        Path(uri).unlink()
        return stream

    monkeypatch.setattr(fs, "open_output", open_and_lose)
    lost = pytest.raises(StorageError, match="cannot write: there is no such file")
    with lost, storage.atomic_output(str(tmp_path / "a"), is_large=True):
        pass
    assert not list(tmp_path.iterdir())
