"""Remap on a real cluster: every entity under its raw id, and nothing at all when something does not fit."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill import config as configuration
from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config, from_mapping
from graphmill.errors import (
    BadInputError,
    ConfigError,
    FormatError,
    GraphMillError,
    LockedError,
    NotFoundError,
    StorageError,
)
from graphmill.formats import entity_counts, entity_index, remapped
from graphmill.formats.entity_index import Manifest
from graphmill.run import lock
from graphmill.run.lock import Claim
from remap import align, job
from remap.align import rotation
from tests import DATA
from tests.contents import contents
from tests.processes import full_disk
from tests.remap import graph
from tests.remap.graph import COUNTS


@pytest.mark.parametrize(("as_pbg", "compression"), [(False, "none"), (True, "zstd")])
def test_every_entity_by_its_raw_id(near_client: Client, output: str, as_pbg: bool, compression: str) -> None:
    graph.write_entities(output, as_pbg=as_pbg)
    graph.write_checkpoint(output, version=3)
    config = graph.configured(output, batch_rows=2, compression=compression)
    figures = job.run(config, near_client)
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(version=3)
    assert sorted(contents(config.embedding_path)) == [
        "_checksums.xxh128",
        "item/part-00000.parquet",
        *(f"user/part-{partition:05d}.parquet" for partition in range(3)),
    ]
    assert figures == {
        "checkpoint_version": 3,
        "raw_ids_from": "entity_names" if as_pbg else "entity_index",
        "num_rows": 15,
        "num_files": 4,
        "types": {"user": {"num_rows": 12, "dimension": 4}, "item": {"num_rows": 3, "dimension": 4}},
    }
    json.dumps(figures)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    user=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    item=st.integers(0, 40),
    batch_rows=st.integers(1, 50),
)
def test_any_sizes_and_batches(near_client, tmp_path_factory, user, item, batch_rows):
    output = str(tmp_path_factory.mktemp("sizes"))
    counts = {"user": user, "item": [item]}
    graph.write_entities(output, counts)
    graph.write_checkpoint(output, counts)
    config = graph.configured(output, counts, batch_rows=batch_rows)
    job.run(config, near_client)
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(counts)


def test_a_preserved_version_of_selected_types(near_client: Client, output: str) -> None:
    graph.write_checkpoint(output, version=1, preserve_epoch=0)
    graph.write_checkpoint(output, version=2)
    config = graph.configured(output, checkpoint_version=1, entity_types=["item"])
    assert job.run(config, near_client)["checkpoint_version"] == 1
    expected = graph.expected_rows(version=1)
    found = graph.read_rows(config.embedding_path)
    assert found == {key: vector for key, vector in expected.items() if key[0] == "item"}


def test_a_version_that_the_user_keeps_by_links(near_client: Client, output: str) -> None:
    """A checkpoint keeps the files that links below it name, whatever their folder is called."""
    root = Path(graph.configured(output).checkpoint_path)
    (root / "of_may").mkdir()
    for file in root.glob("*.v1.h5"):
        (root / "of_may" / file.name).symlink_to(file)
    graph.write_checkpoint(output, version=2)
    config = graph.configured(output, checkpoint_version=1)
    assert job.run(config, near_client)["checkpoint_version"] == 1
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(version=1)
    (root / "embeddings_user_2.v1.h5").unlink()
    with pytest.raises(ConfigError, match="no complete version 1; complete versions: 2"):
        job.run(config, near_client)


def test_a_changed_dimension_is_told(near_client: Client, output: str) -> None:
    config = graph.configured(output)
    pbg.write_config(config.checkpoint_path, config.pbg())
    wide = from_mapping(config.model_dump() | {"dimension": 6})
    told = r"expected dimension 6 .*found 4\nchanged since .*: dimension: 4 -> 6; "
    with pytest.raises(FormatError, match=told):
        job.run(wide, near_client)


def _write_rows(config: Config, partition: int, dimension: int) -> None:
    rows, path = np.ones((3, dimension), np.float32), config.checkpoint_path
    pbg.write_embeddings(path, "item", partition, 2, rows, None, {}, graph.ITERATION)


def _write_ids(config: Config, ids: list[str], index: list[int]) -> None:
    table = pa.table({"id": ids, "index": index})
    pq.write_table(table, entity_index.part_uri(config.entity_path, "item", 0))


def _write_globals(config: Config, row: torch.Tensor) -> None:
    pbg.write_model(config.checkpoint_path, 2, {"global_embs.emb_user": row}, {}, {}, graph.ITERATION)


def _of_checkpoint(config: Config, partition: int) -> Path:
    return Path(pbg.embeddings_uri(config.checkpoint_path, "user", partition, 2))


def _of_entities(config: Config, name: str) -> Path:
    return Path(config.entity_path, name)


DAMAGE: dict[str, tuple[Callable[[Config], Any], str]] = {
    "no checkpoint": (lambda c: storage.delete(c.checkpoint_path), "no checkpoint; run the stage train"),
    "no version": (
        lambda c: Path(c.checkpoint_path, "checkpoint_version.txt").write_text(""),
        r"checkpoint_version\.txt: expected the number of a version",
    ),
    "no ids": (
        lambda c: shutil.rmtree(_of_entities(c, "entity_index")),
        r"there are no raw ids: neither .*manifest\.json nor .*entity_names_user_0",
    ),
    "no embeddings": (lambda c: _of_checkpoint(c, 2).unlink(), r"embeddings_user_2\.v2\.h5"),
    "no count": (lambda c: _of_entities(c, "entity_count_user_1.txt").unlink(), r"entity_count_user_1\.txt"),
    "no ids of a partition": (
        lambda c: _of_entities(c, "entity_index/user/part-00002.parquet").unlink(),
        r"entity_index/user/part-00002\.parquet",
    ),
    "another count": (
        lambda c: entity_counts.write_count(c.entity_path, "item", 0, 4),
        r"item_0\.v2\.h5 has 3 rows, but .*entity_count_item_0\.txt says 4",
    ),
    "more ids": (
        lambda c: _write_ids(c, [*"abcd"], [0, 1, 2, 3]),
        r"00000\.parquet has 4 raw ids, but .*item_0\.v2\.h5 has 3 rows",
    ),
    "an index in another order": (
        lambda c: _write_ids(c, [*"abc"], [0, 2, 1]),
        r"item/part-00000\.parquet: expected index 1 in row 1, found 2",
    ),
    "another dimension": (
        lambda c: _write_rows(c, 0, 5),
        r"item_0\.v2\.h5: expected dimension 4 as configured, found 5",
    ),
    "more partitions": (
        lambda c: _write_rows(c, 1, 4),
        r"item_1\.v2\.h5: the configuration has 1 partitions of 'item'",
    ),
    "more partitions of ids": (
        lambda c: entity_index.write_manifest(c.entity_path, Manifest("blake2b", 0, {"user": 3, "item": 2})),
        "1 partitions of 'item', the entity index 2",
    ),
    "a global embedding of another dimension": (
        lambda c: _write_globals(c, torch.ones(5)),
        r"model\.v2\.h5: global embedding of 'user': expected dimension 4",
    ),
    "a global embedding that is not finite": (
        lambda c: _write_globals(c, torch.tensor([1, 2, torch.inf, 4])),
        r"global embedding of 'user': row 2: expected finite numbers, found inf",
    ),
    "a global embedding that is one number": (
        lambda c: _write_globals(c, torch.tensor(1.0)),
        r"model\.v2\.h5: global embedding of 'user': expected dimension 4, found \(\)",
    ),
    "half a file": (
        lambda c: _of_checkpoint(c, 0).write_bytes(_of_checkpoint(c, 0).read_bytes()[:-100]),
        r"embeddings_user_0\.v2\.h5: expected an HDF5 file",
    ),
    "a file of others": (
        lambda c: Path(c.embedding_path, "item", "thesis.tex").write_text("years of work"),
        r"holds .*thesis\.tex",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_does_not_fit_changes_nothing(near_client: Client, output: str, name: str) -> None:
    config = graph.configured(output, batch_rows=2)
    job.run(config, near_client)
    graph.write_checkpoint(output, version=2)
    damage, message = DAMAGE[name]
    damage(config)
    before = contents(config.embedding_path)
    with pytest.raises(GraphMillError, match=message) as raised:
        job.run(config, near_client)
    assert raised.value.exit_code == 2
    assert contents(config.embedding_path) == before


@pytest.mark.parametrize("as_pbg", [False, True])
def test_a_raw_id_that_comes_twice(near_client: Client, output: str, as_pbg: bool) -> None:
    """The duplicates are in different batches, each of which is valid."""
    graph.write_entities(output, as_pbg=as_pbg)
    config = graph.configured(output, batch_rows=2)
    ids = [graph.raw_id("user", 0, row) for row in range(COUNTS["user"][0])]
    ids[-1] = ids[0]
    if as_pbg:
        entity_counts.write_entity_names(config.entity_path, "user", 0, ids)
    else:
        with entity_index.new_part(config.entity_path, "user", 0) as writer:
            writer.append(pa.array(ids))
    place = r"user_0\.json" if as_pbg else r"user/part-00000\.parquet"
    told = rf"{place}: raw id '{ids[0]}' stands in row 0 and in row {len(ids) - 1}; expected each once"
    with pytest.raises(FormatError, match=told):
        job.run(config, near_client)
    if as_pbg:
        entity_counts.write_entity_names(config.entity_path, "user", 0, ids[:2])
        with pytest.raises(FormatError, match=r"user_0\.json has 2 raw ids, but .*user_0\.v1\.h5 has 5 rows"):
            job.run(config, near_client)
        beyond = entity_counts.names_uri(config.entity_path, "item", len(COUNTS["item"]))
        entity_counts.write_entity_names(config.entity_path, "item", len(COUNTS["item"]), ["lost"])
        message = rf"{beyond}: .* found more: is a file of the checkpoint missing"
        with pytest.raises(FormatError, match=message):
            job.run(config, near_client)
        storage.delete(beyond)
        storage.delete(entity_counts.names_uri(config.entity_path, "user", 0))
        with pytest.raises(NotFoundError, match=r"entity_names_user_0\.json"):
            job.run(config, near_client)
    assert not storage.exists(config.embedding_path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"entity_types": ["item", "users"]}, r"\.entity_types\[1\]: 'users' is not among the entities"),
        ({"entity_types": []}, r"remap\.entity_types"),
        ({"checkpoint_version": 7}, r"\.checkpoint_version, .* no complete version 7; complete versions: 1"),
        ({"batch_rows": 0}, r"remap\.batch_rows"),
        ({"compression": "gzip"}, r"remap\.compression"),
        ({"batchrows": 1}, r"remap\.batchrows: unknown key; did you mean 'batch_rows'"),
    ],
)  # fmt: skip
def test_wrong_settings(near_client: Client, output: str, section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job.run(graph.configured(output, **section), near_client)
    assert not storage.exists(graph.configured(output).embedding_path)


def test_fingerprint_tells_what_matters(output: str) -> None:
    first = job.fingerprint(graph.configured(output))
    assert json.loads(json.dumps(first)) == first
    assert job.fingerprint(graph.configured(output)) == first
    assert job.fingerprint(graph.configured(output, compression="zstd")) != first
    assert job.fingerprint(graph.configured(output, entity_types=["user"])) != first
    graph.write_checkpoint(output, version=2)
    assert job.fingerprint(graph.configured(output)) != first
    assert job.output_uris(graph.configured(output)) == [f"{output}/embeddings"]


@pytest.mark.parametrize("name", ["pbg_v1_dyn", "pbg_v1_static"])
def test_what_pbg_exports(near_client: Client, tmp_path: Path, name: str) -> None:
    golden = DATA / name
    trained = json.loads((golden / "checkpoint" / "config.json").read_text())
    places = {"entity_path": str(golden / "entities"), "checkpoint_path": str(golden / "checkpoint")}
    raw = trained | places | {"embedding_path": str(tmp_path / "embeddings")}
    figures = job.run(configuration.from_mapping(raw), near_client)
    assert figures["raw_ids_from"] == "entity_names"
    found = {raw_id: vector for (_, raw_id), vector in graph.read_rows(tmp_path / "embeddings").items()}
    lines = (golden / "entities.tsv").read_text().splitlines()
    exported = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    # PBG prints nine decimals, so that is how far equality can be seen.
    assert {raw_id: [f"{value:.9f}" for value in vector] for raw_id, vector in found.items()} == exported
    assert len(exported) == 135


def test_a_run_that_has_lost_its_lock_publishes_nothing(near_client: Client, output: str) -> None:
    config = graph.configured(output)
    lost = Claim({storage.join(output, lock.NAME): output}, "mine")
    with pytest.raises(LockedError, match="lost"):
        job.run(config, near_client, lost)
    assert not Path(config.embedding_path).exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_earlier_tables(near_client: Client, output: str) -> None:
    output, counts = f"{output}/large", {"user": [2000] * 2, "item": [3]}
    config = graph.configured(output, counts, batch_rows=20)
    graph.write_entities(output, counts)
    graph.write_checkpoint(output, counts)
    job.run(config, near_client)
    before = contents(config.embedding_path)
    graph.write_checkpoint(output, counts, version=2)
    with full_disk(60_000), pytest.raises(StorageError, match=r"/part-.*: cannot write: .*File too large"):
        job.run(config, near_client)
    assert contents(config.embedding_path) == before
    job.run(config, near_client)
    assert graph.read_rows(config.embedding_path) == graph.expected_rows(counts, version=2)
    assert [path.name for path in Path(output).iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("output_format", "counter", "found"),
    [("parquet", "remapped.shape_of", (2, 4)), ("csv", "count_rows", 2)],
)
def test_a_table_that_lost_rows(near_client, output, monkeypatch, output_format, counter, found):
    """Rows are counted after they are written; the earlier tables stay."""
    config = graph.configured(output, output_format=output_format)
    job.run(config, near_client)
    before = contents(config.embedding_path)
    graph.write_checkpoint(output, version=2)
    monkeypatch.setattr(f"remap.job.{counter}", lambda *_: found)
    with pytest.raises(FormatError, match=rf"expected .* as written, found {re.escape(str(found))}"):
        job.run(config, near_client)
    assert contents(config.embedding_path) == before


DIMENSION = graph.DIMENSION


def orthogonal(rng, dimension):
    return np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]


@given(seed=st.integers(0, 2**32), dimension=st.integers(1, 12), noise=st.floats(0, 0.01))
@settings(max_examples=40)
def test_the_matrix_of_a_turn_is_found(seed, dimension, noise):
    rng = np.random.default_rng(seed)
    now = rng.normal(size=(10 * dimension, dimension))
    turn = orthogonal(rng, dimension)
    found, singular = rotation(now.T @ (now @ turn + noise * rng.normal(size=now.shape)))
    np.testing.assert_allclose(found @ found.T, np.eye(dimension), atol=1e-9)
    np.testing.assert_allclose(found, turn, atol=0.2 if noise else 1e-8)
    assert (singular >= 0).all()


ALIGNED = {"item": (7,), "user": (9, 11)}
ZERO = graph.raw_id("item", 0, 0)  # whose vector was zero: it has no direction


def write_earlier(folder: Path, turn, num_parts=2) -> str:
    """Vectors of version 1 of `graph`, turned; of other lengths too, and in other partitions."""
    for name, counts in ALIGNED.items():
        own = {raw: row for (kind, raw), row in graph.expected_rows(ALIGNED).items() if kind == name}
        rows = [(raw, vector @ turn * (raw != ZERO)) for raw, vector in own.items()]
        num = num_parts if name == "user" else 1
        parts = [rows[part::num] for part in range(num)]
        if num == len(counts):
            cut = np.cumsum([0, *counts])
            parts = [rows[start:stop] for start, stop in pairwise(cut)]
        for part, own in enumerate(parts):
            with remapped.new_part(str(folder), name, part, DIMENSION) as writer:
                writer.append(pa.array([raw for raw, _ in own]), np.float32([vector for _, vector in own]))
    return str(folder)


@pytest.fixture
def made(tmp_path: Path) -> str:
    """A finished run of these counts."""
    graph.write_entities(str(tmp_path / "run"), ALIGNED)
    graph.write_checkpoint(str(tmp_path / "run"), ALIGNED)
    return str(tmp_path / "run")


@pytest.mark.parametrize("num_parts", [2, 3])
def test_embeddings_are_in_the_space_of_the_earlier_run(made, tmp_path, near_client, num_parts, monkeypatch):
    monkeypatch.setattr(align, "ENOUGH_ROWS", num := {2: 20, 3: 8}[num_parts])
    turn = orthogonal(np.random.default_rng(3), DIMENSION)
    earlier = write_earlier(tmp_path / "earlier", turn, num_parts)
    config = graph.configured(made, ALIGNED, align_to=earlier, batch_rows=4)
    assert job.check(config) == ""
    assert earlier in job.input_uris(config)
    figures = json.loads(json.dumps(job.run(config, near_client)))
    found = figures["aligned"][f"length_{DIMENSION}"]
    assert found["num_ids"] == (27 if num > 9 else 16)  # the first partitions of a type
    assert found["mean_cosine"] == pytest.approx(1 - 1 / found["num_ids"], abs=1e-5)
    assert found["mean_cosine_before"] < 0.9
    rows, expected = graph.read_rows(config.embedding_path), graph.expected_rows(ALIGNED)
    assert list(rows) == list(expected)
    np.testing.assert_allclose(list(rows.values()), np.array(list(expected.values())) @ turn, atol=1e-5)


def test_what_cannot_be_aligned_is_refused(made, tmp_path, near_client):
    earlier = write_earlier(tmp_path / "earlier", np.eye(DIMENSION))
    for settings_of_remap, message in (
        ({"align_to": str(tmp_path / "nothing")}, "has no embeddings of item, user"),
        ({"align_to": earlier, "relations": True}, "parameters of relations would not fit"),
        ({"align_to": f"{made}/embeddings"}, "is also embedding_path"),
    ):
        with pytest.raises(ConfigError, match=message):
            job.check(graph.configured(made, ALIGNED, **settings_of_remap))
    for name in ("few", "long"):
        length = 2 * DIMENSION if name == "long" else DIMENSION
        with remapped.new_part(str(tmp_path / name), "item", 0, length) as writer:
            writer.append(pa.array([graph.raw_id("item", 0, 0)]), np.ones((1, length), np.float32))
        config = graph.configured(made, ALIGNED, align_to=str(tmp_path / name))
        message = "vectors of length 4 now, of 8" if name == "long" else "expected 4 ids, .* found 1"
        with pytest.raises(BadInputError, match=message):
            job.run(config, near_client)
        assert not storage.exists(config.embedding_path)
