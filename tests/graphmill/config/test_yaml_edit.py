"""Edited YAML has the new values, and the comments that it had."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.config import apply_override, parsed_yaml
from graphmill.config.yaml_edit import edited
from graphmill.errors import ConfigError
from tests import REPOSITORY

CONFIGURATIONS = {path.name: path.read_text() for path in (REPOSITORY / "conf").glob("*.yaml")}
PLACES = ("lr", "relation_lr", "dimension", "relations.0.all_negs", "train.relation_init", "train.patience")
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 9), st.floats(0, 1), st.sampled_from(["small", "on"])
)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.sampled_from(sorted(CONFIGURATIONS)), st.dictionaries(st.sampled_from(PLACES), VALUES))
def test_values_change_and_comments_stay(name, changes):
    text = CONFIGURATIONS[name]
    found = edited(text, changes, name)
    wanted = parsed_yaml(text, name)
    for path, value in changes.items():
        at = wanted
        *above, last = path.split(".")
        for key in above:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        at[last] = value
    assert parsed_yaml(found, name) == wanted
    assert re.findall("#.*", found) == re.findall("#.*", text)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("lr: 0.1  # slow\n", {"lr": 0.5}, "lr: 0.5  # slow\n"),
        ("lr: 0.1", {"dimension": 8}, "lr: 0.1\ndimension: 8\n"),
        ("lr:   # the rate\nx: 1\n", {"lr": 0.5}, "lr: 0.5   # the rate\nx: 1\n"),
        ("train: {patience: 1}\n", {"train.x": 2}, "train: {x: 2, patience: 1}\n"),
        ("train: {}\n", {"train.x": 2}, "train: {x: 2}\n"),
        ("train:\n  y: 1\nlr: 1\n", {"train.x": 2}, "train:\n  x: 2\n  y: 1\nlr: 1\n"),
        ("lr: 1\n", {"train.x": "a", "train.y": True}, 'lr: 1\ntrain: {y: true, x: "a"}\n'),
        ("rel:\n  - name: a\n  - name: b\n", {"rel.1.z": 2}, "rel:\n  - name: a\n  - z: 2\n    name: b\n"),
        ("x: [1, 2]  # two\n", {"x": 3}, "x: 3  # two\n"),
        ("x: ü # é\ny: 1\n", {"y": 2}, "x: ü # é\ny: 2\n"),
    ],
)
def test_places(text, changes, expected):
    assert edited(text, changes, "conf") == expected


def test_a_text_that_shares_values_is_written_anew():
    text = "a: &both {x: 1}  # lost\nb: *both\n"
    found = edited(text, {"b.x": 2}, "conf")
    assert parsed_yaml(found, "conf")["b"] == {"x": 2}


def test_a_place_that_cannot_be_is_an_error():
    with pytest.raises(ConfigError, match="no such place"):
        edited("relations: []\n", {"relations.0.all_negs": True}, "conf")


def test_an_override_does_the_same():
    raw = {"lr": 1}
    apply_override(raw, "train.x=2")
    assert parsed_yaml(edited("lr: 1\n", {"train.x": 2}, "conf"), "conf") == raw
