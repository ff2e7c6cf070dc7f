"""`graphmill.open`: a run as an object, its vectors as columns, and the nearest rows."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphmill
from graphmill.ask.neighbors import nearest
from graphmill.ask.principal import Components, Moments, moments_of
from graphmill.errors import BadInputError, ConfigError, NotFoundError
from graphmill.formats import remapped
from graphmill.library.run import Run
from tests.graphmill.ask.fold_in.test_fold_in import write_edges
from tests.graphmill.ask.predict.world import DIMENSION, World, write_world

NUM_USERS = 16


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run, one type of it in two partitions, with the embeddings that remap would write."""
    world = write_world(tmp_path / "run", counts={"user": [8, 8], "item": [30]})
    world.publish(world.config.embedding_path)
    return world


@pytest.fixture
def output(world: World) -> Path:
    return Path(world.config.output)


def test_a_run_shows_its_record_and_its_embeddings(output: Path) -> None:
    record = json.loads((output / "run.json").read_text()) | {"status": "done", "metrics": {"mrr": 0.25}}
    (output / "run.json").write_text(json.dumps(record | {"stages": {"etl": {"num_rows": 7}}}))
    run = graphmill.open(str(output))
    assert run.entity_types == ("user", "item")
    assert run.num_entities == {"user": NUM_USERS, "item": 30}
    assert run.dimension("user") == DIMENSION
    assert (run.status, run.metrics, run.stages["etl"]["num_rows"]) == ("done", {"mrr": 0.25}, 7)
    assert "user: 16" in repr(run)
    for same in (output, output / "run.json", str(output / "run.json")):
        assert graphmill.open(same).num_entities == run.num_entities


def test_embeddings_equal_the_files(output: Path, world: World) -> None:
    run = graphmill.open(str(output))
    table = run.embeddings("user")
    assert table.schema == remapped.schema(DIMENSION)
    assert table["id"].to_pylist() == list(world.by_id("user"))
    ids, found_ND = run.vectors("user")
    assert ids == table["id"].to_pylist()
    np.testing.assert_array_equal(found_ND, world.vectors["user"])
    frame = table.to_pandas()
    np.testing.assert_array_equal(np.stack(frame["embedding"]), world.vectors["user"])


def test_a_type_without_entities_is_empty(output: Path) -> None:
    with remapped.new_part(str(output / "embeddings"), "tag", 0, 3):
        pass
    run = graphmill.open(str(output))
    ids, found_ND = run.vectors("tag")
    assert (ids, found_ND.shape, found_ND.dtype) == ([], (0, 3), np.float32)
    assert (run.num_entities["tag"], len(run.embeddings("tag")), run.find("tag", ["t"])) == (0, 0, {})


@pytest.mark.slow
def test_a_lazy_table_has_one_partition_per_file(output: Path, world: World) -> None:
    lazy = graphmill.open(str(output)).lazy_embeddings("user")
    assert lazy.npartitions == 2
    whole = lazy.compute()
    assert whole["id"].tolist() == list(world.by_id("user"))
    np.testing.assert_array_equal(np.stack(whole["embedding"]), world.vectors["user"])
    lengths = lazy["embedding"].map_partitions(lambda each: each.map(len), meta=("n", "int64"))
    assert set(lengths.compute()) == {DIMENSION}


