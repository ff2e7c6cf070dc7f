"""Our own defaults: which keys they fill in, and the numbers that the data decide."""

import json
import pickle
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphmill import config
from graphmill.config import Config, PbgConfig, defaults
from graphmill.errors import ConfigError
from graphmill.run.auto_values import with_sizes

RATED = {"name": "rated", "lhs": "user", "rhs": "movie"}
SMALLEST = {"output": "out", "entities": {"user": {}, "movie": None}, "relations": [RATED]}
ONE_EACH = {name: {"num_partitions": 1} for name in ("user", "movie")}
GIB = 1 << 30


def loaded(tmp_path: Path, **changes: Any) -> Config:
    conf = tmp_path / "c.yaml"
    conf.write_text(json.dumps(SMALLEST | changes))
    return config.load(str(conf))


def test_yaml_has_our_defaults(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert (settings.comparator, settings.loss_fn, settings.global_emb) == ("dot", "softmax", False)
    assert (settings.eval_fraction, settings.train.lr_schedule) == (0, "linear")
    assert (settings.uncut_types, settings.defaults) == (("user", "movie"), "graphmill")
    assert pickle.loads(pickle.dumps(settings)).chosen == settings.chosen != {}  # as workers get it
    cosines = loaded(tmp_path, comparator="cos")
    assert (cosines.loss_fn, cosines.regularization_coef) == ("ranking", 0)


def test_what_is_set_stays(tmp_path: Path) -> None:
    given = {"lr": 0.7, "num_epochs": 3, "batchSize": 9, "dimension": 6, "train": {"lr_schedule": "cosine"}}
    settings = loaded(tmp_path, **given, entities={"user": {"numPartitions": 2}, "movie": {}})
    assert (settings.lr, settings.num_epochs, settings.batch_size, settings.dimension) == (0.7, 3, 9, 6)
    assert settings.train.lr_schedule == "cosine"
    assert settings.uncut_types == ("movie",)
    assert not {"lr", "num_epochs", "batch_size", "dimension", "train.lr_schedule"} & set(settings.chosen)


WRONG = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, "auto", "softmax", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["user", "name"]), inner),
    max_leaves=3,
)


@given(key=st.sampled_from([*Config.model_fields]), value=WRONG)
def test_a_wrong_value_is_refused_whatever_depends_on_it(tmp_path: Path, key: str, value: Any) -> None:
    with suppress(ConfigError):
        loaded(tmp_path, **{key: value})


def test_mappings_have_the_defaults_of_pbg_and_yaml_may_ask_for_them(tmp_path: Path) -> None:
    given = {"dimension": 8, "entities": ONE_EACH}
    asked = loaded(tmp_path, defaults="pbg", **given)
    keys = ("comparator", "loss_fn", "lr", "num_epochs", "batch_size", "num_batch_negs", "global_emb")
    for settings in (asked, config.from_mapping(SMALLEST | given)):
        for key in keys:
            assert getattr(settings, key) == PbgConfig.model_fields[key].default
        assert not settings.chosen
    content = asked.model_dump(mode="json")
    del content["defaults"], content["lr"]  # a run of an earlier release
    (tmp_path / "run.json").write_text(json.dumps({"config": content, "stages": {}}))
    assert config.load(str(tmp_path / "run.json")).lr == 0.01


SEVERAL = {"relations": [RATED, RATED | {"name": "saw"}]}
DYNAMIC = {"dynamic_relations": True}
TRANSLATED = {"relations": [RATED | {"operator": "translation"}]}
DRAWN = {"num_uniform_negs": 1000, "num_batch_negs": 100, "comparator": "cos", "loss_fn": "logistic"}
DRAWN |= {"bias": True, "num_gpus": 1}
DELTA = {"train": {"replay": 3.0}, "init_path": "before"}
POPULAR = {"train.popularity": True, "regularization_coef": 0.5, "num_epochs": 16}
UNPOPULAR = {"train.popularity": False, "regularization_coef": 0.2, "num_epochs": 8}
FULL_SAMPLES, SMALL_SAMPLES = {"train.first_negatives": 1}, {"train.first_negatives": 1 / 8}


@pytest.mark.parametrize(
    ("changes", "operator"),
    [
        ({}, "none"),
        (SEVERAL, "complex_diagonal"),
        (DYNAMIC, "complex_diagonal"),
        (DYNAMIC | {"dimension": 5}, "diagonal"),
        (TRANSLATED, "translation"),
    ],
)
def test_relations_are_told_apart_if_there_are_many(tmp_path, changes, operator):
    assert {relation.operator for relation in loaded(tmp_path, **changes).relations} == {operator}


def sized(tmp_path: Path, counts: tuple[int, ...], num_edges: int, **changes: Any) -> Config:
    """Settle a configuration for so many users and movies."""
    num = {name: [count] for name, count in zip(("user", "movie"), counts, strict=False)}
    return with_sizes(loaded(tmp_path, **changes), num, num_edges)


