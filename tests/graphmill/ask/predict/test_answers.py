"""Answers equal those of a sort of the whole matrix of scores, whatever the sizes of the blocks.

Those of a GPU do too, ties in the same order; without one, the CPU stands for it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.random import Generator

from graphmill.ask.predict.answers import IdChunk, write_answers
from graphmill.ask.predict.search import Sizes, sizes_for
from graphmill.ask.predict.settings import PredictOptions
from graphmill.ask.scan import WIDTH, TopK, made
from graphmill.errors import ConfigError, FormatError
from graphmill.model.operators import OPERATORS
from graphmill.vocab import Side
from tests.graphmill.ask.predict.world import COUNTS, KINDS, asked, assert_equal, read_answers, write_world
from tests.pairs import pairs

SMALL = Sizes(queries=3, candidate_rows=WIDTH, known_edges=4, pairs=5)
MIXED = {"user": [7, 0, 9], "item": [30]}  # a type with one partition beside one with several


def answers(world, folder, question, sizes=None, num_gpus=0):
    """The answers for all ids, and the figures of all tasks."""
    what = asked(world.config.model_copy(update={"num_gpus": num_gpus}), question)
    what = replace(what, sizes=sizes) if sizes else what
    folder.mkdir()
    figures = []
    for number, start in enumerate(range(0, what.queries.num_entities, what.sizes.queries)):
        chunk = IdChunk(start, min(start + what.sizes.queries, what.queries.num_entities))
        figures.append(write_answers(what, chunk, str(folder / f"part-{number:05d}.parquet")))
    counts = ("num_answers", "num_known_left_out")
    return read_answers(folder), {key: sum(each[key] for each in figures) for key in counts}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_best_of_all_scores(tmp_path: Path, kind: str, operator: str) -> None:
    world = write_world(tmp_path / "run", operator=operator, **KINDS[kind])
    relation, name = (2, "buys") if kind == "dynamic" else (0, "likes")
    comparators = ("dot", "cos", "l2", "squared_l2") * 2
    for side, comparator in zip(Side, comparators[list(OPERATORS).index(operator) % 4 :], strict=False):
        bias = comparator in ("dot", "cos") and side is Side.RHS
        world.config = world.config.model_copy(update={"comparator": comparator, "bias": bias})
        found, _ = answers(world, tmp_path / f"{side}", PredictOptions(relation=name, side=side, k=8))
        assert_equal(found, world.best(relation, side, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "name", "counts", "loops", "comparator", "num_gpus"),
    pairs(
        list(Side), ["likes", "follows"], [COUNTS[1], COUNTS[3], MIXED], [False, True], ["dot", "cos"], [0, 1]
    ),
)
def test_known_edges_are_no_answers(tmp_path, gpus, side, name, counts, loops, comparator, num_gpus):
    world = write_world(tmp_path / "run", counts=counts, loops=loops, comparator=comparator)
    relation = ["likes", "follows"].index(name)
    known = world.pairs(relation, side)
    question = PredictOptions(relation=name, side=side, k=1000, exclude_known=True)
    expected = world.best(relation, side, 1000, known)
    sizes = SMALL if len(counts["user"]) > 1 else None
    found, figures = answers(world, tmp_path / "out", question, sizes, num_gpus)
    assert (gpus != []) == num_gpus
    assert_equal(found, expected)
    num_known = sum(query != each or world.may_be_itself(relation) for query, each in known)
    assert figures == {"num_answers": len(expected), "num_known_left_out": num_known}


@pytest.mark.slow
@pytest.mark.parametrize(("side", "num_partitions", "loops"), pairs(list(Side), [1, 3], [False, True]))
def test_an_id_is_its_own_answer_where_training_has_a_loop(tmp_path, side, num_partitions, loops):
    """Loops of the test split do not count."""
    world = write_world(tmp_path / "run", num_partitions=num_partitions, loops=loops, operator="none")
    assert world.may_be_itself(1) == loops
    sizes = SMALL if num_partitions > 1 else None
    found, _ = answers(world, tmp_path / "out", PredictOptions(relation="follows", side=side, k=5), sizes)
    assert any(query == candidate for (query, _), (candidate, _) in found.items()) == loops
    assert_equal(found, world.best(1, side, 5))
    question = PredictOptions(relation="follows", side=side, k=5, with_itself=True)
    assert_equal(answers(world, tmp_path / "with", question, sizes)[0], world.best(1, side, 5, itself=True))


@pytest.mark.parametrize("comparator", ["l2", "squared_l2"])
def test_distances_of_near_vectors_are_exact(tmp_path: Path, comparator: str) -> None:
    """|a|^2 + |b|^2 - 2ab would lose them in float32."""
    world = write_world(tmp_path / "run", operator="none", comparator=comparator, global_emb=False)
    steps = np.random.default_rng(1).permutation(46).reshape(-1, 1) / 1000
    for name, near in (("user", 10 + steps[:16]), ("item", 10 + steps[16:])):
        world.vectors[name][:] = near
        world.write_rows(name, world.vectors[name])
    found, _ = answers(world, tmp_path / "out", PredictOptions(relation="likes", side=Side.RHS, k=30))
    best = world.best(0, Side.RHS, 30)
    scores = [score for _, score in best.values()]
    assert [score for _, score in found.values()] == pytest.approx(scores, rel=1e-5)
    assert [name for name, _ in found.values()] == [name for name, _ in best.values()]


@pytest.mark.parametrize("comparator", ["cos", "l2"])
def test_sizes_of_blocks_change_no_bit(tmp_path: Path, comparator: str) -> None:
    counts = {"user": [150], "item": [2 * WIDTH + 77, 5]}
    world = write_world(tmp_path / "run", operator="linear", comparator=comparator, counts=counts)
    question = PredictOptions(relation="likes", side=Side.RHS, k=20, exclude_known=True)
    large, _ = answers(world, tmp_path / "large", question)
    small, _ = answers(world, tmp_path / "small", question, replace(SMALL, queries=53))
    assert list(small.items()) == list(large.items())
    assert len(large) == 150 * 20


@pytest.mark.parametrize(
    ("counts", "num_gpus"), [({"user": [0, 0], "item": [5]}, 0), ({"user": [3], "item": [0]}, 1)]
)
def test_a_type_without_entities_has_no_answers(tmp_path, gpus, counts, num_gpus):
    world = write_world(tmp_path / "run", counts=counts, num_gpus=num_gpus)
    what = asked(world.config, PredictOptions(relation="likes", side=Side.RHS, k=5, exclude_known=True))
    uri = str(tmp_path / "part-00000.parquet")
    figures = write_answers(what, IdChunk(0, sum(counts["user"])), uri)
    assert (figures["num_answers"], figures["num_known_left_out"]) == (0, 0)
    assert read_answers(tmp_path) == {}
    assert pq.read_schema(uri).names == ["id", "relation", "rank", "candidate", "score"]


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_many_known_edges_are_read_in_several_passes(tmp_path: Path, gpus: list[int], num_gpus: int) -> None:
    counts = {"user": [4], "item": [2 * WIDTH + 10]}
    world = write_world(tmp_path / "run", counts=counts)
    question = PredictOptions(relation="likes", side=Side.RHS, k=4200, exclude_known=True)
    sizes = Sizes(queries=4, candidate_rows=WIDTH * (1 if num_gpus else 3), known_edges=2, pairs=1)
    found, figures = answers(world, tmp_path / "out", question, sizes, num_gpus)
    known = world.pairs(0, Side.RHS)
    assert figures["num_known_left_out"] == len(known) > sizes.known_edges
    assert {(key[0], name) for key, (name, _) in found.items()} == {
        (world.name("user", user), world.name("item", item))
        for user in range(4)
        for item in range(2 * WIDTH + 10)
        if (user, item) not in known
    }


@pytest.mark.parametrize(("distinct_scores", "k"), [(1, 1), (18, 25), (1000, 690), (1, 690), (1000, 25)])
def test_best_of_candidates_in_any_order(rng: Generator, distinct_scores: int, k: int) -> None:
    score_PN = (rng.integers(0, distinct_scores, (6, 700)) - distinct_scores // 2).astype(np.float32) / 8
    score_PN[score_PN == 0] *= rng.choice([-1.0, 1.0], (score_PN == 0).sum())  # 0 and -0 are equal
    score_PN[rng.random(score_PN.shape) < 0.1] = -np.inf
    candidate_N = np.sort(rng.choice(1 << 50, 700, replace=False))
    best = TopK(6, k)
    for columns in np.array_split(rng.permutation(700), 9):
        for rows in (np.array([0, 2, 3]), np.array([1, 4, 5])):
            best.add(rows, score_PN[np.ix_(rows, columns)].copy(), candidate_N[columns])
        found = best.result()
    order = np.argsort(-score_PN, axis=1, kind="stable")[:, :k]
    query, place = np.nonzero(np.take_along_axis(score_PN, order, axis=1) > -np.inf)
    np.testing.assert_array_equal(found.query, query)
    np.testing.assert_array_equal(found.place, place)
    np.testing.assert_array_equal(found.cut(3).candidate, found.candidate[place < 3])
    np.testing.assert_array_equal(found.candidate, candidate_N[order[query, place]])
    np.testing.assert_array_equal(found.score, score_PN[query, order[query, place]])


@pytest.mark.parametrize("comparator", ["dot", "cos"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, comparator: str) -> None:
    """With cos, a vector that is too long for its square would become zero."""
    world = write_world(tmp_path / "run", comparator=comparator)
    for wrong in (np.nan, np.inf, 1e30):
        rows = np.zeros_like(world.vectors["item"])
        rows[17, 2] = wrong
        world.write_rows("item", rows)
        with pytest.raises(FormatError, match="'item', partition 0: vectors or parameters are not finite"):
            answers(world, tmp_path / f"{wrong}", PredictOptions(relation="likes", side=Side.RHS, k=3))
    with pytest.raises(FormatError, match="here: vectors or parameters are not finite"):
        made(lambda tile_ND: tile_ND * np.float32(1e30), np.ones((2, 3), np.float32), 4, "here")


def test_sizes_follow_the_memory() -> None:
    for memory_bytes in (16 << 20, 512 << 20):
        sizes = sizes_for(memory_bytes, 100, 1_000_000, 100)
        assert sizes.candidate_rows % WIDTH == 0 < sizes.candidate_rows
        assert sizes.candidate_rows * 100 * 12 <= memory_bytes // 4
        assert 0 < sizes.queries * (100 * 8 + 100 * 40) <= memory_bytes // 2
    with pytest.raises(ConfigError, match=r"--task-memory: expected \d+MiB at least.*1000000 answers"):
        sizes_for(16 << 20, 100, 1_000_000, 1_000_000)
    with pytest.raises(ConfigError, match="vectors of length 100000"):
        sizes_for(64 << 20, 100_000, 1000, 1)


@pytest.mark.parametrize(("comparator", "bias"), [("l2", False), ("squared_l2", False), ("dot", True)])
def test_other_scores_than_products_stay_on_the_cpu(tmp_path, gpus, comparator, bias):
    world = write_world(tmp_path / "run", comparator=comparator, bias=bias)
    question = PredictOptions(relation="likes", side=Side.LHS, k=5)
    assert answers(world, tmp_path / "out", question, None, 1) == answers(world, tmp_path / "cpu", question)
    assert gpus == []
