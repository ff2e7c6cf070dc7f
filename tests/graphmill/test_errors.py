"""Suggestions for words that are nearly right: commands, keys, names, ids."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.neighbors import close_id
from graphmill.cli import main
from graphmill.config import load
from graphmill.config.schema import Config
from graphmill.errors import ConfigError, closest, suggestion
from tests.commands import code_of

WORDS = st.lists(st.sampled_from("abcdefghijkl_"), min_size=5, max_size=12, unique=True).map("".join)


@given(st.lists(WORDS, min_size=1, max_size=20), st.data())
def test_a_word_with_one_letter_too_many_is_found(known: list[str], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(known))
    place = data.draw(st.integers(0, len(word)))
    wrong = word[:place] + "Z" + word[place:]
    assert closest(word.upper(), known) is not None
    assert closest(wrong, known) is not None
    assert closest(wrong, [word]) == word
    assert close_id(wrong, [pa.array([*known, None])]) == f"; did you mean {closest(wrong, known)!r}?" or (
        close_id(wrong, [pa.array([word])]) == f"; did you mean {word!r}?"
    )


def test_words_that_are_only_a_little_alike_are_not_suggested() -> None:
    assert closest("version", Config.model_fields) is None
    assert suggestion("x", ["a", "b"]) == "there are a, b"
    assert suggestion("x", map(str, range(50))).endswith("18, 19, ...")
    with pytest.raises(ConfigError, match="version: unknown key; known keys: entities"):
        load(None, ["output=x", "relations=[]", "version=1"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("neighbours", "neighbors"), ("predct", "predict"), ("fold_in", "fold-in"), ("evaluat", "evaluate")],
)
def test_a_misspelt_command(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(main.command, typed, "x") == 2
    assert f"Did you mean {meant!r}?" in capsys.readouterr().err


def test_an_id_among_very_many_takes_bounded_work() -> None:
    ids = pa.array([f"user_{number}" for number in range(50_000)])
    batches = iter([ids] * 100)
    assert close_id("user_49999x", batches) == "; did you mean 'user_49999'?"
    assert next(batches, None) is not None  # the rest is not read
    assert close_id("Debian", iter([pa.array(["x", "DEBIAN", "debia"])])) == "; did you mean 'DEBIAN'?"
    assert close_id("x" * 2000, iter([pa.array(["x" * 1999])])) == ""  # it takes the square of the length
    assert close_id("é", iter([pa.array(["e", None], pa.string())])) == ""
    assert close_id("", iter([ids[:10]])) == ""
