"""Training of a delta: rows without added or removed edges stay, to the last bit, in all kinds of runs."""

import shutil

import distributed
import pytest

from tests.train.deltas import RELATIONS, TwoDays, check_still
from train import job

ALL_NEGS = [RELATIONS[0], RELATIONS[1] | {"all_negs": True}, RELATIONS[2]]
KERNELS = [each | {"operator": "complex_diagonal"} for each in RELATIONS]


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> dict[int, TwoDays]:
    """The graph with one partition of each type, with four, and with six."""
    lost = {"num_files": 50, "num_gone": 1}
    return {
        number: TwoDays(tmp_path_factory.mktemp(f"days{number}"), near_client, partitions=number, **lost)
        for number in (1, 4, 6)
    }


RUNS = {
    "resident": (4, {"train": {"resident": "always"}, "global_emb": False, "relations": KERNELS}),
    "by bucket": (4, {"train": {"memory_partitions": 4}, "num_edge_chunks": 3}),
    "blocks": (6, {"train": {"memory_partitions": 2, "outside_rows": 0.5}}),
    "adagrad": (4, {"train": {"optimizer": "adagrad"}}),
    "plain": (1, {"train": {"engine": "plain"}}),
    "fused": (1, {"train": {"engine": "fused"}, "global_emb": False, "relations": KERNELS}),
    "all_negs": (1, {"relations": ALL_NEGS}),
    "all_negs, adagrad": (4, {"relations": ALL_NEGS, "train": {"optimizer": "adagrad"}}),
    "max_norm": (1, {"max_norm": 3.0, "regularization_coef": 0.01}),
    "hogwild": (1, {"workers": 3}),
    "cos": (4, {"comparator": "cos", "loss_fn": "logistic"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_rows_without_added_or_removed_edges_stay(days: dict[int, TwoDays], name: str) -> None:
    number, settings = RUNS[name]
    these = days[number]
    train = settings.get("train", {})
    both = {key: value for key, value in settings.items() if key != "train"}
    first = these.config("one", train=train, **both)
    second = these.second(train=train, **both)
    for config in (first, second):
        shutil.rmtree(config.checkpoint_path, ignore_errors=True)
        figures = job.run(config, these.client)
    assert figures["delta"]["replay"] == 1
    assert len(these.removed) > 5
    check_still(first, second, [*these.new, *these.removed])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "replay"), [(4, 1.0), (4, 0.0), (1, 1.0)])
def test_two_workers(
    days: dict[int, TwoDays], client: distributed.Client, number: int, replay: float
) -> None:
    """Rows of types with one partition are shared by the workers, and may move."""
    these = days[number]
    first = these.config("one")
    second = these.second(train={"num_workers": 2, "replay": replay})
    for config, at in ((first, these.client), (second, client)):
        shutil.rmtree(config.checkpoint_path, ignore_errors=True)
        figures = job.run(config, at)
    assert figures["delta"]["replay"] == replay
    check_still(
        first,
        second,
        [*these.new, *these.removed],
        leave=["city", "user", "item"] if number == 1 else ["city"],
    )
