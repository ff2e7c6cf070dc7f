"""`Run.features`: vectors as columns beside ids, against pandas and numpy, and against the command."""

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
from graphmill.ask.principal import Components, Moments, moments_of
from graphmill.errors import BadInputError, NotFoundError
from graphmill.formats import remapped
from tests.graphmill.ask.fold_in.test_fold_in import write_edges
from tests.graphmill.ask.predict.world import World, write_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run, with the embeddings that remap would write."""
    world = write_world(tmp_path / "run", num_partitions=3)
    for kind, counts in world.counts.items():
        first = 0
        for partition, count in enumerate(counts):
            vectors = world.vectors[kind][first : first + count]
            with remapped.new_part(world.config.embedding_path, kind, partition, vectors.shape[1]) as part:
                part.append(pa.array([world.name(kind, first + row) for row in range(count)]), vectors)
            first += count
    return world


def test_like_a_left_join(tmp_path: Path, world: World) -> None:
    run = graphmill.open(str(tmp_path / "run"))
    ids = [world.name("user", 4), None, "nobody", "", world.name("user", 15), world.name("user", 4)]
    known = pd.DataFrame(
        {
            "id": [world.name("user", number) for number in range(16)],
            "vector": list(world.vectors["user"]),
        }
    )
    frame = pd.DataFrame({"id": ids})
    merged = frame.merge(known, how="left", on="id")["vector"]
    wanted = [each.tolist() if isinstance(each, np.ndarray) else None for each in merged]
    for given_ids in (
        ids,
        pd.Series(ids),
        np.array(ids, object),
        pa.array(ids),
        pa.array(ids).dictionary_encode(),
    ):
        found = run.features("user", given_ids)
        assert found.column_names == ["id", "vector", "has_vector"]
        assert found["vector"].to_pylist() == wanted
        assert found["has_vector"].to_pylist() == [True, False, False, False, True, True]
    assert len(run.features("user", [])) == 0
    assert run.features("user", np.array([1, 2]))["id"].to_pylist() == ["1", "2"]


@pytest.mark.slow
def test_as_the_command(tmp_path: Path, world: World, graphmill_command: Callable[..., int]) -> None:
    run = graphmill.open(str(tmp_path / "run"))
    ids = [world.name("user", number) for number in (3, 0, 12)] + ["new", "nobody"]
    edges = [("new", "likes", world.name("item", 2)), ("new", "likes", world.name("item", 7))]
    pq.write_table(pa.table({"c": ids}), tmp_path / "t.parquet")
    write_edges(tmp_path / "e.parquet", edges)
    (tmp_path / "ids").write_text(ids[0] + "\n")
    ask = [
        tmp_path / "run",
        tmp_path / "t.parquet",
        "--column",
        "c",
        "--type",
        "user",
        "--to",
        tmp_path / "out",
    ]
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
        ([user], {"components": 7}, "components: expected 1 to 6"),
        ([user], {"components": 0}, "components: expected 1 to 6"),
        ([user], {"similar_to": ["nobody"]}, "found 1 others: 'nobody'"),
        ([user], {"similar_to": user}, "expected a list"),
        ([user], {"similar_to": []}, "expected a list"),
        ([user], {"similar_to": [user], "components": 1}, "found both"),
    ):
        with pytest.raises(BadInputError, match=message):
            run.features("user", ids, **options)
    with pytest.raises(NotFoundError):
        run.features("shop", [user])


@settings(max_examples=30, deadline=None)
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
    np.testing.assert_allclose(found.mean_D, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(
        found.products_DD, (rows - rows.mean(0)).T @ (rows - rows.mean(0)), rtol=1e-7, atol=1e-7
    )
    components = Components.of(found, num)
    axes = components.axes_DK
    np.testing.assert_allclose(axes.T @ axes, np.eye(num), atol=1e-9)
    assert (axes[np.abs(axes).argmax(0), np.arange(num)] > 0).all()
    assert (np.diff(components.share_K) <= 1e-12).all()
    projected = (rows - rows.mean(0)) @ axes
    np.testing.assert_allclose(components(np.concatenate(blocks)), projected, atol=1e-3)
