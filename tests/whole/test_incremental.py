"""Two days of ETL, training and remap: what day 1 has learned of its ids is where day 2 starts."""

from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import etl.job
import remap.job
import train.job
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.errors import FormatError
from graphmill.formats import entity_counts, entity_index

DIMENSION = 8
INIT_SCALE = 0.001


def write_edges(path: Path, num_ids: int, late_relations: tuple[str, ...] = ()) -> str:
    """Edges from every user to the next four: of relations m and z, from u56 on of others too."""
    edges = []
    for lhs in range(num_ids - 4):
        for step in range(1, 5):
            names = ("m", "z", *(late_relations if lhs >= 56 else ()))
            edges.append((f"u{lhs}", names[(lhs + step) % len(names)], f"u{lhs + step}"))
    columns = dict(zip(("lhs", "rel", "rhs"), map(list, zip(*edges, strict=True)), strict=True))
    pq.write_table(pa.table(columns), path)
    return str(path)


def config_of(root: Path, name: str, edges: str, *, previous: str | None = None, **settings: Any) -> Config:
    table = {"path": edges, "lhs": "lhs", "rhs": "rhs", "relation_column": "rel"}
    return from_mapping(
        {
            "output": str(root / name),
            "entities": {"user": {"num_partitions": 2}},
            "relations": [{"name": "any", "lhs": "user", "rhs": "user", "operator": "diagonal"}],
            "dynamic_relations": True,
            "dimension": DIMENSION,
            "init_scale": INIT_SCALE,
            "comparator": "dot",
            "loss_fn": "softmax",
            "lr": 0.1,
            "num_epochs": 5,
            "batch_size": 50,
            "num_batch_negs": 25,
            "num_uniform_negs": 10,
            "eval_fraction": 0.0,
            "workers": 1,
            "etl": {"tables": [table], "previous_entity_path": previous},
        }
        | settings
    )


def run(config: Config, near_client: distributed.Client) -> None:
    etl.job.run(config, near_client)
    train.job.run(config, near_client)
    remap.job.run(config, near_client)


def places(config: Config) -> dict[str, tuple[int, int]]:
    """Raw id -> (partition, index)."""
    return {
        raw_id: (partition, index)
        for partition in range(2)
        for index, raw_id in enumerate(
            entity_index.read_part(config.entity_path, "user", partition).to_pylist()
        )
    }


def vectors(config: Config) -> dict[str, np.ndarray]:
    table = pq.read_table(f"{config.embedding_path}/user")
    rows = np.array(table["embedding"].to_pylist(), np.float32)
    return dict(zip(table["id"].to_pylist(), rows, strict=True))


@pytest.fixture(scope="module")
def day1(tmp_path_factory: pytest.TempPathFactory, near_client: distributed.Client) -> Config:
    root = tmp_path_factory.mktemp("days")
    config = config_of(root, "day1", write_edges(root / "day1.parquet", 60))
    run(config, near_client)
    return config


def next_day(
    day1: Config, name: str, late_relations: tuple[str, ...] = ("a", "n"), **settings: Any
) -> Config:
    root = Path(day1.output or "").parent
    edges = write_edges(root / f"{name}.parquet", 75, late_relations)
    return config_of(root, name, edges, **{"init_path": day1.checkpoint_path} | settings)


@pytest.mark.slow
def test_day_2_goes_on_where_day_1_ended(day1: Config, near_client: distributed.Client) -> None:
    day2 = next_day(day1, "day2", previous=day1.entity_path, lr=1e-9, num_epochs=1)
    run(day2, near_client)
    before, after = places(day1), places(day2)
    assert len(before) == 60
    assert {raw_id: after[raw_id] for raw_id in before} == before
    assert set(after) == {f"u{n}" for n in range(75)}
    old, new = vectors(day1), vectors(day2)
    assert set(old) == set(before)
    assert set(new) == set(after)
    trained = [np.linalg.norm(vector) for vector in old.values()]
    assert min(trained) > 20 * INIT_SCALE  # day 1 has moved them well away from where they began
    for raw_id, vector in old.items():
        np.testing.assert_allclose(new[raw_id], vector, atol=1e-6)
    for raw_id in set(new) - set(old):
        assert 0 < np.abs(new[raw_id]).max() < 6 * INIT_SCALE
    assert entity_counts.read_relation_names(day2.entity_path) == ["m", "z", "a", "n"]
    (state1, _, _), (state2, _, _) = (
        pbg.read_model(day.checkpoint_path, pbg.read_version(day.checkpoint_path)) for day in (day1, day2)
    )
    for key, value in state1.items():
        assert state2[key].shape == (4, DIMENSION)
        np.testing.assert_allclose(state2[key][:2], value, atol=1e-6)


@pytest.mark.slow
def test_day_2_learns(day1: Config, near_client: distributed.Client) -> None:
    """The first epoch after a warm start has a lower loss than that of a fresh start."""
    losses = []
    for name, settings in (("warm", {}), ("cold", {"init_path": None})):
        config = next_day(day1, name, **{"previous": day1.entity_path, "num_epochs": 1} | settings)
        etl.job.run(config, near_client)
        losses.append(train.job.run(config, near_client)["loss"])
    assert losses[0] < 0.95 * losses[1]


@pytest.mark.slow
def test_init_path_with_another_entity_index_is_refused(
    day1: Config, near_client: distributed.Client
) -> None:
    """Without previous_entity_path ids move: to start from day 1 would give them each other's vectors."""
    for name, late_relations, told in (
        ("same", (), r"raw id .*: entities have moved; .*previous_entity_path"),
        ("more", ("a",), r"relation 0 was 'm', and is 'a' .*previous_entity_path"),
    ):
        anew = next_day(day1, name, late_relations)
        etl.job.run(anew, near_client)
        with pytest.raises(FormatError, match=told):
            train.job.run(anew, near_client)
