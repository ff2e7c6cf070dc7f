"""New ids of a delta have rows of a fold-in; rows follow their ids after etl has left some out."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from etl import job as etl_job
from graphmill.ask.fold_in.new_edges import NewEdges
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.errors import FormatError
from graphmill.library.fold_in import FoldIn
from tests.train.deltas import KINDS, Edge, TwoDays, check_still, ends_of, is_old, old_edges, state_of
from tests.train.vectors import write_vectors
from train import job
from train.tables import folded_rows, folding

pytestmark = pytest.mark.slow
ONE_TYPE: dict[str, Any] = {
    "entities": {"node": {"num_partitions": 1}},
    "relations": [{"name": "all", "lhs": "node", "rhs": "node", "operator": "complex_diagonal"}],
    "dynamic_relations": True,
    "global_emb": False,
}
# Relations that the first day does not have, to old and to new ids.
NEW_RELATIONS = [("u40", "met", "u41"), ("u40", "met", "v1"), ("x0", "met", "u3"), ("x0", "met", "x1")]


def global_of(config: Config, name: str) -> Any:
    state, _, _ = pbg.read_model(config.checkpoint_path, pbg.read_version(config.checkpoint_path))
    found = state.get(f"global_embs.emb_{name}")
    return 0 if found is None else found.numpy()


def type_of(config: Config, edge: Edge, place: int) -> str:
    return "node" if config.dynamic_relations else KINDS[edge[1]][place]


def new_ids(config: Config, edges: list[Edge]) -> Counter[tuple[str, str]]:
    """New ids by type, and for each the number of its edges with old ids, by relations of the first day."""
    found = Counter[tuple[str, str]]()
    for edge in edges:
        for place, own, other in ((0, edge[0], edge[2]), (1, edge[2], edge[0])):
            if not is_old(own):
                found[type_of(config, edge, place), own] += is_old(other) and edge[1] in KINDS
    return found


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> TwoDays:
    """The graph with two partitions, whose first day is trained."""
    return TwoDays(tmp_path_factory.mktemp("two-days"), near_client, partitions=2).trained()


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_those_of_a_fold_in(tmp_path: Path, two_days: TwoDays, dynamic: bool) -> None:
    days = two_days
    if dynamic:
        days = TwoDays(tmp_path, two_days.client, more=NEW_RELATIONS, **ONE_TYPE).trained()
    first, second = days.config("one"), days.second()
    figures = job.run(second, days.client)
    assert not Path(second.checkpoint_path, "folded").exists()
    solvable = [edge for edge in days.new if edge[1] in KINDS]
    expected = {(each.type, each.id): each for each in FoldIn(first, first.embedding_path)(solvable)}
    counts = new_ids(second, days.new)
    before, after = state_of(first), state_of(second)
    assert after.keys() - before.keys() == counts.keys()
    for key, num_edges in counts.items():
        row, sums = after[key]
        if key in expected:
            assert expected[key].num_edges == num_edges
            found = row + global_of(first, key[0])
            assert found == pytest.approx(expected[key].embedding, abs=1e-2), key
        assert np.isfinite(row).all()
        assert np.isfinite(sums)
        assert sums > 0
    told = {}
    for name in {name for name, _ in counts}:
        own = [count for (each, _), count in counts.items() if each == name]
        told[name] = {
            "num_new": len(own),
            "num_edges": sum(own),
            "num_without_edges": sum(not count for count in own),
        }
    assert figures["delta"] == {"replay": 1.0, "new_ids": told}


def test_only_edges_between_new_ids(tmp_path: Path, near_client: distributed.Client) -> None:
    """There is nothing to train, and nothing moves; the new ids have a row of their own all the same."""
    second = [("w0", "knows", "w1"), ("w1", "saw", "k0")]
    days = TwoDays(tmp_path, near_client, partitions=2, second=second)
    first, config = days.train_first(), days.second()
    figures = job.run(config, near_client)
    assert figures["num_edges"] == 0
    assert figures["delta"]["new_ids"]["user"] == {"num_new": 2, "num_edges": 0, "num_without_edges": 2}
    check_still(first, config, [])
    after = state_of(config)
    for key in (("user", "w0"), ("user", "w1"), ("item", "k0")):
        assert np.isfinite(after[key][0]).all()


def test_new_ids_of_partitions_that_were_empty(tmp_path: Path, near_client: distributed.Client) -> None:
    """Two items in four partitions; the next day all partitions have some."""
    first = [edge for edge in old_edges() if edge[1] != "saw"]
    first += [(f"u{n}", "saw", f"i{n % 2}") for n in range(60)]
    second = [(f"u{n}", "saw", f"j{n}") for n in range(30)]
    days = TwoDays(tmp_path, near_client, partitions=4, first=first, second=second).trained()
    job.run(days.second(), near_client)
    after = state_of(days.second())
    assert len(after) > 60 + 2 + 30
    for key, numbers in after.items():
        assert all(np.isfinite(each).all() for each in numbers), key


def test_types_with_given_vectors_are_trained(tmp_path, two_days, rng):
    """New users start from what users give, and their edges are trained; new items are folded in."""
    users = [f"v{number}" for number in range(4)]
    given = rng.normal(size=(4, 8))
    write_vectors(tmp_path / "users.parquet", users, given)
    train = {"init_embeddings": {"user": str(tmp_path / "users.parquet")}}
    config, still = two_days.second("given", train=train), two_days.second("still", lr=1e-12, train=train)
    figures = [job.run(each, two_days.client) for each in (config, still)]
    assert set(figures[0]["delta"]["new_ids"]) == {"item", "city"}
    moved, start = state_of(config), state_of(still)
    for user in users:
        assert np.abs(moved["user", user][0] - start["user", user][0]).max() > 1e-3
    trained = sum(is_old(rhs) or rhs[0] in "vw" for _, _, rhs in two_days.new)
    assert figures[0]["epochs"][0]["edges"] == trained * 2


def test_rows_are_made_anew_for_other_inputs(two_days: TwoDays) -> None:
    """First rows of a run that was stopped before its first version."""
    first = two_days.train_first(name="trained-again")
    config = two_days.second("anew", init_path=first.checkpoint_path)
    folder = Path(config.checkpoint_path, "folded")

    def made() -> dict[Path, tuple[int, bytes]]:
        folded_rows.make(config, two_days.client)
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.parquet")}

    before = made()
    assert len(before) > 3
    assert made() == before
    shutil.rmtree(first.checkpoint_path)
    two_days.train_first(name="trained-again", seed=7)
    after = made()
    assert after.keys() == before.keys()
    assert all(after[path][1] != before[path][1] for path in before)


LONELY: list[Edge] = [(f"u9{n:02}", "saw", f"i9{n:02}") for n in range(40)]
NEXT: list[Edge] = [
    *((f"u{n}", "saw", f"i{39 - n}") for n in range(12)),
    *((f"u{n}", "knows", f"u{59 - n}") for n in range(4)),
    *(("x0", "saw", f"i{n}") for n in range(0, 40, 6)),
    *((f"u{n}", "saw", "y0") for n in range(5, 60, 6)),
    ("x0", "lives", "c3"),
]


class Days(TwoDays):
    """Four days: on the third the first file is gone, on the fourth its ids are forgotten."""

    def __init__(self, root: Path, client: Any, partitions: int) -> None:
        old = old_edges()
        pairs = zip(LONELY, old[: 2 * len(LONELY) : 2], old[1 : 2 * len(LONELY) : 2], strict=True)
        first = [edge for three in pairs for edge in three] + old[2 * len(LONELY) :]
        super().__init__(root, client, partitions=partitions, first=first)
        (root / "raw/edges/day0.parquet").unlink()
        self.third = self.config("three", "two", init_path=None, **self.dated(1))
        etl_job.run(self.third, client)
        self._write("z-next", NEXT, 4)
        self.last = self.fourth()
        self.figures = etl_job.run(self.last, client)

    def fourth(self, name: str | None = None, **settings: Any) -> Any:
        return self.config("four", "three", name, **self.dated(2), **settings)

    def dated(self, day: int) -> dict[str, Any]:
        return {"schedule": {"date": f"2026-03-{day:02}"}, "etl": {"forget_after": 1}}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> Days:
    found = Days(tmp_path_factory.mktemp("days"), near_client, partitions=2)
    job.run(found.third, near_client)
    return found


def test_a_warm_start_leaves_them_out(days: Days) -> None:
    config = days.fourth("warm", lr=1e-12, num_epochs=1)
    job.run(config, days.client)
    before, after = state_of(days.third), state_of(config)
    forgotten = {end for edge in LONELY for end in ends_of([edge], known=False)}
    assert days.figures["num_entities_forgotten"] == {"user": 40, "item": 40, "city": 0}
    assert days.figures["delta"] is not None
    assert before.keys() - after.keys() == forgotten
    assert after.keys() - before.keys() == {("user", "x0"), ("item", "y0")}
    for key in before.keys() & after.keys():
        assert np.abs(before[key][0] - after[key][0]).max() < 1e-6, key


def test_a_delta_moves_few_and_folds_in_the_new(days: Days) -> None:
    config = days.fourth("delta", train={"replay": 1.0})
    folded_rows.make(config, days.client)
    made = Path(config.checkpoint_path, "folded").rglob("*.parquet")
    assert sorted(path.parent.name for path in made) == ["item", "user"]  # of partitions with new rows alone
    figures = job.run(config, days.client)
    assert figures["delta"]["new_ids"]["user"] == {"num_new": 1, "num_edges": 8, "num_without_edges": 0}
    before, after = state_of(days.third), state_of(config)
    new = {("user", "x0"), ("item", "y0")}
    moved = ends_of([edge for edge in NEXT if edge[0] != "x0" and edge[2] != "y0"], known=False)
    for key in after.keys() - new:
        assert (before[key][0].tobytes() == after[key][0].tobytes()) == (key not in moved), key
    expected = {(each.type, each.id): each for each in FoldIn(days.third, days.third.embedding_path)(NEXT)}
    for key in new:
        found = after[key][0] + global_of(days.third, key[0])
        assert found == pytest.approx(expected[key].embedding, abs=1e-2), key


def test_of_many_edges_some_are_drawn() -> None:
    number_E = np.arange(302)
    edges = NewEdges((number_E >= 300).astype(int), *[number_E] * 5)
    kept = folding._limited(edges, 0)
    assert np.bincount(kept.id_E).tolist() == [folding.MAX_EDGES, 2]
    assert (np.diff(kept.known_E) > 0).all()
    assert kept.known_E.max() == 301 > kept.known_E[255] > 255


def test_another_checkpoint_is_refused(days: Days) -> None:
    """It has the rows of the first day, not those of the third."""
    wrong = days.fourth("wrong", init_path=days.train_first().checkpoint_path)
    with pytest.raises(FormatError, match=r"expected \d+ rows, as the entities have .* set init_path"):
        job.run(wrong, days.client)
