"""Folders of one user: kept while a process uses them, removed afterwards, refused if others may write."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill.errors import StorageError
from graphmill.storage import private_folders
from tests import REPOSITORY

HOLD = """
import sys
from graphmill.storage import private_folders
print(private_folders.use_folder(sys.argv[1], "test", "theirs"), flush=True)
sys.stdin.read()
"""


def test_folders_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        theirs = Path(process.stdout.readline().strip())
        private_folders.use_folder(str(tmp_path), "test", "first")
        assert theirs.is_dir()
        process.kill()
    mine = private_folders.use_folder(str(tmp_path), "test", "second")
    assert not theirs.exists()
    assert Path(mine).is_dir()
    for token in ("first", "second"):
        private_folders.remove_folder(str(tmp_path), "test", token)
    assert list(Path(mine).parent.iterdir()) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_that_another_process_removes_at_that_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """A run that ends removes the folder of all runs if it was the last."""
    paths = [tmp_path / f"test-{os.getuid()}", tmp_path / f"test-{os.getuid()}" / "mine"]
    vanishing = {str(paths[depth])}
    mkdir = os.mkdir

    def made(path: Path | str, mode: int = 0o777) -> None:
        if str(path) in vanishing:
            vanishing.remove(str(path))
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))  # and is gone by now
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", made)
    folder = private_folders.use_folder(str(tmp_path), "test", "mine")
    assert Path(folder).is_dir()
    assert not vanishing
    private_folders.remove_folder(str(tmp_path), "test", "mine")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"test-{os.getuid()}").touch(0o600)
    with pytest.raises(StorageError, match="expected a folder of this user alone"):
        private_folders.use_folder(str(tmp_path), "test", "mine")


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    above = tmp_path / f"test-{os.getuid()}"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(StorageError, match="expected a folder of this user alone"):
        private_folders.use_folder(str(tmp_path), "test", "mine")
