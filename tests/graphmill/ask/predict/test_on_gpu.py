"""A GPU gives the answers of the CPU: the best of all scores, ties in the same order. Here it is the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmill.ask.predict.answers import IdChunk, write_answers
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.predict.sizes import Sizes
from graphmill.ask.scan import WIDTH
from graphmill.errors import ConfigError
from graphmill.gpu import device
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import World, asked, assert_equal, read_answers, write_world
from tests.pairs import pairs

SMALL = Sizes(queries=50, candidate_rows=WIDTH, known_edges=4, pairs=5)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of GPUs that were asked for; the device is a GPU only where there is one."""
    found: list[int] = []

    def device_of(num_gpus: int) -> torch.device:
        found.append(num_gpus)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    monkeypatch.setattr(device, "device_of", device_of)
    return found


def answers(
    world: World, folder: Path, question: PredictOptions, num_gpus: int, sizes: Sizes | None = None
) -> Any:
    """The answers for all ids, and the figures."""
    world.config = world.config.model_copy(update={"num_gpus": num_gpus})
    what = asked(world.config, question)
    what = replace(what, sizes=sizes) if sizes else what
    folder.mkdir()
    every = IdChunk(0, what.queries.num_entities)
    figures = write_answers(what, every, str(folder / "part-00000.parquet"))
    del figures["checksum"]  # scores are rounded in other ways
    return figures, read_answers(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("comparator", "num_partitions", "side"), pairs(["dot", "cos"], [1, 3], list(Side)))
def test_the_answers_of_the_cpu(
    tmp_path: Path, gpus: list[int], comparator: str, num_partitions: int, side: Side
) -> None:
    loops = comparator == "dot"
    world = write_world(tmp_path / "run", comparator=comparator, num_partitions=num_partitions, loops=loops)
    for k, exclude_known in ((4, False), (1000, True)):
        question = PredictOptions(relation="follows", side=side, k=k, exclude_known=exclude_known)
        figures, found = answers(world, tmp_path / f"gpu{k}", question, 1, SMALL)
        wanted_figures, wanted = answers(world, tmp_path / f"cpu{k}", question, 0)
        assert figures == wanted_figures
        assert_equal(found, wanted)
    assert gpus == [1, 1]


def test_several_blocks_of_candidates_with_many_known_edges(tmp_path: Path, gpus: list[int]) -> None:
    counts = {"user": [40], "item": [2 * WIDTH + 77, 0, 5]}
    world = write_world(tmp_path / "run", counts=counts)
    question = PredictOptions(relation="likes", side=Side.RHS, k=20, exclude_known=True)
    known = frozenset((lhs, rhs) for each in world.edges.values() for lhs, rel, rhs in each if rel == 0)
    figures, found = answers(world, tmp_path / "out", question, 1, SMALL)
    assert_equal(found, world.best(0, Side.RHS, 20, known))
    assert figures == {"num_answers": 40 * 20, "num_known_left_out": len(known)}
    assert gpus == [1]


@pytest.mark.parametrize("counts", [{"user": [0, 0], "item": [5]}, {"user": [3], "item": [0]}])
def test_no_entities(tmp_path: Path, gpus: list[int], counts: dict[str, list[int]]) -> None:
    world = write_world(tmp_path / "run", counts=counts)
    assert (
        answers(
            world,
            tmp_path / "out",
            PredictOptions(relation="likes", side=Side.RHS, k=5, exclude_known=True),
            1,
        )[1]
        == {}
    )


@pytest.mark.parametrize(("comparator", "bias"), [("l2", False), ("squared_l2", False), ("dot", True)])
def test_scores_that_are_no_dot_products_stay_on_the_cpu(
    tmp_path: Path, gpus: list[int], comparator: str, bias: bool
) -> None:
    world = write_world(tmp_path / "run", comparator=comparator, bias=bias)
    question = PredictOptions(relation="likes", side=Side.LHS, k=5)
    assert answers(world, tmp_path / "out", question, 1) == answers(world, tmp_path / "wanted", question, 0)
    assert gpus == []


def test_one_task_takes_more_queries_on_a_gpu(tmp_path: Path) -> None:
    world = write_world(tmp_path / "run", counts={"user": [3], "item": [40 * WIDTH]})
    world.config = world.config.model_copy(update={"num_gpus": 1})
    on_gpu = asked(world.config, PredictOptions(relation="likes", memory_bytes=1 << 40)).sizes
    world.config = world.config.model_copy(update={"num_gpus": 0})
    on_cpu = asked(world.config, PredictOptions(relation="likes", memory_bytes=1 << 40)).sizes
    assert on_gpu == replace(on_cpu, queries=on_gpu.queries)
    assert on_gpu.queries > 10 * on_cpu.queries


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    world = write_world(tmp_path / "run")
    with pytest.raises(ConfigError, match="num_gpus: 1, but this worker sees no GPU; set num_gpus: 0"):
        answers(world, tmp_path / "out", PredictOptions(relation="likes"), 1)