def test_a_lazy_table_without_pandas_names_the_extra(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.dataframe", None)
    with pytest.raises(ConfigError, match=r"pandas; pip install 'graphmill\[notebook\]'"):
        graphmill.open(str(output)).lazy_embeddings("user")


def test_the_first_rows_come_from_every_partition(output: Path, world: World) -> None:
    run = graphmill.open(str(output))
    found = [name for ids, _ in run.iter_vectors("user", max_rows=10) for name in ids.to_pylist()]
    assert found == [world.name("user", number) for number in (*range(5), *range(8, 13))]
    for num in (0, 1, 7, 12, 9999):
        assert sum(len(ids) for ids, _ in run.iter_vectors("user", max_rows=num)) == min(num, NUM_USERS)


def test_missing_types_and_ids_are_refused(output: Path, world: World) -> None:
    world.publish(world.config.embedding_path, {"item": world.vectors["item"][:, :4]})
    run, user, long = graphmill.open(str(output)), world.name("user", 1), "x" * 1_000_000
    for error, message, ask in (
        (NotFoundError, "'shop'; types: user, item", lambda: run.embeddings("shop")),
        (NotFoundError, "'shop'; types: user, item", lambda: run.features("shop", [user])),
        (NotFoundError, "None; types: user, item", lambda: run.vector(None, user)),
        (BadInputError, "batch_rows: expected 1 or more, found 0", lambda: next(run.iter_vectors("user", 0))),
        (BadInputError, "max_rows: expected 0 or more, found -1", lambda: run.vectors("user", max_rows=-1)),
        (NotFoundError, "^'x{78}…: there is no user", lambda: run.vector("user", long)),
        (BadInputError, "ids: expected several, .*, found 'x{78}…$", lambda: run.find("user", long)),
        (NotFoundError, "None: there is no user of that id among 16$", lambda: run.vector("user", None)),
        (NotFoundError, "'': there is no user of that id among 16$", lambda: run.vector("user", "")),
        (BadInputError, "ids: expected several", lambda: run.find("user", user)),
        (NotFoundError, "'me': there is no user of that id among 16", lambda: run.neighbors("user", "me")),
        (BadInputError, "length 6, item of 4", lambda: run.neighbors("user", user, among="item")),
        (BadInputError, "k: expected 1 or more, found 0", lambda: run.neighbors("user", user, 0)),
        (BadInputError, "k: expected 1 or more, found -1", lambda: run.neighbors("user", user, -1)),
        (BadInputError, "ids: expected strings or integers, found double", lambda: run.vector("user", 1.5)),
        (NotFoundError, r"nowhere: expected a run, found none", lambda: graphmill.open(f"{output}/nowhere")),
    ):
        with pytest.raises(error, match=message):
            ask()


def test_an_id_may_be_an_integer(tmp_path: Path, rng: np.random.Generator) -> None:
    vectors_ND = rng.normal(size=(3, 4)).astype(np.float32)
    for name in ("movie", "user"):
        with remapped.new_part(str(tmp_path / "embeddings"), name, 0, 4) as part:
            part.append(pa.array(["7", "12", str(2**64)]), vectors_ND)
    run = graphmill.open(str(tmp_path))
    assert run.neighbors("movie", 12, among="user")[0].id == "12"
    for twelve in (12, np.int64(12), "12"):
        np.testing.assert_array_equal(run.vector("movie", twelve), vectors_ND[1])
        assert run.neighbors("movie", twelve) == run.neighbors("movie", "12")
        assert run.find("movie", [twelve, twelve]).keys() == {"12"}
        assert run.features("movie", [7], similar_to=[twelve]).column_names[1] == "similarity_12"
    assert run.find("movie", [2**64, 12]).keys() == {"12", str(2**64)}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/was/here/vectors", "vectors"),  # of a run that has moved
        *((f"/{path}", "embeddings") for path in ("elsewhere/secret", "was/here/../secret", "was/hereafter")),
        ("/was/here/hdfs://there/x", "embeddings"),
    ],
)
def test_no_path_in_run_json_leads_out_of_the_folder(tmp_path: Path, path: str, found: str) -> None:
    config = {"output": "/was/here", "embedding_path": path}
    (tmp_path / "run.json").write_text(json.dumps({"config": config, "stages": {}}))
    assert Run(str(tmp_path)).embedding_path == str(tmp_path / found)
    assert Run(str(tmp_path), "/chosen").embedding_path == "/chosen"


def test_like_a_left_join(tmp_path: Path, world: World) -> None:
    run = graphmill.open(str(tmp_path / "run"))
    ids = [world.name("user", 4), None, "nobody", "", world.name("user", 15), world.name("user", 4)]
    known = {world.name("user", number): row.tolist() for number, row in enumerate(world.vectors["user"])}
    as_arrow = pa.array(ids)
    for given_ids in (ids, pd.Series(ids), np.array(ids, object), as_arrow, as_arrow.dictionary_encode()):
        found = run.features("user", given_ids)
        assert found.column_names == ["id", "vector", "has_vector"]
        assert found["vector"].to_pylist() == [known.get(each) for each in ids]
        assert found["has_vector"].to_pylist() == [True, False, False, False, True, True]
    for empty in ([], np.array([]), pd.Series([], dtype=float)):
        assert len(run.features("user", empty)) == 0
    assert run.features("user", np.array([1, 2]))["id"].to_pylist() == ["1", "2"]


