"""A large file goes to the disk while it is written."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill import storage
from graphmill.errors import StorageError
from graphmill.storage import fs
from tests.waiting import wait_until


def test_a_large_file_goes_to_the_disk_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def noted(descriptor: int, start: int, size: int, advice: int) -> None:
        begun.append((start, start + size))
        advise(descriptor, start, size, advice)

    monkeypatch.setattr("graphmill.storage.atomic.WRITE_BACK_S", 0.001)
    monkeypatch.setattr(os, "posix_fadvise", noted)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def note_and_start(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():  # what other threads start is none of ours
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_and_start)
    content = np.random.default_rng(0).bytes(1 << 20)
    with storage.atomic_output(str(tmp_path / "a"), is_large=True) as stream:
        for number in range(1, 4):
            stream.write(content)
            wait_until(lambda size=number << 20: begun != [] and begun[-1][1] >= size)
    assert (tmp_path / "a").read_bytes() == content * 3
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]
    with (
        pytest.raises(KeyError),
        storage.atomic_output(str(tmp_path / "b"), is_large=True) as stream,
    ):
        stream.write(content)
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_a_file_that_vanishes_is_an_error_of_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of a thread, whose error nobody sees."""
    opened = fs.open_output

    def open_and_lose(uri: str) -> Any:
        stream = opened(uri)
        Path(uri).unlink()
        return stream

    monkeypatch.setattr(fs, "open_output", open_and_lose)
    with (
        pytest.raises(StorageError, match="cannot write: there is no such file"),
        storage.atomic_output(str(tmp_path / "a"), is_large=True),
    ):
        pass
    assert not list(tmp_path.iterdir())
