"""`graphmill.open`: a run as an object."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import graphmill
from graphmill.errors import BadInputError, ConfigError, FormatError, NotFoundError
from graphmill.formats import remapped
from graphmill.library.run import Run

NUM_USERS = 700
DIMENSION = 8


@pytest.fixture
def vectors(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(NUM_USERS, DIMENSION)).astype(np.float32)


@pytest.fixture
def output(tmp_path: Path, vectors: np.ndarray, rng: np.random.Generator) -> Path:
    """Two types, one in two partitions, and a run.json that was written when the folder lay elsewhere."""
    folder = tmp_path / "out" / "vectors"
    for partition, rows in enumerate((slice(0, 400), slice(400, NUM_USERS))):
        ids = [f"u{number}" for number in range(NUM_USERS)[rows]]
        with remapped.new_part(str(folder), "user", partition, DIMENSION) as part:
            part.append(pa.array(ids), vectors[rows])
    with remapped.new_part(str(folder), "item", 0, 4) as part:
        part.append(pa.array(["i0", "i1"]), rng.normal(size=(2, 4)).astype(np.float32))
    record = {
        "status": "done",
        "config": {
            "output": "/was/here",
            "embedding_path": "/was/here/vectors",
            "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        },
        "stages": {"etl": {"num_rows": 7}},
        "metrics": {"mrr": 0.25},
    }
    (tmp_path / "out" / "run.json").write_text(json.dumps(record))
    return tmp_path / "out"


def test_a_run_shows_its_record_and_its_embeddings(output: Path) -> None:
    run = graphmill.open(str(output))
    assert run.entity_types == ("user", "item")
    assert run.num_entities == {"user": NUM_USERS, "item": 2}
    assert run.dimension("user") == DIMENSION
    assert (run.status, run.metrics, run.stages["etl"]["num_rows"]) == ("done", {"mrr": 0.25}, 7)
    assert "user: 700" in repr(run)
    assert graphmill.open(str(output / "run.json")).num_entities == run.num_entities


def test_embeddings_equal_the_files(output: Path, vectors: np.ndarray) -> None:
    run = graphmill.open(str(output))
    table = run.embeddings("user")
    assert table.schema == remapped.schema(DIMENSION)
    assert table["id"].to_pylist() == [f"u{number}" for number in range(NUM_USERS)]
    ids, found_ND = run.vectors("user")
    assert ids == table["id"].to_pylist()
    np.testing.assert_array_equal(found_ND, vectors)
    frame = table.to_pandas()
    np.testing.assert_array_equal(np.stack(frame["embedding"]), vectors)


def test_a_type_without_entities_is_empty(output: Path) -> None:
    with remapped.new_part(str(output / "vectors"), "tag", 0, 3):
        pass
    run = graphmill.open(str(output))
    ids, found_ND = run.vectors("tag")
    assert (ids, found_ND.shape, found_ND.dtype) == ([], (0, 3), np.float32)
    assert (run.num_entities["tag"], len(run.embeddings("tag")), run.find("tag", ["t"])) == (0, 0, {})


@pytest.mark.slow
def test_a_lazy_table_has_one_partition_per_file(output: Path, vectors: np.ndarray) -> None:
    pytest.importorskip("pandas")
    lazy = graphmill.open(str(output)).lazy_embeddings("user")
    assert lazy.npartitions == 2
    whole = lazy.compute()
    assert whole["id"].tolist() == [f"u{number}" for number in range(NUM_USERS)]
    np.testing.assert_array_equal(np.stack(whole["embedding"]), vectors)
    lengths = lazy["embedding"].map_partitions(lambda each: each.map(len), meta=("n", "int64"))
    assert set(lengths.compute()) == {DIMENSION}


def test_a_lazy_table_without_pandas_names_the_extra(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.dataframe", None)
    with pytest.raises(ConfigError, match=r"pandas; pip install 'graphmill\[notebook\]'"):
        graphmill.open(str(output)).lazy_embeddings("user")


def test_the_first_rows_come_from_every_partition(output: Path) -> None:
    run = graphmill.open(str(output))
    found = [name for ids, _ in run.iter_vectors("user", max_rows=10) for name in ids.to_pylist()]
    assert found == [*(f"u{number}" for number in range(5)), *(f"u{number}" for number in range(400, 405))]


def test_missing_types_and_ids_are_refused(output: Path, tmp_path: Path) -> None:
    run = graphmill.open(str(output))
    with pytest.raises(NotFoundError, match="'shop'; types: user, item"):
        run.embeddings("shop")
    with pytest.raises(NotFoundError, match="'u700': there is no user of that id among 700"):
        run.neighbors("user", "u700")
    with pytest.raises(BadInputError, match="length 8, item of 4"):
        run.neighbors("user", "u1", among="item")
    with pytest.raises(NotFoundError, match=r"nowhere: expected a run, found none"):
        graphmill.open(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("content", ["{", "[]", '{"config": 3}', '{"stages": "x"}', "[" * 100_000])
def test_a_damaged_run_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FormatError, match=r"run\.json"):
        graphmill.open(str(tmp_path))


@pytest.mark.parametrize(
    "path", ["/elsewhere/secret", "/was/here/../secret", "/was/hereafter", "/was/here/hdfs://there/x"]
)
def test_no_path_in_run_json_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    config = {"output": "/was/here", "embedding_path": path}
    (tmp_path / "run.json").write_text(json.dumps({"config": config}))
    assert Run(str(tmp_path)).embedding_path == str(tmp_path / "embeddings")
    assert Run(str(tmp_path), "/chosen").embedding_path == "/chosen"
