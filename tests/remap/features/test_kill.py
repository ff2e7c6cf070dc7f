"""`kill -9` while a table gets its vectors: the earlier result stays, and the same command goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import REPOSITORY
from tests.processes import running
from tests.remap.predict.world import World, write_world
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.slow

NUM_FILES, ROWS = 24, 40_000


@contextmanager
def joining(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-m", "graphmill", "features", str(tmp_path / "run"), str(tmp_path / "t")]
    arguments += ["--column", "c", "--type", "user", "--to", str(tmp_path / "out"), "--master", "local[1]"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with running(arguments, tmp_path / "stderr.txt", env=environment) as process:
        yield process


def finish(tmp_path: Path) -> str:
    with joining(tmp_path) as process:
        assert process.wait() == 0, (tmp_path / "stderr.txt").read_text()
    return (tmp_path / "stderr.txt").read_text()


def write_table(world: World, folder: Path, first: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(NUM_FILES):
        ids = [world.name("user", (first + number + row) % 16) for row in range(ROWS)]
        rows = [first + number * ROWS + row for row in range(ROWS)]
        pq.write_table(pa.table({"row": rows, "c": ids}), folder / f"part-{number:02d}.parquet")


def rows_of(folder: Path) -> list[int]:
    files = sorted(folder.glob("part-*.parquet"))
    return [row for each in files for row in pq.read_table(each, columns=["row"])["row"].to_pylist()]


def test_killed(tmp_path: Path) -> None:
    world = write_world(tmp_path / "run", num_partitions=3)
    write_table(world, tmp_path / "t", 0)
    finish(tmp_path)
    write_table(world, tmp_path / "t", 7)
    with joining(tmp_path) as process:
        wait_until(
            lambda: bool(found_in(tmp_path, ".out.tmp-*/_counts/00001.json")) or process.poll() is not None
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = found_in(tmp_path, ".out.tmp-*/_counts/*.json")
    assert rows_of(tmp_path / "out")[0] == (0 if left else 7)  # all old or all new
    finished = found_in(tmp_path, ".out.tmp-*/part-*.parquet")
    places = {path.name: path.stat().st_ino for path in finished if f"{path.stem[5:]}.json" in names(left)}
    said = finish(tmp_path)
    assert ("goes on with the files" in said) == bool(left)
    assert rows_of(tmp_path / "out") == list(range(7, 7 + NUM_FILES * ROWS))
    for name, inode in places.items():
        assert (tmp_path / "out" / name).stat().st_ino == inode  # kept, not written again
    assert not found_in(tmp_path, ".out.tmp-*")


def names(paths: list[Path]) -> set[str]:
    return {Path(path).name for path in paths}
