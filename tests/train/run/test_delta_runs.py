"""Whole runs of a delta: kills, ensembles; rows without added or removed edges stay, to the last bit."""

import shutil
from pathlib import Path

import distributed
import pytest

from etl import job as etl_job
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.errors import NotFoundError
from tests.contents import contents
from tests.logged import messages_of
from tests.train.deltas import RELATIONS, TwoDays, check_still
from tests.train.graphs import differing, saved
from tests.train.kill_driver import kill_anywhere
from train import job
from train.edges.schedule import why_whole
from train.run.ensemble import members_of
from train.tables import folded_rows

pytestmark = pytest.mark.slow
Days = dict[int, TwoDays]  # by the number of partitions


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> TwoDays:
    """The graph with two partitions, whose first day is trained."""
    return TwoDays(tmp_path_factory.mktemp("days"), near_client, partitions=2).trained()


@pytest.mark.parametrize("name", ["no replay", "no init_path", "no earlier edges"])
def test_what_is_no_delta_trains_all_edges(days, caplog, name):
    folder = f"whole-{name}".replace(" ", "-")
    config = days.second(folder, train={"replay": None if name == "no replay" else 1.0})
    why = ""
    if name == "no init_path":
        config, why = config.model_copy(update={"init_path": None}), "there is no init_path to start from"
    elif name == "no earlier edges":
        config = days.config("anew", "one", train={"replay": 1.0}, etl={"previous_edge_path": None})
        etl_job.run(config, days.client)
        why = f"etl took no edges of {config.edge_paths[0]} from an earlier run"
    caplog.clear()
    caplog.set_level("INFO", "graphmill")
    figures = job.run(config, days.client)
    told = [each for each in messages_of(caplog) if "replay" in each]
    assert told == [f"training: train.replay: all edges are trained, because {why}"] * bool(why)
    assert (figures.get("delta"), figures.get("delta_reason", "")) == (None, why)
    assert {epoch["edges"] for epoch in figures["epochs"]} == {len(days.old) + len(days.new)}
    assert not storage.exists(folded_rows.folder_of(config))


def test_a_featurized_type_trains_all_edges(days: TwoDays) -> None:
    config = days.second()
    entities = dict(config.entities)
    entities["city"] = entities["city"].model_copy(update={"featurized": True})
    assert why_whole(config) == ""
    assert why_whole(config.model_copy(update={"entities": entities})) == "a type is featurized"


@pytest.fixture(scope="module")
def whole_days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> TwoDays:
    """The graph with one partition, which stays in memory, and its first day trained."""
    return TwoDays(tmp_path_factory.mktemp("whole-days"), near_client).trained()


@pytest.mark.parametrize("resident", ["never", "always"])
def test_short_epochs_share_a_commit(whole_days: TwoDays, resident: str) -> None:
    """The checkpoint is the same, training_stats.json too, whenever epochs are committed."""
    written, names, checkpoints = {}, [], []
    for seconds in (0.0, 1000.0):
        train = {"resident": resident, "commit_interval_s": seconds}
        config = whole_days.second(f"{resident}-{seconds:g}", num_epochs=3, train=train)
        epochs = job.run(config, whole_days.client)["epochs"]
        written[seconds] = [each["partitions_written"] > 0 for each in epochs]
        names.append(contents(config.checkpoint_path).keys())
        checkpoints.append(saved(config))
    assert written == {0.0: [True] * 3, 1000.0: [False, False, True]}
    assert names[0] == names[1]
    assert not differing(*checkpoints)


@pytest.mark.parametrize(
    ("name", "interval", "validated"),
    [("preserved", 2, {}), ("validated", None, {"validate_split": "valid", "validate_every": 2})],
)
def test_epochs_that_are_validated_or_preserved_are_committed(whole_days, name, interval, validated):
    train = {"commit_interval_s": 1000} | validated
    config = whole_days.second(name, num_epochs=3, checkpoint_preservation_interval=interval, train=train)
    edges = Path(config.split_path("train"))
    shutil.copytree(edges, edges.with_name("valid"), dirs_exist_ok=True)
    figures = job.run(config, whole_days.client)
    assert [each["partitions_written"] > 0 for each in figures["epochs"]] == [False, True, True]


@pytest.mark.parametrize(
    ("graph", "ensemble", "every"), [("days", 1, 13), ("days", 2, 31), ("whole_days", 1, 7)]
)
def test_kill_anywhere_and_run_again(request, graph, ensemble, every, near_client):
    days: TwoDays = request.getfixturevalue(graph)
    first = days.config("one", name=f"one-{ensemble}", train={"ensemble": ensemble})
    job.run(first, near_client)
    config = days.second(
        f"killed-{ensemble}", batch_size=20, num_batch_negs=10, train={"ensemble": ensemble}
    ).model_copy(update={"init_path": first.checkpoint_path})
    kill_anywhere(config, every)
    check_still(first, config, days.new)
    for each in {config.checkpoint_path, *(member.checkpoint_path for member in members_of(config))}:
        assert not storage.exists(storage.join(each, folded_rows.FOLDER))
    assert pbg.read_version(config.checkpoint_path) > 0


