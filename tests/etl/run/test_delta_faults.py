"""Runs with earlier edges that are stopped or killed go on from there."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from etl import job
from graphmill.config import Config
from tests.etl.graphs import as_anew, files_under, saved
from tests.etl.run.test_delta import check_day, config_for, write_window
from tests.etl.run.test_go_on import figures_of, finished_steps
from tests.forked import Forks, Kill

SHAPE = {"drops": True, "weights": True, "splits": True, "items": 3, "chunk_rows": 40}


@pytest.fixture(scope="module")
def first_day(near_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    near_client: Client, forked: Forks, second_day: Config, tmp_path: Path, kill: Kill
) -> None:
    killed = forked(*saved(second_day, tmp_path / "saved"), kill=kill)
    assert killed.code == -signal.SIGKILL, killed.stderr
    done = finished_steps(Path(second_day.output or ""))
    figures, num_tasks = figures_of(second_day, near_client)
    assert figures["delta"]["files_added"] == 1
    if "merge" not in done:
        assert ("etl: encode" in num_tasks) == ("encode" not in done)
