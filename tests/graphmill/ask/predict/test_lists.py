"""Answers of lists: all lists give the exact ones, some give the wanted recall; cosines; kills."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from distributed import Client
from numpy.random import Generator

from graphmill import report, storage
from graphmill.ask import given
from graphmill.ask.predict import job, lists, make_lists, search
from graphmill.ask.predict.answers import IdChunk, joined, write_answers
from graphmill.ask.predict.make_lists import make_lists as make
from graphmill.ask.predict.search import Asked, search_lists
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.scan import WIDTH
from graphmill.errors import FormatError
from graphmill.library.run import Run
from graphmill.run import work
from graphmill.run.record import notes_of
from graphmill.vocab import Side
from tests.commands import Command
from tests.contents import contents
from tests.graphmill.ask.predict.world import World, asked, assert_equal, read_answers, write_world
from tests.pairs import pairs

pytest.importorskip("faiss", reason="pip install 'graphmill[neighbors]'")
COUNTS = {"user": [70, 0, 80], "item": [5000, 10, 700]}


def with_lists(what: Asked, folder: Path, near_client: Client, num_lists: int = 16) -> lists.Lists:
    return make(what, num_lists, str(folder), {"of": "the test"}, near_client)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comparator", "exclude_known", "relation"),
    pairs(["dot", "cos", "l2", "squared_l2"], [False, True], ["likes", "follows"]),
)
def test_all_lists_give_the_exact_answers(
    tmp_path, near_client, monkeypatch, comparator, exclude_known, relation
):
    if exclude_known:
        monkeypatch.setattr(search, "WINDOW_BYTES", 4 * 6 * 100)  # lists are read in pieces
    counts = COUNTS if relation == "likes" else {"user": COUNTS["item"], "item": [5]}
    world = write_world(tmp_path, counts=counts, operator="affine", comparator=comparator, loops=False)
    for side in Side:
        question = PredictOptions(relation=relation, side=side, k=30, exclude_known=exclude_known)
        what = asked(world.config, question)
        sizes = replace(what.sizes, candidate_rows=WIDTH)  # several blocks, and several parts
        made = with_lists(replace(what, sizes=sizes), tmp_path / f"{side}", near_client)
        number_U = np.arange(what.queries.num_entities)[:50]
        expected, num_known = what.search_all(number_U)
        every = replace(made, num_probed=made.num_lists)
        for known_edges in (what.sizes.known_edges, 3):  # 3: queries are divided, down to exact ones
            small = replace(what, sizes=replace(sizes, known_edges=known_edges))
            found, found_known = search_lists(small, every, number_U)
            assert found_known == num_known
            np.testing.assert_array_equal(found.query, expected.query)
            np.testing.assert_allclose(found.score, expected.score, rtol=1e-4, atol=1e-3)
            assert (found.candidate == expected.candidate).mean() > 0.99  # nearly equal scores may swap
        few, _ = search_lists(what, replace(made, num_probed=2), number_U)
        assert not np.array_equal(few.candidate, expected.candidate)


def test_lists_hold_every_candidate_once(tmp_path: Path, near_client: Client) -> None:
    world = write_world(tmp_path / "run", counts=COUNTS)
    what = asked(world.config, PredictOptions(relation="likes"))
    what = replace(what, sizes=replace(what.sizes, candidate_rows=WIDTH))
    made = with_lists(what, tmp_path / "lists", near_client, 4)  # lists larger than a part
    assert len(made.part_first) - 1 == 4
    first_L1, numbers = made.first(), []
    for part in range(len(made.part_first) - 1):
        for _, vectors_ND, own in made.windows(part, 700):
            np.testing.assert_array_equal(vectors_ND, what.made_candidates(own))
            numbers.append(own)
    every = np.concatenate(numbers)
    np.testing.assert_array_equal(np.sort(every), np.arange(5710))
    np.testing.assert_array_equal(every[made.places(np.arange(5710))], np.arange(5710))
    assert (first_L1[0], first_L1[-1]) == (0, 5710)
    assert not storage.exists(storage.join(made.folder, lists.BLOCKS))


@pytest.mark.slow
@pytest.mark.parametrize(("num_partitions", "method"), [(1, "--exact"), (3, "--approximate")])
def test_cosines(tmp_path: Path, predict: Command, num_partitions: int, method: str) -> None:
    world = write_world(tmp_path / "run", num_partitions=num_partitions)
    out = tmp_path / "out"
    recall = ["--recall", 1] if method == "--approximate" else []
    run = ["--cosine", method, *recall]
    assert predict(*run, "--type", "user", "--k", 1000) == 0
    assert_equal(read_answers(out), world.cosines("user", "user", 1000))  # the id itself is left out
    assert predict(*run, "--type", "user", "--candidates", "item", "--k", 4) == 0
    assert_equal(read_answers(out), world.cosines("user", "item", 4))
    figures = json.loads((out / "_predict.json").read_text())
    assert (figures["cosine"], figures["candidate_type"]) == (True, "item")
    assert figures["method"] == method.removeprefix("--")
    assert "num_known_left_out" not in figures
    chosen = [world.name("item", number) for number in (7, 2)]
    (tmp_path / "ids").write_text("\n".join(chosen))
    assert predict(*run, "--type", "item", "--k", 3, "--ids", tmp_path / "ids") == 0
    best = world.cosines("item", "item", 3)
    assert_equal(read_answers(out), {(each, rank): best[each, rank] for each in chosen for rank in (1, 2, 3)})
    assert not list(tmp_path.glob(".out*"))


def clustered(world: World, rng: Generator) -> None:
    """Give the run vectors in a hundred groups."""
    means = 3 * rng.standard_normal((100, 6))
    for name, counts in world.counts.items():
        num = sum(counts)
        rows = means[rng.integers(0, 100, num)] + rng.standard_normal((num, 6))
        world.write_rows(name, rows.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "comparator"), [(0.8, "dot"), (0.97, "l2")])
def test_the_recall_is_as_wanted(tmp_path, predict, rng, wanted, comparator, capsys):
    world = write_world(tmp_path / "run", counts={"user": [900], "item": [20_000]}, comparator=comparator)
    clustered(world, rng)
    ask = ["--relation", "likes", "--k", 10, "--exclude-known"]
    assert predict(*ask, "--exact", to="exact") == 0
    assert predict(*ask, "--approximate", "--recall", wanted, to="lists") == 0
    exact, found = read_answers(tmp_path / "exact"), read_answers(tmp_path / "lists")
    assert exact.keys() == found.keys()
    pairs = [{(key[0], name) for key, (name, _) in each.items()} for each in (exact, found)]
    recall = len(pairs[0] & pairs[1]) / len(pairs[0])
    figures = json.loads((tmp_path / "lists/_predict.json").read_text())
    assert recall >= wanted
    assert figures["recall"] == pytest.approx(recall, abs=0.03)
    assert figures["num_probed"] < figures["num_lists"] == 128
    text = capsys.readouterr()
    assert f"{figures['recall']:.4f} ±" in text.out + text.err
    told = notes_of(str(tmp_path / "run"), "predict")
    assert [Path(each["to"]).name for each in told] == ["exact", "lists"]
    assert [each["method"] for each in told] == ["exact", "approximate"]
    page = Path(report.write(Run(str(tmp_path / "run")))).read_text()
    assert f"{figures['recall']:.4f} ±" in page
    assert f"{figures['num_probed']} of 128" in page


def test_exact_where_that_is_faster(tmp_path: Path, predict: Command, caplog: Any) -> None:
    write_world(tmp_path / "run")
    caplog.set_level("INFO")
    assert predict("--relation", "likes") == 0
    assert "exact: approximate answers would take longer" in caplog.text
    assert json.loads((tmp_path / "out/_predict.json").read_text())["method"] == "exact"


@pytest.mark.slow
def test_an_index_is_used_again(tmp_path: Path, predict: Command, caplog: Any) -> None:
    write_world(tmp_path / "run", num_partitions=3)
    caplog.set_level("INFO")
    ask = ["--cosine", "--type", "item", "--approximate", "--index", tmp_path / "index"]
    assert predict(*ask, "--k", 3, to="one") == 0
    before = contents(tmp_path / "index")
    assert predict(*ask, "--k", 5, to="two") == 0
    assert "are used again" in caplog.text
    assert contents(tmp_path / "index") == before
    ask[2] = "user"
    assert predict(*ask, "--k", 5, to="three") == 0  # lists of something else: made anew
    assert contents(tmp_path / "index") != before
    assert """index are of something else (type: "item" -> "user"), and are made anew""" in caplog.text


@pytest.mark.slow
def test_an_index_with_another_bias_is_not_used(tmp_path: Path, predict: Command) -> None:
    write_world(tmp_path / "run", comparator="cos")
    ask = ["--relation", "likes", "--k", 5]
    lists = ["--approximate", "--recall", 1, "--index", tmp_path / "index"]
    assert predict(*ask, *lists, to="without") == 0
    assert predict(*ask, *lists, "--set", "bias=true", to="with") == 0
    assert predict(*ask, "--exact", "--set", "bias=true", to="exact") == 0
    assert_equal(read_answers(tmp_path / "with"), read_answers(tmp_path / "exact"))


class Killed(BaseException):
    """Stands for a kill of the driver: nothing is cleaned up."""


def test_what_a_killed_command_left_with_another_comparator_is_deleted(tmp_path, near_client, monkeypatch):
    world = write_world(tmp_path / "run")
    question, to = PredictOptions(relation="likes", k=3), str(tmp_path / "out")
    monkeypatch.setattr(work, "complete", Mock(side_effect=Killed))
    with pytest.raises(Killed):
        job.run(world.config, question, to, near_client)
    monkeypatch.undo()
    other = world.config.model_copy(update={"comparator": "l2"})
    job.run(other, question, to, near_client)
    job.run(other, question, str(tmp_path / "expected"), near_client)
    assert_equal(read_answers(tmp_path / "out"), read_answers(tmp_path / "expected"))


def test_damaged_lists_are_refused(tmp_path: Path, near_client: Client) -> None:
    world = write_world(tmp_path / "run")
    what = asked(world.config, PredictOptions(relation="likes", exclude_known=True))
    made = replace(with_lists(what, tmp_path / "lists", near_client, 4), num_probed=4)
    for name, dataset in (("part-00000", "vectors"), ("centers", "centers"), ("places-00000", "places")):
        path = tmp_path / f"lists/{name}.h5"
        whole = path.read_bytes()
        with h5py.File(path) as hdf5:
            chunk = hdf5[dataset].id.get_chunk_info(0)
        changed = bytearray(whole)
        changed[chunk.byte_offset + chunk.size // 2] ^= 1
        for content in (whole[:100], changed):
            path.write_bytes(content)
            with pytest.raises(FormatError, match=rf"{name}\.h5.*(damaged|part)"):
                search_lists(what, made, np.arange(3))
        path.write_bytes(whole)
    for text in ("{}", '{"block_first": [0, 30], "part_first": []}', '{"block_first": 1, "part_first": [0]}'):
        (tmp_path / "lists" / lists.LISTS).write_text(text)
        with pytest.raises(FormatError, match=r"lists\.json: expected .*; delete it"):
            lists.open_lists(made.folder, {"of": "the test"})


def test_sizes_are_kept_small() -> None:
    """The sample of the centers fits in half the memory, whatever the number of candidates."""
    for memory_bytes in (16 << 20, 512 << 20):
        rows = make_lists.ROWS_PER_LIST * make_lists.num_lists_for(10**9, 100, memory_bytes)
        assert rows * 8 * 100 <= memory_bytes // 2
    assert make_lists.num_lists_for(10_000_000, 100, 512 << 20) == 4096


def test_joined_queries_have_the_same_answers(tmp_path: Path) -> None:
    world = write_world(tmp_path / "run")
    what = asked(world.config, PredictOptions(relation="likes", k=3))
    chosen = [world.name("user", number) for number in (15, 3, 8, 0, 2, 7, 11, 4)]
    (tmp_path / "ids").write_text("\n".join(chosen))
    (piece,) = given.cut(given.iter_ids(str(tmp_path / "ids")), str(tmp_path / "given"), 100, 1 << 20)
    piece = job.find_ids(what.queries, piece, 3)["uri"]
    chunks = [IdChunk(start, min(start + 3, 8), piece, group) for group, start in enumerate((0, 3, 6))]
    found = joined([*chunks, IdChunk(0, 5), IdChunk(5, 10), IdChunk(10, 16)], 6)
    sizes = [each.stop - each.start for each in found]
    assert sizes == [6, 2, 5, 5, 6]
    assert joined([IdChunk(0, 5), IdChunk(5, 10)], 10) == [IdChunk(0, 10, num_groups=2)]
    for number, each in enumerate(found[:2]):
        write_answers(what, each, str(tmp_path / f"part-{number}.parquet"))
    best = world.best(0, Side.RHS, 3)
    expected = {(name, rank): best[name, rank] for name in chosen for rank in (1, 2, 3)}
    assert_equal(read_answers(tmp_path), expected)