def test_a_run_goes_on_only_beside_the_earlier_run(days: TwoDays) -> None:
    """Without it, edges of new ids would be trained from then on."""
    once, twice = (days.second("on", num_epochs=n, train={"on_change": "resume"}) for n in (1, 2))
    job.run(once, days.client)
    for gone, message in (
        ("one", "/one/entities: expected the earlier run"),
        ("one-checkpoint", "one-checkpoint: expected the folder"),
    ):
        away = Path(days.root, gone).rename(days.root / "away")
        with pytest.raises(NotFoundError, match=message):
            job.run(twice, days.client)
        away.rename(days.root / gone)
    figures = job.run(twice, days.client)
    whole = days.second("whole", num_epochs=2)
    expected = job.run(whole, days.client)
    assert figures["epochs"][-1]["edges"] == expected["epochs"][-1]["edges"]
    assert not differing(saved(twice), saved(whole))


def test_another_replay_is_another_training(days: TwoDays) -> None:
    """The checkpoint of the former one is moved aside; the new one is as if there had been none."""
    job.run(days.second("changed", num_epochs=1), days.client)
    changed, fresh = (days.second(name, num_epochs=1, train={"replay": 2.0}) for name in ("changed", "fresh"))
    figures = [job.run(config, days.client) for config in (changed, fresh)]
    assert [each["delta"]["replay"] for each in figures] == [2.0, 2.0]
    assert len(figures[0]["moved_aside"]) == 1
    assert not differing(saved(changed), saved(fresh))
    assert not storage.exists(folded_rows.folder_of(changed))


def test_a_run_without_edges_has_no_loss_and_no_new_ids(days: TwoDays) -> None:
    job.run(days.second(num_epochs=1), days.client)
    config = days.config("three", "two", train={"replay": 1.0})
    etl_job.run(config, days.client)
    figures = job.run(config, days.client)
    assert (figures["num_edges"], figures["loss"]) == (0, None)
    assert all("loss" not in epoch for epoch in figures["epochs"])
    nothing = {"num_new": 0, "num_edges": 0, "num_without_edges": 0}
    assert figures["delta"]["new_ids"] == dict.fromkeys(("user", "item", "city"), nothing)


ALL_NEGS = [RELATIONS[0], RELATIONS[1] | {"all_negs": True}, RELATIONS[2]]
KERNELS = [each | {"operator": "complex_diagonal"} for each in RELATIONS]


@pytest.fixture(scope="module")
def days_with(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> Days:
    """The graph with one partition of each type, and with four."""
    lost = {"num_files": 50, "num_gone": 1}
    return {
        number: TwoDays(tmp_path_factory.mktemp(f"days{number}"), near_client, partitions=number, **lost)
        for number in (1, 4)
    }


RUNS = {
    "resident": (4, {"train": {"resident": "always"}, "global_emb": False, "relations": KERNELS}),
    "chunks": (4, {"train": {"memory_partitions": 4}, "num_edge_chunks": 3}),
    "blocks": (4, {"num_epochs": 1, "train": {"memory_partitions": 2}}),
    "plain": (1, {"train": {"engine": "plain"}}),
    "fused": (1, {"train": {"engine": "fused"}, "global_emb": False, "relations": KERNELS}),
    "all_negs": (4, {"relations": ALL_NEGS, "train": {"optimizer": "adagrad"}}),
    "max_norm": (1, {"max_norm": 3.0, "regularization_coef": 0.01}),
    "hogwild": (1, {"workers": 3}),
    "cos": (1, {"comparator": "cos", "loss_fn": "logistic"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_rows_without_added_or_removed_edges_stay(days_with: Days, name: str) -> None:
    number, settings = RUNS[name]
    these = days_with[number]
    train = settings.get("train", {})
    both = {key: value for key, value in settings.items() if key != "train"}
    first = these.config("one", train=train, **both | {"num_epochs": 1})
    second = these.second(train=train, **both)
    for config in (first, second):
        shutil.rmtree(config.checkpoint_path, ignore_errors=True)
        figures = job.run(config, these.client)
    assert figures["delta"]["replay"] == 1
    assert len(these.removed) > 5
    check_still(first, second, [*these.new, *these.removed])


@pytest.mark.parametrize(("number", "replay"), [(4, 0.0), (1, 1.0)])
def test_two_workers(days_with: Days, client: distributed.Client, number: int, replay: float) -> None:
    """Rows of types with one partition are shared by the workers, and may move."""
    these = days_with[number]
    first = these.config("one")
    second = these.second(train={"num_workers": 2, "replay": replay})
    for config, at in ((first, these.client), (second, client)):
        shutil.rmtree(config.checkpoint_path, ignore_errors=True)
        figures = job.run(config, at)
    assert figures["delta"]["replay"] == replay
    leave = ["city", "user", "item"] if number == 1 else ["city"]
    check_still(first, second, [*these.new, *these.removed], leave=leave)
