"""A command that is killed anywhere goes on, and readers see the earlier result or the new one."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from graphmill import cluster, storage
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.errors import ConfigError, LockedError, StorageError
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.run.work import Work, make_result
from graphmill.storage import Checksums
from tests.contents import contents
from tests.forked import Forks, Kill

NUM_PARTS = 2
STORAGE_FILES = {storage.MARKER, storage.PUBLISHED}


def write_part(uri: str, text: str) -> dict[str, str]:
    checksums: Checksums = {}
    storage.write_text(uri, text, checksums)
    return checksums


def toy() -> None:
    """Write a result: `toy FOLDER TEXT`."""
    with cluster.connect(None, ClusterConfig(), [], is_small=True) as client:
        write_result(client, *sys.argv[1:])


def write_result(client: Client, to: str, text: str) -> None:
    """Write two files, each after a part of the work."""

    def make(work: Work) -> tuple[dict[str, Any], Checksums]:
        suffix = work.once("suffix", lambda: "!")
        storage.write_text(work.uri("beside"), text)
        tasks = {str(number): (work.part_uri(number), text + suffix) for number in range(NUM_PARTS)}
        parts = work.run_tasks(write_part, tasks, description="writing", unit="files")
        return {"text": text}, {uri: each for part in parts for uri, each in part.items()}

    assert make_result("toy", to, "_toy.json", {"toy": text}, make, client, NO_CLAIM) == {"text": text}


@pytest.mark.slow
def test_a_kill_at_any_renaming(tmp_path: Path, forked: Forks, near_client: Client) -> None:
    ask, out = f"{__name__}:toy", tmp_path / "out"
    ended = forked(ask, out, "new")
    new = contents(out.rename(tmp_path / "new"))
    write_result(near_client, str(out), "old")
    old = contents(out.rename(tmp_path / "old"))
    assert set(new) == {f"part-0000{n}.parquet" for n in range(NUM_PARTS)} | {"_toy.json"} | STORAGE_FILES
    num_last = ended.renamings
    assert num_last == 10
    for number in range(num_last):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "old", out)
        forked(ask, out, "new", kill=Kill(number, is_after=number == num_last - 1))
        readable = contents(out)
        aside = [contents(path) for path in tmp_path.glob(".out.old-*")]
        assert readable in (old, new) or (readable, aside) == ({}, [old])
        parts = {path.stat().st_ino for path in tmp_path.glob(".out.tmp-*/part-*") if is_noted(path)}
        write_result(near_client, str(out), "new")
        assert contents(out) == new
        assert parts <= {path.stat().st_ino for path in out.iterdir()}
        assert not list(tmp_path.glob(".*"))


def is_noted(part: Path) -> bool:
    """Whether the task that wrote a file has ended, so that it is not repeated."""
    number = int(part.stem.removeprefix("part-"))
    return (part.parent / f"_work/done/{number}.json").exists() or (part.parent / storage.MARKER).exists()


def note(to: Path, word: str, asked: list[str], error=None, claim: Claim = NO_CLAIM, **layout: Any) -> None:
    """Make a result by a step that notes the word, after which the work fails with the error, if any."""

    def make(work: Work) -> tuple[dict[str, Any], Checksums]:
        work.once("first", lambda: asked.append(word))
        if error:
            raise error
        return {}, {}

    make_result("toy", str(to), "_toy.json", {"toy": word}, make, None, claim, **layout)


def test_errors(tmp_path: Path) -> None:
    """Bad input leaves nothing, other errors leave the work; the earlier result stays, and a link to it."""
    to, asked = tmp_path / "link", []
    to.symlink_to("out")
    note(to, "old", asked)
    before = contents(tmp_path)
    with pytest.raises(ConfigError):
        note(to, "new", asked, ConfigError("wrong"))
    assert contents(tmp_path) == before
    with pytest.raises(LockedError):
        note(to, "new", asked, LockedError("held"))
    assert {f"out/{name}": each for name, each in contents(to).items()} == before
    (left,) = tmp_path.glob(".out.tmp-*/_work/done/first.json")
    with pytest.raises(LockedError, match="lost"):
        note(to, "new", asked, claim=Claim({str(to / "lock"): str(to)}, "mine"))
    assert {f"out/{name}": each for name, each in contents(to).items()} == before
    note(to, "new", asked)
    assert asked == ["old", "new", "new"], "not asked again"
    assert not left.exists()
    assert to.is_symlink()


def test_the_work_of_another_request_is_not_gone_on_with(tmp_path: Path, monkeypatch) -> None:
    asked: list[str] = []
    for word, size, version in [("one", 1, "1")] * 2 + [("two", 1, "1"), ("two", 2, "1"), ("two", 2, "2")]:
        monkeypatch.setattr(f"{make_result.__module__}.__version__", version)
        with pytest.raises(LockedError):
            note(tmp_path / "out", word, asked, LockedError("held"), size=size)
    assert asked == ["one", "two", "two", "two"]


@pytest.mark.parametrize("written", ["foreign", "_work/x"])
def test_a_foreign_file_in_the_unfinished_folder_or_one_that_is_gone(tmp_path: Path, written: str) -> None:
    def make(work: Work) -> tuple[dict[str, Any], Checksums]:
        storage.write_text(storage.join(work.folder, written), "")
        return {}, {} if written == "foreign" else {work.part_uri(0): "gone"}

    with pytest.raises(StorageError, match="missing or foreign"):
        make_result("toy", str(tmp_path / "out"), "_toy.json", {}, make, None, NO_CLAIM)
    assert not (tmp_path / "out").exists()
