"""Small texts that mean much: aliases, deep JSON, sparse files; edited YAML keeps its comments."""

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill import storage
from graphmill.cli import main
from graphmill.config import load, parsed_yaml
from graphmill.config.yaml_text import as_yaml, edited, lines
from graphmill.errors import ConfigError, FormatError
from graphmill.storage import hadoop_conf
from remap.graphstorm.options import make_options
from tests import REPOSITORY
from tests.commands import code_of


def nested_aliases(depth: int, width: int) -> str:
    """A list that stands for width**depth words."""
    names = [f"a{number}" for number in range(depth + 1)]
    rows = [f"{names[0]}: &{names[0]} word"]
    for below, name in itertools.pairwise(names):
        rows.append(f"{name}: &{name} [{', '.join([f'*{below}'] * width)}]")
    return "\n".join(rows)


@given(st.integers(1, 12), st.integers(1, 9))
def test_aliases_mean_little_or_are_refused(depth: int, width: int) -> None:
    text = nested_aliases(depth, width)
    repeated = sum(width**each for each in range(1, depth + 1)) * 2  # lists and words
    if repeated > 60_000:
        with pytest.raises(ConfigError, match=r"aliases \(\*name\) that repeat at most 10,000"):
            parsed_yaml(text, "here")
    elif repeated < 5_000:
        assert len(json.dumps(parsed_yaml(text, "here"))) >= width**depth


INSIDE = "expected no alias inside"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, INSIDE) for text in ("a: &a [*a]", "a: &a {b: *a}", "&a [&b [*a], *b]", "a: &a {<<: *a}")),
        (nested_aliases(9, 9), "aliases .* that repeat at most"),
        ("a: " + "[" * 1000, "nested too deep"),
        ("a: " + "{b: " * 10_000, "nested too deep"),
        ("dimension: " + "9" * 5000, "expected at most 128 bits, found 5000 digits"),
        ("dimension: 0x" + "f" * 5000, "expected at most 128 bits, found 5002 digits"),
        ("output: 2026-13-45", "month must be in 1..12"),
        ("output: 0000-01-01", "year 0 is out of range"),
        ("seed: 1\noutput: o\nseed: 2", r"'seed' stands first\n.*line 1(?s:.*)and again\n.*line 3"),
        ("train: {lr: 1, lr: 2}", "'lr' stands first"),
        ("a: 1\n'a': 2", "'a' stands first"),
    ],
    ids=lambda each: each[:20],
)
def test_yaml_that_is_refused(tmp_path, text, message, capsys):
    path, message = tmp_path / "c.yaml", f"cannot be parsed as YAML(?s:.*){message}"
    path.write_text(text)
    assert code_of(main.command, "check", path) == 2
    assert re.search(message, capsys.readouterr().err)
    for read in (lambda: load(None, [f"a={text}"]), lambda: make_options({}, str(path))):
        with pytest.raises(ConfigError, match=message):
            read()


def test_aliases_of_a_usual_size_still_mean_what_they_say() -> None:
    text = "x: &x {operator: none, weight: 2}\nrelations: [{<<: *x, name: a}, {<<: *x, name: b}, *x]"
    shared = {"operator": "none", "weight": 2}
    relations = [shared | {"name": "a"}, shared | {"name": "b"}, shared]
    assert parsed_yaml(text, "here") == {"x": shared, "relations": relations}
    assert lines(text)["relations", "1", "name"] == 2
    kept = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, *a], y: 3}\n"
    assert parsed_yaml(kept, "here")["c"] == {"x": 2, "y": 3}  # a key may replace one that is merged in


def test_a_message_shows_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ConfigError, match="dimension") as caught:
        load(None, ["output=x", "entities={a: {}}", "relations=[]", f"dimension={'x' * 100_000}"])
    assert len(str(caught.value)) < 10_000


def test_a_sparse_file_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    for read in (storage.read_json, storage.read_text, load):
        with pytest.raises(FormatError, match=r"run\.json: expected at most .* bytes of text, found 1,099"):
            read(str(path))


def test_entities_of_xml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a{number}" for number in range(10)]
    entities = ['<!ENTITY a0 "words">']
    for below, name in itertools.pairwise(names):
        entities.append(f'<!ENTITY {name} "{f"&{below};" * 20}">')
    text = f"<!DOCTYPE x [{''.join(entities)}]><configuration>&a9;</configuration>"
    (tmp_path / "core-site.xml").write_text(text)
    monkeypatch.setenv(hadoop_conf.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"core-site\.xml: expected Hadoop's XML"):
        hadoop_conf.settings()


CONFIGURATIONS = {path.name: path.read_text() for path in (REPOSITORY / "conf").glob("*.yaml")}
PLACES = ("lr", "relation_lr", "dimension", "relations.0.all_negs", "train.relation_init", "train.patience")
VALUES = st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 1) | st.sampled_from(["small", "on"])


@pytest.mark.slow
@settings(max_examples=12)
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
        ("train:\n  y: 1\nlr: 1\n", {"train.x": 2}, "train:\n  x: 2\n  y: 1\nlr: 1\n"),
        ("lr: 1\n", {"train.x": "a", "train.y": True}, 'lr: 1\ntrain: {y: true, x: "a"}\n'),
        ("rel:\n  - name: a\n  - name: b\n", {"rel.1.z": 2}, "rel:\n  - name: a\n  - z: 2\n    name: b\n"),
        ("x: [1, 2]  # two\n", {"x": 3}, "x: 3  # two\n"),
        ("x: ü # é\ny: 1\n", {"y": 2}, "x: ü # é\ny: 2\n"),
    ],
)
def test_places(text, changes, expected):
    assert edited(text, changes, "conf") == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_can_be_a_value(text):
    assert parsed_yaml(f"x: {as_yaml({'a': text})}", "conf") == {"x": {"a": text}}
    assert parsed_yaml(edited("x: 1  # one", {"x": text, "y.z": text}, "conf"), "conf")["y"] == {"z": text}


def test_a_text_that_shares_values_is_written_anew_and_a_place_that_cannot_be_is_an_error():
    found = edited("a: &both {x: 1}  # lost\nb: *both\n", {"b.x": 2}, "conf")
    assert parsed_yaml(found, "conf")["b"] == {"x": 2}
    with pytest.raises(ConfigError, match="no such place"):
        edited("relations: []\n", {"relations.0.all_negs": True}, "conf")
