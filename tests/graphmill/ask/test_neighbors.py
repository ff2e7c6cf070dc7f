"""Neighbours equal a search by hand, the trainer's scores along relations, and nearly those of an index."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import graphmill
from graphmill import config as configuration
from graphmill.ask.neighbors import along_relation, find_types, neighbors
from graphmill.config.sections.remap import RemapConfig
from graphmill.errors import ConfigError, FormatError, NotFoundError
from graphmill.model.operators import OPERATORS
from graphmill.vocab import Side
from remap import job
from tests.graphmill.ask.predict.world import DIMENSION, World, write_world
from tests.pairs import pairs


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., World]:
    """A trained run with vectors as remap leaves them."""

    def write(**settings: Any) -> World:
        world = write_world(tmp_path, **settings)
        world.publish(world.config.embedding_path)
        return world

    return write


def test_vectors_that_are_no_numbers_are_no_neighbours(tmp_path: Path, world: World) -> None:
    world.vectors["user"][[3, 10], 2] = np.nan
    world.publish(path := world.config.embedding_path)
    asked, wrong = world.name("user", 7), world.name("user", 3)
    names, values = zip(
        *(each for (own, _), each in world.cosines("user", "user", 20).items() if own == asked), strict=True
    )
    assert len(names) == 13
    entity_type, found = neighbors(path, asked, 500)
    for each in (found, graphmill.open(str(tmp_path / "run")).neighbors("user", asked, 500)):
        assert (entity_type, [near.id for near in each]) == ("user", [*names])
        assert [near.similarity for near in each] == pytest.approx(values, abs=1e-6)
    assert neighbors(path, asked, 5)[1] == found[:5]
    assert neighbors(path, wrong, 50)[1] == []


def test_tables_of_other_names_and_integer_ids(tmp_path: Path, world: World) -> None:
    (tmp_path / "user").mkdir()
    names, best = pa.array(map(str, range(16))), world.cosines("user", "user", 3)
    for kind, ids in (
        (pa.list_(pa.float64()), pa.array(range(16))),
        (pa.large_list(pa.float32()), names.cast(pa.large_string())),  # as polars writes them
        (pa.large_list(pa.float32()), names.cast(pa.string_view())),
        (pa.list_(pa.float16(), DIMENSION), names.dictionary_encode()),
    ):
        lists = pa.array(list(world.vectors["user"].astype(np.float64)), kind)
        pq.write_table(pa.table({"emb": lists, "nid": ids}), tmp_path / "user/embed-00000_00000.parquet")
        entity_type, found = neighbors(str(tmp_path), "7", 3)
        assert entity_type == "user"
        wanted = [best[world.name("user", 7), rank][0] for rank in (1, 2, 3)]
        assert [world.name("user", int(each.id)) for each in found] == wanted


@pytest.mark.parametrize("names", [{}, {"id": "nid", "type": "kind", "embedding": "emb"}])
def test_tables_of_ours_in_another_shape(near_client: Client, world: World, names: dict[str, str]) -> None:
    config = world.config.with_section(RemapConfig(vectors="list", column_names=names, rows_per_file=2))
    job.run(config, near_client)
    mine = world.name("user", 10)
    entity_type, found = neighbors(config.embedding_path, mine, 20)
    assert (entity_type, {each.id for each in found}) == ("user", world.by_id("user").keys() - {mine})


@pytest.mark.parametrize(
    ("comparator", "operator", "dynamic", "bias", "side"),
    pairs(["dot", "cos", "l2", "squared_l2"], [*OPERATORS], [False, True], [False, True], list(Side)),
)
def test_relations_are_asked_as_the_model_would(published, operator, comparator, dynamic, bias, side):
    world = published(operator=operator, comparator=comparator, dynamic=dynamic, bias=bias, loops=False)
    relation, name = (2, "buys") if dynamic else (1, "follows")
    types, path = world.types(relation), world.config.embedding_path
    asked, best = world.name(types[side.other], 4), world.best(relation, side, 3)
    entity_type, found = along_relation(world.config, path, asked, 3, name, inverse=side is Side.LHS)
    assert entity_type == types[side]
    names, scores = zip(*(best[asked, rank] for rank in (1, 2, 3)), strict=True)
    assert [each.id for each in found] == [*names]
    assert [each.similarity for each in found] == pytest.approx(scores, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("has_loop", [False, True])
def test_an_id_is_its_own_neighbour_where_training_has_a_loop(published, has_loop):
    world = published(operator="none", comparator="cos", loops=has_loop)
    config, asked = world.config, world.name("user", 4)
    ask = partial(along_relation, config, config.embedding_path, asked, 3, "follows", inverse=False)
    assert world.may_be_itself(1) == has_loop
    assert (ask()[1][0].id == asked) == has_loop
    assert ask(with_itself=True)[1][0].id == asked


def test_relations_that_cannot_be_asked(tmp_path: Path, published: Callable[..., World]) -> None:
    world = published()
    config, asked = world.config, world.name("user", 4)
    with pytest.raises(ConfigError, match="--relation r7: expected one of likes, follows"):
        along_relation(config, config.embedding_path, asked, 3, "r7", False)
    relations = [each.model_dump() | {"operator": "translation"} for each in config.relations]
    other = configuration.from_mapping(config.model_dump() | {"relations": relations})
    with pytest.raises(ConfigError, match=r"no parameter 'rhs_operators\.1\.translation' of the operator"):
        along_relation(other, config.embedding_path, asked, 3, "follows", False)
    world.publish(str(tmp_path / "other"), {name: rows[:, :4] for name, rows in world.vectors.items()})
    with pytest.raises(ConfigError, match="other: expected vectors of length 6, found 4"):
        along_relation(config, str(tmp_path / "other"), asked, 3, "follows", False)


def test_what_is_not_there(tmp_path: Path, world: World) -> None:
    with pytest.raises(NotFoundError, match="expected a folder with tables of vectors"):
        neighbors(str(tmp_path), "n7", 5)
    world.publish(str(tmp_path))
    with pytest.raises(NotFoundError, match="--id nobody: there is no such id in item, user"):
        neighbors(str(tmp_path), "nobody", 5)
    with pytest.raises(NotFoundError, match="--type node: expected one of item, user"):
        neighbors(str(tmp_path), "n7", 5, "node")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/_notes.parquet").touch()
    pq.write_table(pa.table({"a": ["x"], "b": ["y"]}), tmp_path / "odd/x.parquet")
    with pytest.raises(FormatError, match="expected one column of ids and one of lists of floats"):
        find_types(str(tmp_path))
    for ragged in ([[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.0, 3.0]]):
        table = pa.table({"nid": ["x", "y"], "emb": pa.array(ragged)})
        pq.write_table(table, tmp_path / "odd/x.parquet")
        with pytest.raises(FormatError, match="expected vectors of one length"):
            neighbors(str(tmp_path), "x", 5, "odd")
    for number, length in enumerate((2, 3)):
        table = pa.table({"nid": [f"x{number}"], "emb": [[1.0] * length]})
        pq.write_table(table, tmp_path / f"odd/{'xy'[number]}.parquet")
    with pytest.raises(FormatError, match=r"y\.parquet: expected vectors of length 2, found 3; give a"):
        neighbors(str(tmp_path), "x0", 5, "odd")


def test_the_command(tmp_path, published, cli, capsys):
    world = published()
    config, asked = world.config, world.name("user", 7)
    assert cli("neighbors", "--embeddings", config.embedding_path, "--id", asked, "--k", 2, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    best = world.cosines("user", "user", 2)
    assert [each["id"] for each in printed["neighbors"]] == [best[asked, rank][0] for rank in (1, 2)]
    (tmp_path / "conf.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    conf = ["--conf", tmp_path / "conf.yaml"]
    assert cli("neighbors", *conf, "--id", asked, "--relation", "follows", "--k", 3) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    (tmp_path / "alone/city").mkdir(parents=True)
    pq.write_table(pa.table({"id": ["x"], "vector": [[1.0]]}), tmp_path / "alone/city/x.parquet")
    assert cli("neighbors", "--embeddings", tmp_path / "alone", "--id", "x") == 0
    assert "x: there is no other id of 'city' in " in capsys.readouterr().out
    assert cli("neighbors", "--id", "n7") == 2
    assert "--conf: missing" in capsys.readouterr().err
    assert cli("neighbors", *conf, "--id", "nobody") == NotFoundError.exit_code
    assert cli("neighbors") == 2


@pytest.mark.parametrize("command", [["neighbors", "--id", "x"], ["remap"]])
def test_what_is_no_run(tmp_path, cli, capsys, command):
    """All commands say the same, and `report` too."""
    (tmp_path / "runs/monday").mkdir(parents=True)
    for folder, found in (("absent", "none"), ("runs", "a folder without run.json")):
        place = tmp_path / folder
        text = f"{place}: expected a run, found {found}; give the folder that was the run's `output`"
        assert cli(command[0], place, *command[1:]) == NotFoundError.exit_code
        assert text in capsys.readouterr().err
        with pytest.raises(NotFoundError, match=re.escape(text)):
            graphmill.open(str(place))
    (tmp_path / "runs/monday/run.json").write_text("{}")
    assert cli(command[0], tmp_path / "runs", *command[1:]) == NotFoundError.exit_code
    assert "without run.json, with runs in it: monday;" in capsys.readouterr().err