@pytest.mark.slow
def test_as_the_command(tmp_path: Path, world: World, graphmill_command: Callable[..., int]) -> None:
    run = graphmill.open(str(tmp_path / "run"))
    ids = [world.name("user", number) for number in (3, 0, 12)] + ["new", "nobody"]
    edges = [("new", "likes", world.name("item", 2)), ("new", "likes", world.name("item", 7))]
    edges.append((world.name("user", 1), "likes", "new"))  # an item
    pq.write_table(pa.table({"c": ids}), tmp_path / "t.parquet")
    write_edges(tmp_path / "e.parquet", edges)
    (tmp_path / "ids").write_text(ids[0] + "\n")
    ask = [tmp_path / "run", tmp_path / "t.parquet", "--column", "c", "--type", "user"]
    ask += ["--to", tmp_path / "out"]
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {}),
        (["--as-columns"], {"as_columns": True}),
        (["--components", 2], {"components": 2}),
        (["--similar-to", tmp_path / "ids"], {"similar_to": [ids[0]]}),
        (["--fold-in", tmp_path / "e.parquet"], {"edges": edges}),
    ]
    for options, keywords in cases:
        assert graphmill_command("features", *ask, *options) == 0
        command = pq.read_table(tmp_path / "out/part-00000.parquet")
        call = run.features("user", ids, **keywords)
        assert call.column_names[1:] == command.column_names[1:]
        for name in call.column_names[1:]:
            own, other = call[name].drop_null(), command[name].drop_null()
            assert call[name].is_null().equals(command[name].is_null())
            np.testing.assert_allclose(own.to_pylist(), other.to_pylist(), rtol=1e-4, atol=1e-5)


def test_wrong_questions(tmp_path: Path, world: World) -> None:
    run = graphmill.open(str(tmp_path / "run"))
    user = world.name("user", 0)
    for ids, options, message in (
        ([1.5], {}, "expected strings or integers, found double"),
        (["a", 1], {}, "expected strings or integers"),
        *(
            (one, {}, "ids: expected several, in a list or a column, found ")
            for one in (user, b"a", 5, None, np.array(user), np.array([["a"]]), pd.DataFrame({"id": ["a"]}))
        ),
        (["\udc80"], {}, "expected strings or integers of one kind in UTF-8: .*surrogates"),
        ([user], {"components": 7}, "components: expected 1 to 6"),
        ([user], {"components": 0}, "components: expected 1 to 6"),
        ([user], {"similar_to": ["nobody"]}, "found 1 others: 'nobody'"),
        ([user], {"similar_to": user}, "similar_to: expected several"),
        ([user], {"similar_to": []}, "expected a list"),
        ([user], {"similar_to": [user], "components": 1}, "found both"),
    ):
        with pytest.raises(BadInputError, match=message):
            run.features("user", ids, **options)


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    offset=st.floats(-1e3, 1e3),
    num=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_moments_add_up_to_those_of_all_rows(counts: list[int], offset: float, num: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [(rng.normal(size=(count, 4)) + offset).astype(np.float32) for count in counts]
    rows = np.concatenate(blocks).astype(np.float64)
    found = moments_of(blocks)
    assert isinstance(found, Moments)
    centred = rows - rows.mean(0)
    np.testing.assert_allclose(found.mean_D, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found.products_DD, centred.T @ centred, rtol=1e-7, atol=1e-7)
    components = Components.of(found, num)
    axes = components.axes_DK
    np.testing.assert_allclose(axes.T @ axes, np.eye(num), atol=1e-9)
    assert (axes[np.abs(axes).argmax(0), np.arange(num)] > 0).all()
    assert (np.diff(components.share_K) <= 1e-12).all()
    np.testing.assert_allclose(components(np.concatenate(blocks)), centred @ axes, atol=1e-3)


SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), float("-inf")])


@given(
    st.lists(st.tuples(SCORES, SCORES), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.integers(1, 8),
    st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
)
def test_equal_rows_stand_in_their_order(rows, cuts, k, own) -> None:
    """Some ids are there twice: none of their rows is an answer to the id itself."""
    score_NQ = np.array(rows, np.float32).reshape(-1, 2)
    names = [f"id{row % 20}" for row in range(len(rows))]
    leave_out = [None if each is None else f"id{each}" for each in own]
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [
        (pa.array(names[start:stop], pa.string()), score_NQ[start:stop])
        for start, stop in itertools.pairwise(bounds)
    ]
    found = nearest(iter(parts), lambda vectors_ND: vectors_ND, leave_out, k)
    for query, neighbors in enumerate(found):
        order = np.argsort(-score_NQ[:, query], kind="stable")
        finite = [row for row in order if np.isfinite(score_NQ[row, query])]
        allowed = [row for row in finite if names[row] != leave_out[query]]
        assert [each.id for each in neighbors] == [names[row] for row in allowed[:k]]
        assert [each.similarity for each in neighbors] == score_NQ[allowed[:k], query].tolist()
