"""Runs with earlier edges that are stopped or killed go on from there, on HDFS too."""

import signal
from collections.abc import Iterator
from pathlib import Path

import distributed
import pytest

from etl import job
from graphmill import storage
from graphmill.config import Config
from tests.etl.graphs import as_anew, config_of, files_under, saved
from tests.etl.run.test_delta import check_day, config_for, write_window
from tests.etl.run.test_go_on import figures_of, finished_steps
from tests.etl.run.test_hdfs import files_at
from tests.forked import Forks, Kill
from tests.hadoop.cluster import MiniHdfs
from tests.workers import workers

SHAPE = {"drops": True, "weights": True, "splits": True, "chunk_rows": 40}


@pytest.fixture(scope="module")
def first_day(near_client: distributed.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of the first day, and of the second read anew; the tables are the second day's."""
    root = tmp_path_factory.mktemp("days")
    write_window(root, range(3))
    check_day(root, 0, SHAPE, near_client)
    write_window(root, range(1, 4))
    job.run(config_for(root, 1, "anew1", SHAPE, delta=False), near_client)
    return root


@pytest.fixture
def second_day(first_day: Path) -> Iterator[Config]:
    """A run of the second day that takes edges from the first; in the end it has written what it should."""
    before = files_under(first_day / "out0")
    name = f"out-{len(list(first_day.iterdir()))}"
    config = config_for(first_day, 1, name, SHAPE, delta=True)
    yield config
    assert as_anew(files_under(config.output or "")) == files_under(first_day / "anew1")
    assert files_under(first_day / "out0") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        *map(Kill, (0, 2, 7, 14, 24, 39, 49, 54, 59)),
        *(Kill(0, name, is_after=True) for name in ("*.codes.arrow", "edges_*.h5")),
    ],
    ids=str,
)
def test_killed_at_a_rename(
    near_client: distributed.Client, forked: Forks, second_day: Config, tmp_path: Path, kill: Kill
) -> None:
    killed = forked(*saved(second_day, tmp_path / "saved"), kill=kill)
    assert killed.code == -signal.SIGKILL, killed.stderr
    done = finished_steps(Path(second_day.output or ""))
    figures, num_tasks = figures_of(second_day, near_client)
    assert figures["delta"]["files_added"] == 1
    if "merge" not in done:
        assert ("etl: encode" in num_tasks) == ("encode" not in done)


@pytest.mark.hdfs
@pytest.mark.slow
def test_on_hdfs(hdfs: MiniHdfs, hdfs_uri: str, tmp_path: Path) -> None:
    """The same bytes as anew; a damaged bucket of the earlier run is refused, and nothing is lost."""
    with workers(2) as client:
        write_window(tmp_path, range(3))
        for path in sorted((tmp_path / "raw/first").glob("*.parquet")):
            with storage.atomic_output(f"{hdfs_uri}/raw/{path.name}") as stream:
                stream.write(path.read_bytes())

        def run(name: str, days: range, before: str | None, *, delta: bool) -> dict[str, object]:
            etl = {"previous_entity_path": f"{hdfs_uri}/{before}/entities"} if before else {}
            if delta:
                etl["previous_edge_path"] = f"{hdfs_uri}/{before}/edges"
            config = config_of(
                f"{hdfs_uri}/{name}",
                [
                    {"path": [f"day{day}.parquet" for day in days], "lhs": "l", "rhs": "t"}
                    | {"relation_column": "r", "weight": "w"}
                ],
                entities={"user": 2, "item": 2, "shop": 1},
                relations=[("saw", "user", "item"), ("bought", "user", "shop")],
                top={"input": f"{hdfs_uri}/raw"},
                holdout={"test": 0.2},
                **etl,
            )
            return job.run(config, client)

        run("first", range(2), None, delta=False)
        run("anew", range(1, 3), "first", delta=False)
        found = run("second", range(1, 3), "first", delta=True)
        assert isinstance(found["delta"], dict)
        assert (found["delta"]["files_kept"], found["delta"]["files_added"]) == (1, 1)
        second = files_at(f"{hdfs_uri}/second")
        assert as_anew(second) == files_at(f"{hdfs_uri}/anew")

        uri = f"{hdfs_uri}/first/edges/train/edges_1_1.h5"
        content = bytearray(storage.read_bytes(uri))
        content[-9] ^= 1
        with storage.atomic_output(uri) as stream:
            stream.write(bytes(content))
        with pytest.raises(Exception, match=r"edges_1_1\.h5: expected the checksum"):
            run("second", range(1, 3), "first", delta=True)
        assert files_at(f"{hdfs_uri}/second") == second
