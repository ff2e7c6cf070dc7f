"""A missing permission: the message names file or folder and what is missing, and a retry is useless."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphmill import storage
from graphmill.errors import AccessError
from graphmill.run import lock

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all may enter, unlike that of pytest; the test has no privileges."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "kept").mkdir()
        (path / "kept/file").write_text("x")
        (path / "file").write_text("x")
        (path / "file").chmod(0)
        path.chmod(0o555)
        if is_root:
            (path / "kept").chmod(0o700)
            os.seteuid(NOBODY)
        else:
            (path / "kept").chmod(0)
        yield path
        os.seteuid(0 if is_root else os.geteuid())
        path.chmod(0o700)
        (path / "kept").chmod(0o700)


def take_lock(uri: str) -> None:
    with lock.held(uri):
        pass


def write_below(uri: str) -> None:
    with storage.atomic_output(storage.join(uri, "a/b/c")) as stream:
        stream.write(b"x")


@pytest.mark.parametrize("act", [take_lock, write_below, lambda uri: storage.make_dir(f"{uri}/x")])
def test_a_folder_that_may_not_be_written(folder: Path, act: Callable[[str], None]) -> None:
    with pytest.raises(AccessError) as caught:
        act(str(folder))
    assert str(caught.value).startswith(
        f"{folder}: no permission to write into the folder {folder} (dr-xr-xr-x, of "
    )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("act", [storage.read_text, storage.exists, storage.list_dir])
def test_a_folder_that_may_not_be_entered(folder: Path, act: Callable[[str], object]) -> None:
    with pytest.raises(
        AccessError, match=r"kept/x: cannot .*: no permission to enter the folder .*/kept \(d"
    ):
        act(f"{folder}/kept/x")


def test_a_file_that_may_not_be_read(folder: Path) -> None:
    with pytest.raises(
        AccessError, match=r"file: cannot open: no permission to do that with .*/file \(-------"
    ):
        storage.read_text(f"file://{folder}/file")
