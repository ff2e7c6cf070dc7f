"""Kills: the earlier export stays, finished pieces are not written again, and the bytes are the same."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from distributed import Client

from graphmill import storage
from remap.export import job
from remap.export.job import Wish
from tests import REPOSITORY
from tests.processes import DEADLINE_S, running
from tests.remap.graph import snapshot
from tests.remap.predict.world import World, write_world
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

COUNTS = {"user": [400] * 4, "item": [300]}
WISH = Wish("int8")

# Kills its own process right before the n-th renaming of the folder.
DIE_AT_MOVE = """
import os, signal, sys
from graphmill.cli import exit_codes
from graphmill.storage import fs, name
from remap.export.command import command

real_move = fs.move

def move(source, target):
    global moves_left
    if name(source).startswith((".out.tmp-", "out")) and "out" in (name(source), name(target)):
        if not moves_left:
            os.kill(os.getpid(), signal.SIGKILL)
        moves_left -= 1
    real_move(source, target)

if __name__ == "__main__":  # not in the workers, which import this file too
    moves_left = int(sys.argv.pop(1))
    fs.move = move
    exit_codes.main(command)
"""


def command(tmp_path: Path, *before: str) -> list[str]:
    return [
        sys.executable, *before, str(tmp_path / "run"), "--precision", "int8",
        "--to", str(tmp_path / "out"), "--master", "local[1]",
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY)}


def work_of(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.iterdir() if path.name.startswith(".out.tmp-")]


def check_next_run(tmp_path: Path, world: World, client: Client) -> None:
    job.run(world.config, WISH, str(tmp_path / "out"), client)
    job.run(world.config, WISH, str(tmp_path / "fresh"), client)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "fresh")
    assert [path.name for path in tmp_path.iterdir() if "tmp-" in path.name or "old-" in path.name] == []


@pytest.mark.parametrize("num_pieces", [1, 3])
def test_killed_while_writing(tmp_path: Path, client: Client, num_pieces: int) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS)
    job.run(world.config, Wish(), str(tmp_path / "out"), client)
    before = snapshot(tmp_path / "out")
    sign = tmp_path / "held"
    held = ("-m", "tests.held", "user-*.json", str(num_pieces), str(sign), "graphmill", "export")
    with running(command(tmp_path, *held), tmp_path / "stderr.txt", env=environment()) as process:
        wait_until(sign.exists, DEADLINE_S)
        process.kill()
        process.wait()
    assert snapshot(tmp_path / "out") == before
    (work,) = work_of(tmp_path)
    notes = sorted((work / "_work").glob("user-*.json"))
    assert len(notes) == num_pieces
    files = [Path(uri) for note in notes for uri in json.loads(note.read_text())["files"]]
    stamps = {path.relative_to(work): path.stat().st_mtime_ns for path in files}
    check_next_run(tmp_path, world, client)
    assert {path: (tmp_path / "out" / path).stat().st_mtime_ns for path in stamps} == stamps


@pytest.mark.parametrize("num_moves", [0, 1])
def test_killed_while_committing(tmp_path: Path, client: Client, num_moves: int) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS)
    job.run(world.config, Wish(), str(tmp_path / "out"), client)
    before = snapshot(tmp_path / "out")
    script = tmp_path / "die.py"
    script.write_text(DIE_AT_MOVE)
    arguments = command(tmp_path, str(script), str(num_moves))
    with running(arguments, tmp_path / "stderr.txt", env=environment()) as process:
        assert process.wait(DEADLINE_S) == -signal.SIGKILL, (tmp_path / "stderr.txt").read_text()
    aside = [snapshot(path) for path in tmp_path.glob(".out.old-*")]
    assert (snapshot(tmp_path / "out"), aside) == ((before, []) if num_moves == 0 else ({}, [before]))
    check_next_run(tmp_path, world, client)


def test_other_wishes_do_not_go_on_with_it(tmp_path: Path, client: Client) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS)
    leftover = tmp_path / ".out.tmp-0123456789ab"
    (leftover / "_work").mkdir(parents=True)
    (leftover / "_work/user-0.json").write_text("{}")
    check_next_run(tmp_path, world, client)


@pytest.mark.parametrize("place", ["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def test_goes_on_where_it_was_stopped(
    tmp_path: Path,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    place: str,
) -> None:
    """Ctrl-C after the pieces: the next run has the same files, with the times of the first."""
    root = str(tmp_path) if place == "local" else request.getfixturevalue("hdfs_uri")
    world, wish = write_world(f"{root}/run", counts=COUNTS), Wish("pq", is_measured=False)

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(job, "write_relation_parameters", stop)
        with pytest.raises(KeyboardInterrupt):
            job.run(world.config, wish, f"{root}/out", client)
    (work,) = [uri for uri in storage.list_hidden(root) if storage.name(uri).startswith(".out.tmp-")]
    before = _times(work)
    assert len([each for each in before if "part-" in each]) == 5
    job.run(world.config, wish, f"{root}/out", client)
    after = _times(f"{root}/out")
    assert {key: after[key] for key in before if "_work" not in key} == {
        key: value for key, value in before.items() if "_work" not in key
    }
    assert storage.list_hidden(root) == []


def _times(folder: str) -> dict[str, int]:
    return {
        each.uri.removeprefix(folder): each.mtime_ns
        for each in storage.list_dir(folder, recursive=True)
        if not each.is_dir
    }
