"""Warm start and delta after etl has left out ids that were gone: rows follow their raw ids."""

from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from etl import job as etl_job
from graphmill.errors import FormatError
from graphmill.library.fold_in import FoldIn
from tests.train.deltas import Edge, TwoDays, ends_of, old_edges, state_of
from tests.train.tables.test_folded_rows import global_of
from train import job

LONELY: list[Edge] = [(f"u9{n:02}", "saw", f"i9{n:02}") for n in range(40)]
NEXT: list[Edge] = [
    *((f"u{n}", "saw", f"i{39 - n}") for n in range(12)),
    *((f"u{n}", "knows", f"u{59 - n}") for n in range(4)),
    *(("x0", "saw", f"i{n}") for n in range(0, 40, 6)),
    *((f"u{n}", "saw", "y0") for n in range(5, 60, 6)),
    ("x0", "lives", "c3"),
]


class Days(TwoDays):
    """Four days: on the third the first file is gone, on the fourth its ids are forgotten."""

    def __init__(self, root: Path, client: Any, partitions: int) -> None:
        old = old_edges()
        pairs = zip(LONELY, old[: 2 * len(LONELY) : 2], old[1 : 2 * len(LONELY) : 2], strict=True)
        first = [edge for three in pairs for edge in three] + old[2 * len(LONELY) :]
        super().__init__(root, client, partitions=partitions, first=first)
        (root / "raw/edges/day0.parquet").unlink()
        self.third = self.config("three", "two", init_path=None, **self.dated(1))
        etl_job.run(self.third, client)
        self._write("z-next", NEXT, 4)
        self.last = self.fourth()
        self.figures = etl_job.run(self.last, client)

    def fourth(self, name: str | None = None, **settings: Any) -> Any:
        return self.config("four", "three", name, **self.dated(2), **settings)

    def dated(self, day: int) -> dict[str, Any]:
        return {"schedule": {"date": f"2026-03-{day:02}"}, "etl": {"forget_after": 1}}


@pytest.fixture(scope="module", params=[1, 3])
def days(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client
) -> Days:
    found = Days(tmp_path_factory.mktemp("days"), near_client, request.param)
    job.run(found.third, near_client)
    return found


@pytest.mark.slow
def test_a_warm_start_leaves_them_out(days: Days) -> None:
    config = days.fourth("warm", lr=1e-12, num_epochs=1)
    job.run(config, days.client)
    before, after = state_of(days.third), state_of(config)
    forgotten = {end for edge in LONELY for end in ends_of([edge], known=False)}
    assert days.figures["num_entities_forgotten"] == {"user": 40, "item": 40, "city": 0}
    assert days.figures["delta"] is not None
    assert before.keys() - after.keys() == forgotten
    assert after.keys() - before.keys() == {("user", "x0"), ("item", "y0")}
    for key in before.keys() & after.keys():
        assert np.abs(before[key][0] - after[key][0]).max() < 1e-6, key


@pytest.mark.slow
def test_a_delta_moves_few_and_folds_in_the_new(days: Days) -> None:
    config = days.fourth("delta", train={"replay": 1.0})
    figures = job.run(config, days.client)
    assert figures["delta"]["new_ids"]["user"] == {"num_new": 1, "num_edges": 8, "num_without_edges": 0}
    before, after = state_of(days.third), state_of(config)
    new = {("user", "x0"), ("item", "y0")}
    moved = ends_of([edge for edge in NEXT if edge[0] != "x0" and edge[2] != "y0"], known=False)
    for key in after.keys() - new:
        assert (before[key][0].tobytes() == after[key][0].tobytes()) == (key not in moved), key
    expected = {(each.type, each.id): each for each in FoldIn(days.third, days.third.embedding_path)(NEXT)}
    for key in new:
        found = after[key][0] + global_of(days.third, key[0])
        assert found == pytest.approx(expected[key].embedding, abs=1e-2), key


def test_another_checkpoint_is_refused(days: Days) -> None:
    """It has the rows of the first day, not those of the third."""
    wrong = days.fourth("wrong", init_path=days.train_first().checkpoint_path)
    with pytest.raises(FormatError, match=r"expected \d+ rows, as the entities have .* set init_path"):
        job.run(wrong, days.client)