@pytest.mark.parametrize("changes", [{}, SEVERAL, DYNAMIC], ids=["one relation", "several", "dynamic"])
def test_queries_are_compared_with_all_entities_or_a_sample(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = sized(tmp_path, (900, 100), 100_000, **changes)
    train = settings.train
    assert all(relation.all_negs for relation in settings.relations)
    assert (train.candidates, train.relation_init, settings.half_precision) == (4000, "small", True)
    assert "all_negs true" in defaults.summary_line(settings.chosen, {}, 1)
    assert "num_uniform_negs" not in settings.chosen


@pytest.mark.parametrize(
    "changes",
    [
        *({key: value} for key, value in DRAWN.items()),
        {"relations": [RATED | {"all_negs": False}]},
        {"relations": [RATED | {"all_negs": True}, RATED | {"name": "saw", "all_negs": False}]},
        *({"train": {"negative_power": 0.5}}, {"train": {"negative_sampler": "mine"}}),
        {"entities": {"user": {"featurized": True, "num_partitions": 1}, "movie": {}}},
    ],
    ids=str,
)
def test_negatives_are_drawn_for_what_asks_for_them(tmp_path: Path, changes: dict[str, Any]) -> None:
    given = SMALLEST | changes
    filled, chosen = defaults.applied(given)
    asked, found = ([each.get("all_negs", False) for each in raw["relations"]] for raw in (given, filled))
    assert found == asked
    assert "all_negs" not in chosen
    assert "candidates" not in filled["train"]
    assert "half_precision" not in filled
    assert filled["lr"] == 0.1


@pytest.mark.parametrize(
    ("changes", "counts", "num_edges", "expected"),
    [
        # the regularization follows from the edges of an entity
        ({}, (900, 100), 100_000, {"lr": 0.05, "regularization_coef": 0.5}),
        (SEVERAL, (900, 100), 100_000, {"lr": 0.5, "regularization_coef": 0.0125}),
        (DYNAMIC, (900, 100), 100_000, {"lr": 0.5, "regularization_coef": 0.0125}),
        (SEVERAL, (600, 400), 9_000, {"regularization_coef": 0.1}),
        (SEVERAL, (600, 400), 11_000, {"regularization_coef": 0.05}),
        (SEVERAL, (600, 400), 28_000, {"regularization_coef": 0.025}),
        (SEVERAL, (600, 400), 1_000_000, {"regularization_coef": 0.0125}),
        ({}, (600, 400), 2_000, {"regularization_coef": 0.5, "num_epochs": 8}),
        # popularity is learned apart where one relation has no operator
        ({}, (900, 2000), 80_000, POPULAR),
        ({"train": {"popularity": False}}, (900, 2000), 80_000, UNPOPULAR),
        (TRANSLATED, (900, 2000), 80_000, UNPOPULAR),
        (SEVERAL, (900, 2000), 80_000, UNPOPULAR | {"regularization_coef": 0.025, "num_epochs": 32}),
        (DYNAMIC, (900, 2000), 80_000, UNPOPULAR | {"regularization_coef": 0.025, "num_epochs": 32}),
        # batches and epochs follow from queries and edges: the first are few queries with many answers
        ({}, (8000, 3000), 102_047, {"num_epochs": 16, "batch_size": 16}),
        # sparse graphs have twice the epochs, unless they are large or only new edges are trained
        (DYNAMIC, (3_000,), 4_072, {"num_epochs": 64, "batch_size": 128}),
        (SEVERAL | DELTA, (27_000, 2_000), 260_314, {"num_epochs": 16, "lr": 0.1, **FULL_SAMPLES}),
        # where candidates are a sample, it is small at first, for a third more epochs
        (DYNAMIC, (39_000,), 54_072, {"num_epochs": 85, "batch_size": 256}),
        (SEVERAL, (27_000, 2_000), 260_314, {"num_epochs": 42, **SMALL_SAMPLES}),
        (SEVERAL, (24_000, 2_000), 260_314, {"num_epochs": 21}),
        (SEVERAL, (180_000, 2_000), 1 << 20, {"num_epochs": 10}),
        (DYNAMIC, (10**6,), 10**7, {"num_epochs": 5, "batch_size": 512, **SMALL_SAMPLES}),
        (DYNAMIC, (7999,), 80_000, {"num_epochs": 32, **FULL_SAMPLES}),
        (DYNAMIC, (8000,), 80_000, {"num_epochs": 42, **SMALL_SAMPLES}),
        (DYNAMIC | {"num_epochs": 8}, (8000,), 80_000, {"num_epochs": 8, **FULL_SAMPLES}),
        (DYNAMIC | {"train": {"candidates": 99}}, (8000,), 80_000, {"num_epochs": 32, **FULL_SAMPLES}),
        (DYNAMIC | {"train": {"first_negatives": 0.5}}, (8000,), 80_000, {"num_epochs": 32}),
        (DYNAMIC, (90,), 100, {"num_epochs": 64, "batch_size": 128}),
    ],
)
def test_numbers_follow_from_the_data(tmp_path, changes, counts, num_edges, expected):
    found = sized(tmp_path, counts, num_edges, **changes)
    assert {key: attrgetter(key)(found) for key in expected} == expected


def test_the_recipe_of_large_graphs_and_parts_of_it_that_are_set(tmp_path: Path) -> None:
    small, large = (sized(tmp_path, (9, 9), num_edges) for num_edges in (2**24, 2**24 + 1))
    assert (small.relations[0].all_negs, large.relations[0].all_negs) == (True, False)
    assert large.train.candidates is None
    assert (small.train.popularity, large.train.popularity) == (True, False)
    assert (large.lr, large.regularization_coef, large.num_uniform_negs) == (0.1, 0.03, 1000)
    assert large.half_precision
    assert (small.train.first_negatives, large.train.first_negatives) == (1, 1 / 8)
    assert large.num_epochs == 6
    assert [sized(tmp_path, (9, 9), 2**25, **each).lr for each in (SEVERAL, SEVERAL | DELTA)] == [0.14] * 2
    all_negs = [each | {"all_negs": True} for each in SEVERAL["relations"]]
    every = sized(tmp_path, (9, 9), 2**25, relations=all_negs, lr=0.3)
    assert every.relations[0].all_negs
    assert every.train.candidates is None
    assert (every.lr, every.regularization_coef) == (0.3, 0.05)
    part = sized(tmp_path, (9, 9), 1000, train={"candidates": 99}, regularization_coef=0.7)
    assert (part.train.candidates, part.lr, part.regularization_coef) == (99, 0.05, 0.7)


def test_what_the_data_have_still_to_decide_is_not_recorded(tmp_path: Path) -> None:
    settings = loaded(tmp_path, output=str(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps({"config": settings.recorded(), "stages": {}}))
    again = config.load(str(tmp_path / "run.json"))
    assert again.uncut_types == ("user", "movie")
    assert {"num_epochs", "batch_size", "all_negs", "train.candidates"} <= set(again.chosen)
    assert again == settings.with_chosen(again.chosen)


def test_a_configuration_written_with_its_choice_is_complete(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    decided = with_sizes(settings, {"user": [5, 5], "movie": [3]}, 300_000)
    assert decided.entities["user"].num_partitions == 2
    again = config.from_mapping(decided.model_dump(mode="json"))
    assert again.pbg() == decided.pbg()
    assert again.train == decided.train


@given(num_edges=st.integers(0, 10**11), more=st.floats(1, 1.3), all_negs=st.booleans())
@example(num_edges=296_583, more=1.25, all_negs=False)
def test_a_graph_that_grows_a_little_changes_a_number_by_a_factor_of_two_at_most(num_edges, more, all_negs):
    chosen = {"num_epochs": 1, "batch_size": 1, "lr": 0.1}
    sizes = num_edges, int(num_edges * more)
    before, after = (defaults.decided(chosen, {}, each, all_negs=all_negs) for each in sizes)
    assert before["num_epochs"] / after["num_epochs"] in (1, 2)
    assert after["batch_size"] / before["batch_size"] in (1, 2, 1000 / 512)  # a chunk has 1,000 edges
    assert before["lr"] == 0.1


def test_tables_are_cut_until_three_partitions_fit() -> None:
    partitions = partial(defaults.decided_partitions, given=1, least=1, most=1024)
    assert partitions({"user": GIB, "movie": 1}, 8 * GIB) == {"user": 1, "movie": 1}
    assert partitions({"user": 64 * GIB, "country": 1000}, 16 * GIB) == {"user": 32, "country": 1}
    assert partitions({"user": 1000}, GIB, least=8) == {"user": 8}  # for workers that train together
    both = partitions({"user": 64 * GIB, "item": 64 * GIB}, 16 * GIB)
    assert both["user"] == both["item"] > 32
    assert partitions({"user": 64 * GIB}, 16 * GIB, given=4) == {"user": 4}
    assert partitions({"user": 64 * GIB}, 16 * GIB, given=6) == {"user": 1}
    small = {str(number): 10 * GIB for number in range(7)}  # which alone need more than there is
    assert partitions(small | {"user": 30 * GIB}, 64 * GIB)["user"] == 16


def test_the_line_says_what_was_chosen_and_why() -> None:
    chosen = {"lr": 0.1, "num_epochs": 16, "batch_size": 512, "entities.user": 2}
    line = defaults.summary_line(chosen, {"user": [600, 634]}, 272_115)
    assert "batch_size 512, num_epochs 16 for 272,115 edges of 1,234 user" in line
    assert "lr 0.1, entities.user.num_partitions 2" in line
    assert "\n" not in line
