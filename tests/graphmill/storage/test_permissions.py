"""Folders and names: lacking permissions, folders of one user, leftovers of a kill, any text as a name."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill import storage
from graphmill.errors import AccessError, StorageError
from graphmill.run import lock
from graphmill.storage import run_folder
from graphmill.storage.named import MAX_BYTES
from tests.forked import Forks
from tests.graphmill.smallest import write_conf
from tests.processes import DASK_SUBMIT, SLEEPER, speaking
from tests.waiting import found_in

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


WAYS_TO_WRITE = (
    lambda uri: lock.held(uri).__enter__(),
    lambda uri: storage.write_text(f"{uri}/a/b/c", "x"),
    lambda uri: storage.make_dir(f"{uri}/x"),
)
WRITE = r"^FOLDER: no permission to write into the folder FOLDER \(dr-xr-xr-x, of "
ENTER = r"kept/x: cannot .*: no permission to enter the folder .*/kept \(d"
READ = r"file: cannot open: no permission to do that with .*/file \(-------"


@pytest.mark.parametrize(
    ("act", "path", "message"),
    [
        *((act, "", WRITE) for act in WAYS_TO_WRITE),
        *((act, "/kept/x", ENTER) for act in (storage.read_text, storage.exists, storage.list_dir)),
        (lambda path: storage.read_text(f"file://{path}"), "/file", READ),
    ],
)
def test_what_permissions_forbid(folder: Path, act: Callable[[str], object], path: str, message: str) -> None:
    with pytest.raises(AccessError, match=message.replace("FOLDER", str(folder))) as caught:
        act(f"{folder}{path}")
    assert caught.value.exit_code == 2


HOLD = """
import sys
from graphmill.storage import run_folder
print(run_folder.use_folder(sys.argv[1], "test", "theirs"), flush=True)
sys.stdin.read()
"""


def test_folders_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path: Path) -> None:
    with speaking(sys.executable, "-c", HOLD, tmp_path) as (process, told):
        theirs = Path(told)
        run_folder.use_folder(str(tmp_path), "test", "first")
        assert theirs.is_dir()
        process.kill()
    (theirs.parent / "never locked").mkdir()
    mine = run_folder.use_folder(str(tmp_path), "test", "second")
    assert not theirs.exists()
    assert Path(mine).is_dir()
    for token in ("first", "second"):
        run_folder.remove_folder(str(tmp_path), "test", token)
    assert list(Path(mine).parent.iterdir()) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_that_another_process_removes_at_that_moment_is_made_again(tmp_path, monkeypatch, depth):
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
    folder = run_folder.use_folder(str(tmp_path), "test", "mine")
    assert Path(folder).is_dir()
    assert not vanishing
    run_folder.remove_folder(str(tmp_path), "test", "mine")


@pytest.mark.parametrize("is_folder", [False, True], ids=["a file", "a folder that others can write to"])
def test_what_is_no_folder_of_this_user_alone_is_refused(tmp_path: Path, is_folder: bool) -> None:
    above = tmp_path / f"test-{os.getuid()}"
    if is_folder:
        above.mkdir()
        above.chmod(0o777)
    else:
        above.touch(0o600)
    with pytest.raises(StorageError, match="expected a folder of this user alone"):
        run_folder.use_folder(str(tmp_path), "test", "mine")


@pytest.mark.slow
def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path, forked: Forks) -> None:
    temporary = tmp_path / "t"
    (temporary / "pymp-of-others").mkdir(parents=True)
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    write_conf(tmp_path)
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    place = {"cwd": tmp_path, "env": {**os.environ, "TMPDIR": str(temporary)}, "start_new_session": True}
    words = [DASK_SUBMIT, "--master", "local[1]", "sleeper.py"]
    with speaking(*words, stderr=subprocess.DEVNULL, **place) as (process, told):
        assert told.startswith("workers ")
        left = found_in(temporary, f"{run_folder.NAME}-*/*")
        os.killpg(process.pid, signal.SIGKILL)
    assert left
    assert all(path.exists() for path in left), "with the whole group killed nobody clears away"

    words = ["--master", "local[1]", "etl.py", "--conf", "c.yaml"]
    forked("dask-submit", *words, cwd=tmp_path, TMPDIR=str(temporary))
    assert not any(path.exists() for path in left)
    assert (temporary / "pymp-of-others").is_dir()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((plain, plain) for plain in ("knows", "is a", "größe", "a.b", "likes_it")),
        ("http://www.wikidata.org/prop/direct/P31", "http%3A%2F%2Fwww.wikidata.org%2Fprop%2Fdirect%2FP31"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("100%", "100%25"),
        ("a\tb", "a%09b"),
    ],
)
def test_what_files_cannot_have_is_encoded_as_in_urls(name: str, expected: str) -> None:
    assert storage.file_name(name) == expected


@given(TEXTS)
def test_any_name_lies_in_its_folder_and_can_be_read_back(name: str) -> None:
    encoded = storage.file_name(name)
    assert len(encoded.encode()) <= MAX_BYTES
    assert storage.join("/x", encoded) == f"/x/{encoded}"
    assert storage.within("/x", f"/x/{encoded}")
    assert not encoded.startswith(".")
    assert not set(encoded) & set("/\\:\0\n")
    assert "%~" in encoded or unquote(encoded) == name


@given(TEXTS, TEXTS)
def test_different_names_differ(one: str, other: str) -> None:
    longer = "/" * 40 + one, "/" * 40 + other
    assert (storage.file_name(one) == storage.file_name(other)) == (one == other)
    assert (storage.file_name(longer[0]) == storage.file_name(longer[1])) == (one == other)
