"""`kill -9` in the middle of a fold-in: the earlier result stays, and the same command begins anew."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import REPOSITORY
from tests.processes import running
from tests.remap.fold_in.test_fold_in import new_edges, read_all, write_edges
from tests.remap.graph import snapshot
from tests.remap.predict import world as remap_world
from tests.remap.predict.world import World, write_world
from tests.waiting import found_in, wait_until

pytestmark = pytest.mark.slow

WHEN = {
    "tables are read": "_work/edges-*.parquet",
    "new ids are found": "_work/sorted-*.arrow",
    "some vectors are written": "*/part-*.parquet",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(remap_world, "DIMENSION", 16)
    return write_world(tmp_path / "run", num_partitions=3)


@contextmanager
def folding(tmp_path: Path, edges: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-m", "graphmill", "fold-in", str(tmp_path / "run"), "--edges", str(edges)]
    arguments += ["--to", str(tmp_path / "out"), "--master", "local[1]"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with running(arguments, tmp_path / "stderr.txt", env=environment) as process:
        yield process


def finish(tmp_path: Path, edges: Path) -> None:
    with folding(tmp_path, edges) as process:
        assert process.wait() == 0, (tmp_path / "stderr.txt").read_text()


@pytest.mark.parametrize("moment", WHEN)
def test_killed(tmp_path: Path, world: World, rng: np.random.Generator, moment: str) -> None:
    first = write_edges(tmp_path / "first.parquet", [("old", "likes", world.name("item", 2))])
    finish(tmp_path, first)
    before = snapshot(tmp_path / "out")
    rows = new_edges(world, rng)
    rows += [(f"more-{number}", "likes", world.name("item", number % 16)) for number in range(300)]
    second = write_edges(tmp_path / "second.parquet", rows)
    with folding(tmp_path, second) as process:
        wait_until(
            lambda: bool(found_in(tmp_path, f".out.tmp-*/{WHEN[moment]}")) or process.poll() is not None
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = snapshot(tmp_path / "out")
    assert found == before or ("user", "more-0") in read_all(tmp_path / "out")  # all old or all new
    finish(tmp_path, second)
    expected = read_all(tmp_path / "out")
    assert ("user", "more-299") in expected
    assert ("user", "old") not in expected
    assert not found_in(tmp_path, ".out.tmp-*")
    assert (
        pq.read_table(next((tmp_path / "out/user").iterdir())).schema.field("confidence").type == pa.float32()
    )
