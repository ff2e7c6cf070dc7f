"""Candidates fit the model, differ, and repeat."""

import pytest

from tests.train.graphs import make_config
from train import job
from train.tune.space import MOST_ENTITIES, candidates
from train.tune.tuner import changed


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"comparator": "cos", "loss_fn": "ranking"},
        {"comparator": "l2", "loss_fn": "logistic"},
        {"dimension": 9},
        {"relations": [{"name": "r", "lhs": "node", "rhs": "node"}]},
        {"dynamic_relations": True},
    ],
)
def test_candidates_are_valid_different_and_the_same_each_time(tmp_path, settings):
    config = make_config(tmp_path, **settings)
    found = candidates(config, 1000, 27)
    assert found[0] == {}
    assert len(found) == 27
    configs = [changed(config, each) for each in found]
    assert len({each.model_dump_json() for each in configs}) == 27
    assert candidates(config, 1000, 27) == found
    other = config.model_copy(update={"seed": 1})
    assert candidates(other, 1000, 27) != found


@pytest.mark.parametrize(
    ("settings", "largest", "exact"),
    [
        ({}, MOST_ENTITIES + 1, True),
        ({"comparator": "l2"}, MOST_ENTITIES, True),
        ({"comparator": "l2"}, MOST_ENTITIES + 1, False),
        ({"bias": True}, MOST_ENTITIES + 1, False),
        ({"loss_fn": "logistic"}, 100, False),
    ],
)
def test_one_vs_all_is_for_softmax_and_small_types_or_samples(tmp_path, settings, largest, exact):
    config = make_config(tmp_path, **settings)
    found = [changed(config, each) for each in candidates(config, largest, 27)]
    assert any(each.relations[0].all_negs for each in found) == exact
    for each in found:
        job.check(each, [])  # every candidate can be trained


def test_the_second_candidate_of_a_configuration_with_all_negatives_is_its_recipe(tmp_path):
    relation = {"name": "r", "lhs": "node", "rhs": "node", "operator": "diagonal", "all_negs": True}
    train = {"relation_init": "small", "lr_schedule": "linear"}
    config = make_config(tmp_path, relations=[relation], lr=0.5, train=train)
    assert candidates(config, 100, 2)[1] == {
        "lr": 0.05, "regularization_coef": 0.2, "batch_size": 64, "train.candidates": 4000,
    }  # fmt: skip
